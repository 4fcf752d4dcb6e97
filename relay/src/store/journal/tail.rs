//! Decides what a directory contains: records plus the journal's tail, checked for gaps and
//! against the watermark. Pure: it neither reads nor changes files, so a refusal leaves
//! everything unchanged.

use uuid::Uuid;

use super::entry::{FoundEntry, JournalEntry};
use super::watermark::Watermark;
use crate::store::records::migration::MigrationState;
use crate::store::{CommitSeq, StoreConfig, StoreOpenError, UnreadableReason};

/// The part of the journal that is not in the records.
#[derive(Debug, Default)]
pub(crate) struct JournalTail {
    pub(crate) applied: CommitSeq,
    /// Complete entries in order, without a gap, after what was applied.
    pub(crate) entries: Vec<JournalEntry>,
    /// The last number that exists.
    pub(crate) head: CommitSeq,
    /// The highest number seen anywhere, usable or not; new numbers start after it.
    pub(crate) highest: CommitSeq,
    /// The last entry is torn. It was never acknowledged, because nothing follows it.
    pub(crate) torn: bool,
    /// A complete entry, or a second broken one, follows a missing one, so the missing one was
    /// durable once.
    pub(crate) hole: bool,
}

impl JournalTail {
    pub(crate) fn after_applied(applied: CommitSeq) -> Self {
        Self {
            applied,
            head: applied,
            highest: applied,
            ..Self::default()
        }
    }

    /// Adds an entry found in the journal, in order. Entries up to `applied` are left over from
    /// a truncation that a crash interrupted.
    pub(crate) fn add_found(&mut self, entry_found: FoundEntry) {
        if entry_found.first <= self.applied {
            return;
        }
        self.highest = self.highest.max(entry_found.first);
        match entry_found.entry {
            Some(entry) => self.add_entry(entry),
            None if self.torn => self.hole = true,
            None => self.torn = true,
        }
    }

    fn add_entry(&mut self, entry: JournalEntry) {
        self.highest = self.highest.max(entry.last);
        if self.torn || self.hole || entry.first.0 != self.head.0 + 1 {
            self.hole = true;
        } else {
            self.head = entry.last;
            self.entries.push(entry);
        }
    }

    /// Fails if something acknowledged is missing. A torn tail alone is not an error.
    pub(crate) fn check(&self, mark: Option<Watermark>) -> Result<(), StoreOpenError> {
        let acknowledged = mark.map_or(CommitSeq::default(), |mark| mark.seq);
        if self.hole {
            Err(StoreOpenError::JournalHole { after: self.head })
        } else if self.head < acknowledged {
            Err(StoreOpenError::BehindWatermark {
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
pub(crate) struct DirectoryFacts {
    pub(crate) applied: Result<Option<u64>, UnreadableReason>,
    pub(crate) schema: Result<Option<u64>, UnreadableReason>,
    pub(crate) incarnation: Result<Option<Uuid>, UnreadableReason>,
    pub(crate) relay_epoch: Result<Option<u64>, UnreadableReason>,
    /// The state of a schema migration.
    pub(crate) migration: Option<MigrationState>,
}

/// How this start continues.
#[derive(Debug)]
pub(crate) struct StartDecision {
    pub(crate) incarnation: Uuid,
    pub(crate) relay_epoch: u64,
    pub(crate) fresh: bool,
    /// New numbers begin after this one.
    pub(crate) base: CommitSeq,
    /// What is missing, if the start continues anyway.
    pub(crate) loss: Option<StoreOpenError>,
}

impl DirectoryFacts {
    pub(crate) fn decide(
        &self,
        tail: &JournalTail,
        mark: Option<Watermark>,
        config: &StoreConfig,
    ) -> Result<StartDecision, StoreOpenError> {
        self.check_schema(config.schema.number())?;
        let acknowledged = mark.map_or(CommitSeq::default(), |mark| mark.seq);
        match self.find_loss(tail, mark) {
            Some(loss) if !config.accept_loss => Err(loss),
            // A number must not be used again with another meaning.
            Some(loss) => Ok(StartDecision {
                incarnation: config.new_incarnation,
                relay_epoch: self.next_epoch(),
                fresh: false,
                base: tail.highest.max(acknowledged),
                loss: Some(loss),
            }),
            None => Ok(StartDecision {
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

    fn check_schema(&self, known: u16) -> Result<(), StoreOpenError> {
        let newer = match self.schema {
            Ok(Some(found)) => u16::try_from(found).ok().filter(|found| *found > known),
            Err(UnreadableReason::NewerSchema(found)) => Some(found),
            Ok(None)
            | Err(
                UnreadableReason::Checksum
                | UnreadableReason::Short
                | UnreadableReason::IncompleteParts
                | UnreadableReason::DamagedPage
                | UnreadableReason::Step(_),
            ) => None,
        };
        newer.map_or(Ok(()), |found| {
            Err(StoreOpenError::NewerSchema { found, known })
        })
    }

    fn find_loss(&self, tail: &JournalTail, mark: Option<Watermark>) -> Option<StoreOpenError> {
        let unreadable = |what, bad: bool| bad.then_some(StoreOpenError::MetaUnreadable { what });
        let loss = tail
            .check(mark)
            .err()
            .or_else(|| unreadable("applied", self.applied.is_err()))
            .or_else(|| unreadable("relay epoch", self.relay_epoch.is_err()));
        loss.or_else(|| match (self.incarnation, mark) {
            (Err(_), _) => Some(StoreOpenError::MetaUnreadable {
                what: "incarnation",
            }),
            (Ok(None), _) if tail.head.0 > 0 => Some(StoreOpenError::MetaUnreadable {
                what: "incarnation",
            }),
            (Ok(Some(found)), Some(mark)) if found != mark.incarnation => {
                let watermark = mark.incarnation;
                Some(StoreOpenError::ForeignWatermark { found, watermark })
            }
            // The first start ends with the first watermark. A crash before that has
            // acknowledged nothing.
            (Ok(Some(_)), None) if tail.head.0 > 1 => Some(StoreOpenError::WatermarkMissing),
            (Ok(None), _) | (Ok(Some(_)), _) => None,
        })
    }
}
