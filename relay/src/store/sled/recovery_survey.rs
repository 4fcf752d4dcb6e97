//! What sled's recovery is going to do to its files, found out before sled may open them: which segments it writes to, and
//! which damage it would pass over in silence. Reads only.
//!
//! Recovery begins at the snapshot. It zeroes what stands behind the first damage at the log's end, which the watermark
//! finds out; and it zeroes segments on which no page has its place any more. But in the middle of the log it takes a
//! message that it cannot read for the end of the segment and goes on with the next one: pages are then older than they
//! were, and nobody would know.

use std::collections::{BTreeMap, HashSet};
use std::io;

use super::log_format::{
    PageEffect, SEGMENT, SEGMENT_HEAD, SledLog, SledMessage, SledSegmentHead, SledSnapshot,
    segment_start,
};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct RecoverySurvey {
    /// Segments that recovery may write to, by their number in the file.
    pub(crate) written_segments: Vec<u64>,
    /// Others that it may write to, which are nothing but zeros.
    pub(crate) empty: Vec<u64>,
    /// Only what would cost something: most of an old log is nobody's place any more.
    pub(crate) damage: Vec<LogDamage>,
}

/// A place that recovery reads and that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDamage {
    /// The head of a segment; the first message says where it belongs.
    Head { number: u64, lsn: i64 },
    /// From one whole message to the next.
    Messages {
        number: u64,
        segment: u64,
        from: usize,
        to: usize,
    },
}

impl RecoverySurvey {
    /// Without a snapshot recovery reads everything.
    pub(crate) fn of(log: &SledLog, snapshot: Option<&SledSnapshot>) -> io::Result<Self> {
        let mut surveying = SurveyWalk {
            log,
            from: snapshot.map_or(0, |snapshot| segment_start(snapshot.end)),
            snapshot,
            pages: snapshot.map_or_else(Vec::new, |snapshot| snapshot.pages.clone()),
            damaged_pages: HashSet::new(),
            is_significant: false,
            survey: Self::default(),
        };
        let (read, passed) = surveying.classify_segments()?;
        for (lsn, number) in read {
            surveying.survey_segment(lsn, number)?;
        }
        if !surveying.is_significant && surveying.damaged_pages.is_empty() {
            surveying.survey.damage.clear();
        }
        let live: HashSet<u64> = surveying.pages.iter().flatten().copied().collect();
        let gone = passed.into_iter().filter(|number| !live.contains(number));
        surveying.survey.written_segments.extend(gone);
        surveying.survey.written_segments.sort_unstable();
        Ok(surveying.survey)
    }
}

struct SurveyWalk<'a> {
    log: &'a SledLog,
    snapshot: Option<&'a SledSnapshot>,
    /// Where recovery begins.
    from: i64,
    /// The places of pages, followed through the log.
    pages: Vec<Vec<u64>>,
    /// Pages of which recovery would miss something. Whoever writes a page anew mends it.
    damaged_pages: HashSet<u64>,
    /// Nobody can say what is missing, or sled would not open.
    is_significant: bool,
    survey: RecoverySurvey,
}

