//! Tells everything that is stored as of one commit, beside a running relay and without holding it back.
//!
//! First every record, read one page after the other while changes go on; then, from the journal, every change since
//! the telling began. Who takes them in this order ends with the state at the number that is returned: what was not
//! changed meanwhile was read as it is, and of everything else the journal has the last word.

use bytes::Bytes;

use crate::store::journal::entry::{FoundEntry, JournalEntries, JournalEntry, JournalError};
use crate::store::journal::pin::JournalPin;
use crate::store::{
    CommitSeq, KeyRange, RecordKey, RecordKind, ScanPage, Store, StoreChange, StoreReadError,
    StoreStopped, UnreadableReason,
};

/// Records read at one time.
const PAGE: usize = 256;

/// One piece of a telling. Facts about the directory itself (`Meta`) are not told.
#[derive(Debug)]
pub enum DumpItem {
    Record(RecordKey, Bytes),
    /// A record that cannot be read, or a damaged page with an unknown number of them. A later `Change` of the same key
    /// mends it.
    Unreadable(Option<RecordKey>, UnreadableReason),
    Change(StoreChange),
}

/// Why a telling ended early. The listener's own error comes back as it is.
#[derive(Debug, thiserror::Error)]
pub enum DumpError<E> {
    #[error("{0}")]
    Consumer(E),
    #[error(transparent)]
    Read(#[from] StoreReadError),
    #[error(transparent)]
    Stopped(#[from] StoreStopped),
    #[error(
        "the relay changed so much while its records were being read that its disk could not hold all of it; read \
         faster (into a file on a local disk), or when there is less work"
    )]
    FellBehind,
    #[error("the journal cannot be read behind {after}; `baton verify` says what is damaged")]
    Journal { after: CommitSeq },
}

impl Store {
    /// Returns the number of the commit that everything told amounts to. Blocks for as long as that takes.
    pub fn dump<E>(
        &self,
        mut listener: impl FnMut(DumpItem) -> Result<(), E>,
    ) -> Result<CommitSeq, DumpError<E>> {
        let pin = JournalPin::take(&self.shared, || self.durable());
        self.dump_records(&mut listener)?;
        // A record may have been read before its commit was durable; nothing may be told that could still be lost.
        let read = self.appended();
        if self.durable() < read {
            self.wait_durable_blocking(read)?;
        }
        let head = self.durable();
        self.dump_changes(&pin, head, &mut listener)?;
        Ok(head)
    }

    /// The same as [`Store::wait_durable`] for a thread outside a runtime.
    pub(crate) fn wait_durable_blocking(&self, seq: CommitSeq) -> Result<(), StoreStopped> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime
            .map_err(|_| StoreStopped)?
            .block_on(self.wait_durable(seq))
    }

    fn dump_records<E>(
        &self,
        listener: &mut impl FnMut(DumpItem) -> Result<(), E>,
    ) -> Result<(), DumpError<E>> {
        let (range, mut page) = (KeyRange::everything(), ScanPage::first(PAGE));
        loop {
            let scan = self.scan(&range, &page)?;
            for (key, why) in scan.skipped_records {
                listener(DumpItem::Unreadable(key, why)).map_err(DumpError::Consumer)?;
            }
            let last = scan.entries.last().map(|(key, _)| key.clone());
            let told = scan
                .entries
                .into_iter()
                .filter(|(key, _)| key.kind() != RecordKind::Meta);
            for (key, body) in told {
                listener(DumpItem::Record(key, body)).map_err(DumpError::Consumer)?;
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
        listener: &mut impl FnMut(DumpItem) -> Result<(), E>,
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
                listener(DumpItem::Change(change)).map_err(DumpError::Consumer)?;
            }
        }
        Ok(())
    }
}

/// The entry directly behind `at`, or `at` if it is not there or not whole.
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
