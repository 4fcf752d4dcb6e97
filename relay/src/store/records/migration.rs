//! Rewrites every record of an older schema once, at the first start of a newer version. The
//! changes go through the journal like any other, so after a crash each record is complete, in
//! its old or new schema, and reads migrate the old ones. The progress is itself a record: the
//! next start continues from there.

use super::key::RecordKey;
use super::schema::RecordSchema;
use crate::store::Journal;
use crate::store::{KeyRange, MetaKey, RecordKind, ScanPage, Store, StoreChange, StoreFailure};

/// Records read at a time.
const PAGE: usize = 64;
/// Bytes of records in one append, unless a single record is larger.
const BATCH_BYTES: usize = 256 * 1024;

/// The state of a migration, as recorded in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigrationState {
    /// The schema to which records are migrated.
    to_schema: u16,
    /// The last migrated record; `None` when all are done.
    last_key: Option<RecordKey>,
}

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationSummary {
    pub to: u16,
    pub records: u64,
    /// Records that were left unchanged because they could not be read or migrated.
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

/// The work left in a directory whose recorded state is `state`; `None` means schema 1.
#[derive(Debug)]
pub(crate) struct SchemaMigration {
    to: u16,
    after: Option<RecordKey>,
}

impl SchemaMigration {
    pub(crate) fn due(schema: RecordSchema, state: Option<MigrationState>) -> Option<Self> {
        let to = schema.number();
        match state {
            None if to == 1 => None,
            Some(MigrationState {
                to_schema: at,
                last_key: None,
            }) if at >= to => None,
            // A partial migration to another schema number does not count for this one.
            Some(MigrationState {
                to_schema: at,
                last_key: upto,
            }) if at == to => Some(Self { to, after: upto }),
            None | Some(_) => Some(Self { to, after: None }),
        }
    }

    /// Returns when every record is durable in the new schema.
    pub(crate) fn run(
        self,
        store: &Store,
        journal: &mut Journal,
    ) -> Result<MigrationSummary, StoreFailure> {
        let (range, mut page) = (KeyRange::everything(), ScanPage::first(PAGE));
        page.after = self.after;
        tracing::info!(to = self.to, after = ?page.after, "migrating records to a newer schema");
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
            let state = MigrationState {
                to_schema: self.to,
                last_key: upto.clone(),
            };
            append(journal, vec![state.change()])?;
            page.after = match upto {
                Some(key) => Some(key),
                None => break,
            };
        }
        store
            .wait_durable_blocking(journal.last())
            .map_err(|error| failed(&error))?;
        tracing::info!(?migrated, "schema migration finished");
        Ok(migrated)
    }
}

/// Appends the changes, in as many appends as their size requires.
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
