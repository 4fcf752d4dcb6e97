//! Tells everything that is stored as of one commit, beside a running relay and without holding it back.
//!
//! First every record, read one page after the other while changes go on; then, from the journal, every change since
//! the telling began. Who takes them in this order ends with the state at the number that is returned: what was not
//! changed meanwhile was read as it is, and of everything else the journal has the last word.

use bytes::Bytes;

use super::journal::{Entries, Entry, JournalError, Met};
use super::pins::Pin;
use super::{Change, CommitSeq, Key, KeyRange, Kind, Page, ReadError, Stopped, Store, Unreadable};

/// Records read at one time.
const PAGE: usize = 256;

/// One piece of a telling. Facts about the directory itself (`Meta`) are not told.
#[derive(Debug)]
pub enum Told {
    Record(Key, Bytes),
    /// A record that cannot be read, or a damaged page with an unknown number of them. A later `Change` of the same key
    /// mends it.
    Unreadable(Option<Key>, Unreadable),
    Change(Change),
}

/// Why a telling ended early. The listener's own error comes back as it is.
#[derive(Debug, thiserror::Error)]
pub enum TellError<E> {
    #[error("{0}")]
    Listener(E),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Stopped(#[from] Stopped),
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
    pub fn tell<E>(
        &self,
        mut listener: impl FnMut(Told) -> Result<(), E>,
    ) -> Result<CommitSeq, TellError<E>> {
        let pin = Pin::take(&self.shared, || self.durable());
        self.tell_records(&mut listener)?;
        // A record may have been read before its commit was durable; nothing may be told that could still be lost.
        let read = self.appended();
        if self.durable() < read {
            self.wait_until(read)?;
        }
        let head = self.durable();
        self.tell_changes(&pin, head, &mut listener)?;
        Ok(head)
    }

    /// The same as [`Store::wait_durable`] for a thread outside a runtime.
    pub(super) fn wait_until(&self, seq: CommitSeq) -> Result<(), Stopped> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime
            .map_err(|_| Stopped)?
            .block_on(self.wait_durable(seq))
    }

    fn tell_records<E>(
        &self,
        listener: &mut impl FnMut(Told) -> Result<(), E>,
    ) -> Result<(), TellError<E>> {
        let (range, mut page) = (KeyRange::everything(), Page::first(PAGE));
        loop {
            let scan = self.scan(&range, &page)?;
            for (key, why) in scan.passed_over {
                listener(Told::Unreadable(key, why)).map_err(TellError::Listener)?;
            }
            let last = scan.entries.last().map(|(key, _)| key.clone());
            let told = scan
                .entries
                .into_iter()
                .filter(|(key, _)| key.kind() != Kind::Meta);
            for (key, body) in told {
                listener(Told::Record(key, body)).map_err(TellError::Listener)?;
            }
            match last.filter(|_| scan.more) {
                Some(last) => page.after = Some(last),
                None => return Ok(()),
            }
        }
    }

    fn tell_changes<E>(
        &self,
        pin: &Pin,
        head: CommitSeq,
        listener: &mut impl FnMut(Told) -> Result<(), E>,
    ) -> Result<(), TellError<E>> {
        if !pin.holds() {
            return Err(TellError::FellBehind);
        }
        let mut at = pin.from;
        let from = CommitSeq(at.0 + 1);
        let schema = self.shared.config.schema;
        let mut entries = Entries::between(&self.shared.disk.journal, schema, from, head);
        while at < head {
            let entry = next_entry(&mut entries, at).map_err(|after| {
                if pin.holds() {
                    TellError::Journal { after }
                } else {
                    TellError::FellBehind
                }
            })?;
            at = entry.last;
            for change in entry.changes.iter().filter_map(Change::from_raw) {
                listener(Told::Change(change)).map_err(TellError::Listener)?;
            }
        }
        Ok(())
    }
}

/// The entry directly behind `at`, or `at` if it is not there or not whole.
fn next_entry(entries: &mut Entries<'_>, at: CommitSeq) -> Result<Entry, CommitSeq> {
    match entries.next() {
        Ok(Some(Met {
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
