//! Decides what a directory holds: records plus the journal's tail, checked for gaps and against the watermark. Pure:
//! it reads nothing and changes nothing, so that a refusal leaves everything as it was.

use uuid::Uuid;

use super::journal::{Entry, Met};
use super::migrate::Standing;
use super::watermark::Mark;
use super::{CommitSeq, OpenError, StoreConfig, Unreadable};

/// What the journal says beyond the records.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub(super) applied: CommitSeq,
    /// Whole entries in order, without a gap, behind what was applied.
    pub(super) entries: Vec<Entry>,
    /// The last number that is there.
    pub(super) head: CommitSeq,
    /// The highest number seen anywhere, usable or not; new numbers start behind it.
    pub(super) highest: CommitSeq,
    /// The last entry was cut short. It was never acknowledged, since nothing follows it.
    pub(super) torn: bool,
    /// A whole entry, or a second broken one, stands behind a missing one: the missing one was durable once.
    pub(super) hole: bool,
}

impl Tail {
    pub(super) fn after(applied: CommitSeq) -> Self {
        Self {
            applied,
            head: applied,
            highest: applied,
            ..Self::default()
        }
    }

    /// Takes what the journal holds, in order. Entries up to `applied` are what a crash left of a cut.
    pub(super) fn meet(&mut self, met: Met) {
        if met.first <= self.applied {
            return;
        }
        self.highest = self.highest.max(met.first);
        match met.entry {
            Some(entry) => self.take(entry),
            None if self.torn => self.hole = true,
            None => self.torn = true,
        }
    }

    fn take(&mut self, entry: Entry) {
        self.highest = self.highest.max(entry.last);
        if self.torn || self.hole || entry.first.0 != self.head.0 + 1 {
            self.hole = true;
        } else {
            self.head = entry.last;
            self.entries.push(entry);
        }
    }

    /// Refuses when something is missing that was acknowledged. A torn tail alone is fine.
    pub(super) fn check(&self, mark: Option<Mark>) -> Result<(), OpenError> {
        let acknowledged = mark.map_or(CommitSeq::default(), |mark| mark.seq);
        if self.hole {
            Err(OpenError::JournalHole { after: self.head })
        } else if self.head < acknowledged {
            Err(OpenError::BehindWatermark {
                head: self.head,
                watermark: acknowledged,
            })
        } else {
            Ok(())
        }
    }
}

/// The records about the directory itself, as far as they are readable.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) applied: Result<Option<u64>, Unreadable>,
    pub(super) schema: Result<Option<u64>, Unreadable>,
    pub(super) incarnation: Result<Option<Uuid>, Unreadable>,
    pub(super) relay_epoch: Result<Option<u64>, Unreadable>,
    /// Where it stands between two schemas.
    pub(super) stands: Option<Standing>,
}

/// How this start goes on.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) incarnation: Uuid,
    pub(super) relay_epoch: u64,
    pub(super) fresh: bool,
    /// New numbers begin behind this one.
    pub(super) base: CommitSeq,
    /// What is missing, if the start goes on nevertheless.
    pub(super) loss: Option<OpenError>,
}

impl Facts {
    pub(super) fn decide(
        &self,
        tail: &Tail,
        mark: Option<Mark>,
        config: &StoreConfig,
    ) -> Result<Start, OpenError> {
        self.check_schema(config.schema.number())?;
        let acknowledged = mark.map_or(CommitSeq::default(), |mark| mark.seq);
        match self.find_loss(tail, mark) {
            Some(loss) if !config.accept_loss => Err(loss),
            // A number that was given once must not be given again with another meaning.
            Some(loss) => Ok(Start {
                incarnation: config.new_incarnation,
                relay_epoch: self.next_epoch(),
                fresh: false,
                base: tail.highest.max(acknowledged),
                loss: Some(loss),
            }),
            None => Ok(Start {
                incarnation: self
                    .incarnation
                    .ok()
                    .flatten()
                    .unwrap_or(config.new_incarnation),
                relay_epoch: self.next_epoch(),
                fresh: matches!(self.incarnation, Ok(None)),
                base: tail.head,
                loss: None,
            }),
        }
    }

    fn next_epoch(&self) -> u64 {
        self.relay_epoch.ok().flatten().unwrap_or(0) + 1
    }

    fn check_schema(&self, known: u16) -> Result<(), OpenError> {
        let newer = match self.schema {
            Ok(Some(found)) => u16::try_from(found).ok().filter(|found| *found > known),
            Err(Unreadable::NewerSchema(found)) => Some(found),
            Ok(None)
            | Err(
                Unreadable::Checksum
                | Unreadable::Short
                | Unreadable::Parts
                | Unreadable::Page
                | Unreadable::Step(_),
            ) => None,
        };
        newer.map_or(Ok(()), |found| Err(OpenError::NewerSchema { found, known }))
    }

    fn find_loss(&self, tail: &Tail, mark: Option<Mark>) -> Option<OpenError> {
        let unreadable = |what, bad: bool| bad.then_some(OpenError::MetaUnreadable { what });
        let found = tail
            .check(mark)
            .err()
            .or_else(|| unreadable("applied", self.applied.is_err()))
            .or_else(|| unreadable("relay epoch", self.relay_epoch.is_err()));
        found.or_else(|| match (self.incarnation, mark) {
            (Err(_), _) => Some(OpenError::MetaUnreadable {
                what: "incarnation",
            }),
            (Ok(None), _) if tail.head.0 > 0 => Some(OpenError::MetaUnreadable {
                what: "incarnation",
            }),
            (Ok(Some(found)), Some(mark)) if found != mark.incarnation => {
                let watermark = mark.incarnation;
                Some(OpenError::ForeignWatermark { found, watermark })
            }
            // The first start ends with the first watermark; a crash before that has acknowledged nothing.
            (Ok(Some(_)), None) if tail.head.0 > 1 => Some(OpenError::WatermarkMissing),
            (Ok(None), _) | (Ok(Some(_)), _) => None,
        })
    }
}