impl SurveyWalk<'_> {
    /// The segments that recovery reads, in their order, and those that it does not.
    fn classify_segments(&mut self) -> io::Result<(BTreeMap<i64, u64>, Vec<u64>)> {
        let (mut read, mut passed) = (BTreeMap::new(), Vec::new());
        for (number, head) in (0..).zip(&self.log.heads) {
            match *head {
                SledSegmentHead::Whole { lsn, .. } if lsn < self.from => {
                    passed.push(number);
                    continue;
                }
                SledSegmentHead::Whole { lsn, .. } => {
                    read.insert(lsn, number);
                }
                SledSegmentHead::Empty if self.is_empty(number)? => {
                    self.survey.empty.push(number);
                    continue;
                }
                SledSegmentHead::Empty => {}
                SledSegmentHead::Damaged => {
                    let Some(lsn) = self.position_of_segment(number)? else {
                        self.survey.written_segments.push(number);
                        continue;
                    };
                    if lsn < self.from {
                        passed.push(number);
                        continue;
                    }
                    if !self.log.has_segment_at(lsn) && read.insert(lsn, number).is_none() {
                        self.survey.damage.push(LogDamage::Head { number, lsn });
                    }
                }
            }
            self.survey.written_segments.push(number);
        }
        Ok((read, passed))
    }

    fn is_empty(&self, number: u64) -> io::Result<bool> {
        Ok(self.log.segment(number)?.iter().all(|byte| *byte == 0))
    }

    /// Where a segment whose head is damaged stands in the log.
    fn position_of_segment(&self, number: u64) -> io::Result<Option<i64>> {
        let first = SledMessage::read(&self.log.segment(number)?, SEGMENT_HEAD);
        let lsn = first.and_then(|first| i64::try_from(first.segment).ok());
        Ok(lsn.and_then(|lsn| lsn.checked_mul(SEGMENT as i64)))
    }

    /// Follows the pages through one segment. What the snapshot knows already is not read again.
    fn survey_segment(&mut self, lsn: i64, number: u64) -> io::Result<()> {
        let bytes = self.log.segment(number)?;
        let segment = (lsn / SEGMENT as i64).unsigned_abs();
        let (must, known) = (
            self.must_be_intact_to(lsn, number),
            self.snapshot_covers(lsn),
        );
        let mut lost = self.log.head(number) == Some(SledSegmentHead::Damaged);
        self.is_significant |= lost && lsn >= self.log.stable();
        let mut at = SEGMENT_HEAD;
        loop {
            let message =
                SledMessage::read(&bytes, at).filter(|message| message.segment == segment);
            if let Some(message) = message {
                if message.effect == PageEffect::Cap {
                    return Ok(());
                }
                if at >= known {
                    self.follow_page(message, number, lost);
                }
                at += message.len;
                continue;
            }
            let Some(to) = find_next_intact(&bytes, at, segment, must) else {
                return Ok(());
            };
            self.survey.damage.push(LogDamage::Messages {
                number,
                segment,
                from: at,
                to,
            });
            lost = true;
            self.is_significant |= must < SEGMENT;
            if to > known {
                match SledMessage::read_unchecked(&bytes[..to], at)
                    .filter(|was| was.segment == segment)
                {
                    Some(was) => self.follow_page(was, number, lost),
                    None => self.is_significant = true,
                }
            }
            at = to;
        }
    }

    /// Up to where the snapshot knows what is in a segment.
    fn snapshot_covers(&self, lsn: i64) -> usize {
        let end = self.snapshot.map_or(0, |snapshot| snapshot.end);
        usize::try_from(end - lsn).unwrap_or(0)
    }

    /// Up to where everything in the segment was whole once: all of it, where sled has called more of the log stable; else
    /// what the snapshot was made of.
    fn must_be_intact_to(&self, lsn: i64, number: u64) -> usize {
        let of_snapshot = self.snapshot.filter(|snapshot| {
            snapshot.active == Some(number) && segment_start(snapshot.end) == lsn
        });
        if lsn < self.log.stable() {
            SEGMENT
        } else {
            let end = of_snapshot.and_then(|snapshot| usize::try_from(snapshot.end - lsn).ok());
            end.unwrap_or(0)
        }
    }

    fn follow_page(&mut self, message: SledMessage, number: u64, lost: bool) {
        let Ok(page) = usize::try_from(message.page) else {
            return;
        };
        match message.effect {
            PageEffect::None | PageEffect::Cap => return,
            PageEffect::Replace => {
                if self.pages.len() <= page {
                    self.pages.resize(page + 1, Vec::new());
                }
                self.pages[page] = vec![number];
                self.damaged_pages.remove(&message.page);
            }
            PageEffect::Link => match self.pages.get_mut(page).filter(|all| !all.is_empty()) {
                Some(places) => places.push(number),
                None => return,
            },
        }
        if lost {
            self.damaged_pages.insert(message.page);
        }
    }
}

/// Where reading can go on behind a message that is not whole: `None` where that is no damage, or the segment's end is
/// reached in good order. A segment that was about to be used again holds messages of its new position.
fn find_next_intact(bytes: &[u8], at: usize, segment: u64, must: usize) -> Option<usize> {
    let must = must.min(bytes.len());
    let rest = bytes.get(at..must)?;
    // Too little room for a message, at a segment's end.
    if rest.iter().all(|byte| *byte == 0) || at + SledMessage::RED_ZONE > SEGMENT {
        return None;
    }
    let found = (at + 1..must).find_map(|to| {
        let message = SledMessage::read(bytes, to)?;
        let room = to - at >= SledMessage::min_bytes(segment);
        (room || message.segment != segment).then_some((to, message))
    });
    let to = match found {
        Some((_, message)) if message.segment != segment => return None,
        Some((to, _)) => to,
        None => must,
    };
    (must < SEGMENT || !has_unwritten_sector(bytes, at, to)).then_some(to)
}

/// A power cut can leave out sectors that nobody had synced, and what depends on them was never acknowledged: the journal
/// knows. Damage seldom makes a whole sector of zeros.
fn has_unwritten_sector(bytes: &[u8], from: usize, to: usize) -> bool {
    let first = from.next_multiple_of(SECTOR);
    let sectors = bytes.get(first..to).unwrap_or_default();
    let mut sectors = sectors.chunks_exact(SECTOR);
    sectors.any(|sector| sector.iter().all(|byte| *byte == 0))
}
