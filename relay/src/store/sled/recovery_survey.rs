//! Determines what sled's recovery will do to its files before sled opens them: which segments
//! it writes to, and which damage it would skip without an error. Reads only.
//!
//! Recovery begins at the snapshot. At the log's end it zeroes what follows the first damage;
//! the watermark detects that. It also zeroes segments without live pages. But in the middle of
//! the log it takes an unreadable message for the end of the segment and continues with the
//! next segment. Pages then have an older state, and nothing would report it.

use std::collections::{BTreeMap, HashSet};
use std::io;

use super::log_format::{
    PageEffect, SEGMENT, SEGMENT_HEAD, SledLog, SledMessage, SledSegmentHead, SledSnapshot,
    segment_start,
};

/// The unit that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// The result of the survey.
#[derive(Debug, Default)]
pub(crate) struct RecoverySurvey {
    /// Numbers in the file of the segments that recovery may write to.
    pub(crate) written_segments: Vec<u64>,
    /// Further segments that it may write to, which contain only zeros.
    pub(crate) empty: Vec<u64>,
    /// Only damage that matters: most of an old log contains no live page.
    pub(crate) damage: Vec<LogDamage>,
}

/// A position that recovery reads and that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDamage {
    /// The header of a segment; its first message gives its position.
    Head { number: u64, lsn: i64 },
    /// The range from one valid message to the next.
    Messages {
        number: u64,
        segment: u64,
        from: usize,
        to: usize,
    },
}

impl RecoverySurvey {
    /// Surveys the log. Without a snapshot recovery reads everything.
    pub(crate) fn of(log: &SledLog, snapshot: Option<&SledSnapshot>) -> io::Result<Self> {
        let mut walk = SurveyWalk {
            log,
            from: snapshot.map_or(0, |snapshot| segment_start(snapshot.end)),
            snapshot,
            pages: snapshot.map_or_else(Vec::new, |snapshot| snapshot.pages.clone()),
            damaged_pages: HashSet::new(),
            is_significant: false,
            survey: Self::default(),
        };
        let (read, skipped) = walk.classify_segments()?;
        for (lsn, number) in read {
            walk.survey_segment(lsn, number)?;
        }
        if !walk.is_significant && walk.damaged_pages.is_empty() {
            walk.survey.damage.clear();
        }
        let live: HashSet<u64> = walk.pages.iter().flatten().copied().collect();
        let dead = skipped.into_iter().filter(|number| !live.contains(number));
        walk.survey.written_segments.extend(dead);
        walk.survey.written_segments.sort_unstable();
        Ok(walk.survey)
    }
}

struct SurveyWalk<'a> {
    log: &'a SledLog,
    snapshot: Option<&'a SledSnapshot>,
    /// Where recovery begins.
    from: i64,
    /// The positions of pages, followed through the log.
    pages: Vec<Vec<u64>>,
    /// Pages of which recovery would miss something. A message that replaces a page repairs it.
    damaged_pages: HashSet<u64>,
    /// It is unknown what is missing, or sled would not open.
    is_significant: bool,
    survey: RecoverySurvey,
}

impl SurveyWalk<'_> {
    /// The segments that recovery reads, in order, and those that it does not read.
    fn classify_segments(&mut self) -> io::Result<(BTreeMap<i64, u64>, Vec<u64>)> {
        let (mut read, mut skipped) = (BTreeMap::new(), Vec::new());
        for (number, head) in (0..).zip(&self.log.heads) {
            match *head {
                SledSegmentHead::Whole { lsn, .. } if lsn < self.from => {
                    skipped.push(number);
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
                        skipped.push(number);
                        continue;
                    }
                    if !self.log.has_segment_at(lsn) && read.insert(lsn, number).is_none() {
                        self.survey.damage.push(LogDamage::Head { number, lsn });
                    }
                }
            }
            self.survey.written_segments.push(number);
        }
        Ok((read, skipped))
    }

    fn is_empty(&self, number: u64) -> io::Result<bool> {
        Ok(self.log.segment(number)?.iter().all(|byte| *byte == 0))
    }

    /// The position in the log of a segment whose header is damaged.
    fn position_of_segment(&self, number: u64) -> io::Result<Option<i64>> {
        let first = SledMessage::read(&self.log.segment(number)?, SEGMENT_HEAD);
        let lsn = first.and_then(|first| i64::try_from(first.segment).ok());
        Ok(lsn.and_then(|lsn| lsn.checked_mul(SEGMENT as i64)))
    }

    /// Follows the pages through one segment. Messages covered by the snapshot are not applied
    /// again.
    fn survey_segment(&mut self, lsn: i64, number: u64) -> io::Result<()> {
        let bytes = self.log.segment(number)?;
        let segment = (lsn / SEGMENT as i64).unsigned_abs();
        let (intact_to, covered_to) = (
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
                if at >= covered_to {
                    self.follow_page(message, number, lost);
                }
                at += message.len;
                continue;
            }
            let Some(to) = find_next_intact(&bytes, at, segment, intact_to) else {
                return Ok(());
            };
            self.survey.damage.push(LogDamage::Messages {
                number,
                segment,
                from: at,
                to,
            });
            lost = true;
            self.is_significant |= intact_to < SEGMENT;
            if to > covered_to {
                match SledMessage::read_unchecked(&bytes[..to], at)
                    .filter(|message| message.segment == segment)
                {
                    Some(message) => self.follow_page(message, number, lost),
                    None => self.is_significant = true,
                }
            }
            at = to;
        }
    }

    /// Up to where the snapshot covers a segment.
    fn snapshot_covers(&self, lsn: i64) -> usize {
        let end = self.snapshot.map_or(0, |snapshot| snapshot.end);
        usize::try_from(end - lsn).unwrap_or(0)
    }

    /// Up to where the whole segment must once have been valid: all of it if sled has called a
    /// later part of the log stable, else what the snapshot was made from.
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

/// Where reading can continue after an invalid message. `None` if that is not damage, or if the
/// segment ends there normally. A segment that was about to be reused contains messages of its
/// new position.
fn find_next_intact(bytes: &[u8], at: usize, segment: u64, intact_to: usize) -> Option<usize> {
    let intact_to = intact_to.min(bytes.len());
    let rest = bytes.get(at..intact_to)?;
    // Too little room for a message, at a segment's end.
    if rest.iter().all(|byte| *byte == 0) || at + SledMessage::RED_ZONE > SEGMENT {
        return None;
    }
    let found = (at + 1..intact_to).find_map(|to| {
        let message = SledMessage::read(bytes, to)?;
        let room = to - at >= SledMessage::min_bytes(segment);
        (room || message.segment != segment).then_some((to, message))
    });
    let to = match found {
        Some((_, message)) if message.segment != segment => return None,
        Some((to, _)) => to,
        None => intact_to,
    };
    (intact_to < SEGMENT || !has_unwritten_sector(bytes, at, to)).then_some(to)
}

/// A power cut can leave out sectors that were not synced. What depends on them was never
/// acknowledged, as the journal shows. Damage rarely makes a whole sector of zeros.
fn has_unwritten_sector(bytes: &[u8], from: usize, to: usize) -> bool {
    let first = from.next_multiple_of(SECTOR);
    let sectors = bytes.get(first..to).unwrap_or_default();
    let mut sectors = sectors.chunks_exact(SECTOR);
    sectors.any(|sector| sector.iter().all(|byte| *byte == 0))
}
