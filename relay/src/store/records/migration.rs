//! Rewrites every record that an older version left, once, at the first start of a newer one. It goes through the
//! journal like any other change, so a crash at any moment leaves records of which each is old or new and whole; reads
//! bring up what is still old. How far it came is itself a record: the next start goes on there.

use super::key::RecordKey;
use super::schema::RecordSchema;
use crate::store::Journal;
use crate::store::{KeyRange, MetaKey, RecordKind, ScanPage, Store, StoreChange, StoreFailure};

/// Records read at one time.
const PAGE: usize = 64;
/// Bytes of records in one append, unless one alone has more.
const BATCH_BYTES: usize = 256 * 1024;

/// Where a directory stands between two numbers, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigrationState {
    /// The number that records are brought to.
    to_schema: u16,
    /// The last one that was; `None` when all are.
    last_key: Option<RecordKey>,
}

/// What a migration did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationSummary {
    pub to: u16,
    pub records: u64,
    /// Records that were left as they are because they could not be read, or not be brought up.
    pub left_unmigrated: u64,
}

impl MigrationState {
    pub(crate) fn done(to_schema: u16) -> Self {
        Self {
            to_schema,
            last_key: None,
        }
    }

    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let (to, key) = body.split_first_chunk::<2>()?;
        let upto = match key {
            [] => None,
            key => Some(RecordKey::decode(key)?),
        };
        let to = u16::from_be_bytes(*to);
        Some(Self {
            to_schema: to,
            last_key: upto,
        })
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut bytes = self.to_schema.to_be_bytes().to_vec();
        bytes.extend(self.last_key.iter().flat_map(RecordKey::encode));
        bytes
    }

    fn change(&self) -> StoreChange {
        StoreChange::Put(RecordKey::Meta(MetaKey::Migration), self.body())
    }
}

/// What is left to do in a directory whose record says `stands`; none is a directory of schema 1.
#[derive(Debug)]
pub(crate) struct SchemaMigration {
    to: u16,
    after: Option<RecordKey>,
}

impl SchemaMigration {
    pub(crate) fn due(schema: RecordSchema, stands: Option<MigrationState>) -> Option<Self> {
        let to = schema.number();
        match stands {
            None if to == 1 => None,
            Some(MigrationState {
                to_schema: at,
                last_key: None,
            }) if at >= to => None,
            // Half of the way to another number is no way to this one.
            Some(MigrationState {
                to_schema: at,
                last_key: upto,
            }) if at == to => Some(Self { to, after: upto }),
            None | Some(_) => Some(Self { to, after: None }),
        }
    }

    /// Returns when every record is durable in its new shape.
    pub(crate) fn run(
        self,
        store: &Store,
        journal: &mut Journal,
    ) -> Result<MigrationSummary, StoreFailure> {
        let (range, mut page) = (KeyRange::everything(), ScanPage::first(PAGE));
        page.after = self.after;
        tracing::info!(to = self.to, after = ?page.after, "bringing records to a newer schema");
        let mut migrated = MigrationSummary {
            to: self.to,
            ..MigrationSummary::default()
        };
        loop {
            let scan = store.scan(&range, &page).map_err(|error| failed(&error))?;
            migrated.left_unmigrated += scan.unreadable;
            let last = scan.entries.last().map(|(key, _)| key.clone());
            let records = scan.entries.into_iter();
            let changes: Vec<StoreChange> = records
                .filter(|(key, _)| key.kind() != RecordKind::Meta)
                .map(|(key, body)| StoreChange::Put(key, body.to_vec()))
                .collect();
            migrated.records += changes.len() as u64;
            append(journal, changes)?;
            let upto = last.filter(|_| scan.has_more);
            let stands = MigrationState {
                to_schema: self.to,
                last_key: upto.clone(),
            };
            append(journal, vec![stands.change()])?;
            page.after = match upto {
                Some(key) => Some(key),
                None => break,
            };
        }
        store
            .wait_durable_blocking(journal.last())
            .map_err(|error| failed(&error))?;
        tracing::info!(?migrated, "all records have the newer schema");
        Ok(migrated)
    }
}

/// In as many appends as their bytes need.
fn append(journal: &mut Journal, changes: Vec<StoreChange>) -> Result<(), StoreFailure> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for change in changes {
        if bytes > 0 && bytes + change.size() > BATCH_BYTES {
            let full = std::mem::take(&mut batch);
            journal.append(full).map_err(|error| failed(&error))?;
            bytes = 0;
        }
        bytes += change.size();
        batch.push(change);
    }
    if batch.is_empty() {
        return Ok(());
    }
    journal.append(batch).map_err(|error| failed(&error))?;
    Ok(())
}

fn failed(error: &dyn std::fmt::Display) -> StoreFailure {
    StoreFailure::new("migration", error)
}
