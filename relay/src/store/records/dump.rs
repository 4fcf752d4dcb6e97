//! A dump of everything stored as of one commit, taken from a running relay without blocking
//! it.
//!
//! First it reads every record page by page while changes continue. Then it reads every change
//! since the dump began from the journal. Applying both in this order gives the state of the
//! returned number: a record that did not change was read correctly, and for every other record
//! the journal has the latest value.

use bytes::Bytes;

use crate::store::journal::entry::{FoundEntry, JournalEntries, JournalEntry, JournalError};
use crate::store::journal::pin::JournalPin;
use crate::store::{
    CommitSeq, KeyRange, RecordKey, RecordKind, ScanPage, Store, StoreChange, StoreReadError,
    StoreStopped, UnreadableReason,
};

/// Records read at a time.
const PAGE: usize = 256;

/// One item of a dump. Facts about the directory itself (`Meta`) are left out.
#[derive(Debug)]
pub enum DumpItem {
    Record(RecordKey, Bytes),
    /// A record that cannot be read, or a damaged page with an unknown number of records. A
    /// later `Change` of the same key replaces it.
    Unreadable(Option<RecordKey>, UnreadableReason),
    Change(StoreChange),
}

/// Why a dump ended early. The consumer's own error is returned unchanged.
#[derive(Debug, thiserror::Error)]
pub enum DumpError<E> {
    #[error("{0}")]
    Consumer(E),
    #[error(transparent)]
    Read(#[from] StoreReadError),
    #[error(transparent)]
    Stopped(#[from] StoreStopped),
    #[error(
        "too many changes were made while the records were being read, more than the journal may retain; read \
         faster (into a file on a local disk), or while the relay is less busy"
    )]
    FellBehind,
    #[error("the journal cannot be read after {after}; `baton verify` shows what is damaged")]
    Journal { after: CommitSeq },
}

impl Store {
    /// Passes every item to the consumer. Returns the commit whose state the items add up to.
    /// Blocks until done.
    pub fn dump<E>(
        &self,
        mut consumer: impl FnMut(DumpItem) -> Result<(), E>,
    ) -> Result<CommitSeq, DumpError<E>> {
        let pin = JournalPin::take(&self.shared, || self.durable());
        self.dump_records(&mut consumer)?;
        // A record may have been read before its commit was durable. A dump must not contain
        // anything that could still be lost.
        let read = self.appended();
        if self.durable() < read {
            self.wait_durable_blocking(read)?;
        }
        let head = self.durable();
        self.dump_changes(&pin, head, &mut consumer)?;
        Ok(head)
    }

    /// Like [`Store::wait_durable`], for a thread outside a runtime.
    pub(crate) fn wait_durable_blocking(&self, seq: CommitSeq) -> Result<(), StoreStopped> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime
            .map_err(|_| StoreStopped)?
            .block_on(self.wait_durable(seq))
    }

    fn dump_records<E>(
        &self,
        consumer: &mut impl FnMut(DumpItem) -> Result<(), E>,
    ) -> Result<(), DumpError<E>> {
        let (range, mut page) = (KeyRange::everything(), ScanPage::first(PAGE));
        loop {
            let scan = self.scan(&range, &page)?;
            for (key, why) in scan.skipped_records {
                consumer(DumpItem::Unreadable(key, why)).map_err(DumpError::Consumer)?;
            }
            let last = scan.entries.last().map(|(key, _)| key.clone());
            let records = scan
                .entries
                .into_iter()
                .filter(|(key, _)| key.kind() != RecordKind::Meta);
            for (key, body) in records {
                consumer(DumpItem::Record(key, body)).map_err(DumpError::Consumer)?;
            }
            match last.filter(|_| scan.has_more) {
                Some(last) => page.after = Some(last),
                None => return Ok(()),
            }
        }
    }

    fn dump_changes<E>(
        &self,
        pin: &JournalPin,
        head: CommitSeq,
        consumer: &mut impl FnMut(DumpItem) -> Result<(), E>,
    ) -> Result<(), DumpError<E>> {
        if !pin.is_active() {
            return Err(DumpError::FellBehind);
        }
        let mut at = pin.from;
        let from = CommitSeq(at.0 + 1);
        let schema = self.shared.config.schema;
        let mut entries = JournalEntries::between(&self.shared.disk.journal, schema, from, head);
        while at < head {
            let entry = next_dump_entry(&mut entries, at).map_err(|after| {
                if pin.is_active() {
                    DumpError::Journal { after }
                } else {
                    DumpError::FellBehind
                }
            })?;
            at = entry.last;
            for change in entry.changes.iter().filter_map(StoreChange::from_raw) {
                consumer(DumpItem::Change(change)).map_err(DumpError::Consumer)?;
            }
        }
        Ok(())
    }
}

/// The entry directly after `at`, or `at` as an error if it is missing or incomplete.
fn next_dump_entry(
    entries: &mut JournalEntries<'_>,
    at: CommitSeq,
) -> Result<JournalEntry, CommitSeq> {
    match entries.next() {
        Ok(Some(FoundEntry {
            entry: Some(entry), ..
        })) if entry.first.0 == at.0 + 1 => Ok(entry),
        Ok(_) => Err(at),
        Err(JournalError::Sled(error)) => {
            tracing::error!(%error, "the journal cannot be read");
            Err(at)
        }
        Err(JournalError::NewerSchema(_) | JournalError::Step(_)) => Err(at),
    }
}
