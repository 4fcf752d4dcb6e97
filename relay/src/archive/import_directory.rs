//! The state of an import on disk, and what a start does with it: refuse, complete or remove.
//!
//! A directory that an import fills contains `importing` until the import is complete, and
//! `imported` from then on. An import into a running relay fills `incoming/` inside its data
//! directory. The next start replaces the old data with it by a series of renames, each of
//! which can be repeated after a crash.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::import::{ImportError, io_error};
use crate::store;

pub(super) const IMPORTING: &str = "importing";
pub(super) const IMPORTED: &str = "imported";
const INCOMING: &str = "incoming";
/// The directories that an import creates, beside its marker.
pub(super) const DATA_PARTS: [&str; 3] = ["store", "output", "bodies"];

/// The directory that an import into the running relay of `data` fills.
pub(super) fn incoming_dir(data: &Path) -> PathBuf {
    data.join(INCOMING)
}

/// The error for a directory with an unfinished import.
pub(super) fn interrupted_import(data: &Path) -> Option<ImportError> {
    let marker = data.join(IMPORTING);
    marker.exists().then(|| ImportError::Interrupted {
        dir: data.to_owned(),
    })
}

/// Handles an import on disk. Must run before anything in the directory is opened.
pub(crate) fn settle_import(data: &Path) -> Result<(), ImportError> {
    if let Some(interrupted) = interrupted_import(data) {
        return Err(interrupted);
    }
    let incoming = incoming_dir(data);
    if !incoming.exists() {
        return Ok(());
    }
    if incoming.join(IMPORTED).exists() {
        return replace_data(data, &incoming);
    }
    tracing::warn!(dir = %incoming.display(), "removing an interrupted import");
    clear(data)
}

/// Removes the files of an import that did not finish or is no longer needed.
pub(super) fn clear(data: &Path) -> Result<(), ImportError> {
    let incoming = incoming_dir(data);
    match fs::remove_dir_all(&incoming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", &incoming)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn replace_data(data: &Path, incoming: &Path) -> Result<(), ImportError> {
    // No other process may use or replace these stores meanwhile. After a crash only one may
    // exist.
    let stores = [data.join("store"), incoming.join("store")];
    let existing = stores.iter().filter(|store| store.exists());
    let _locks = existing
        .map(|store| store::lock_directory(store))
        .collect::<Result<Vec<_>, _>>()?;
    let name = fs::read_to_string(incoming.join(IMPORTED))
        .map_err(io_error("read", &incoming.join(IMPORTED)))?;
    let before = data.join(format!("before-import-{}", name.trim()));
    fs::create_dir_all(&before).map_err(io_error("create", &before))?;
    for part in DATA_PARTS {
        let (new, old) = (incoming.join(part), data.join(part));
        if !new.exists() {
            continue;
        }
        if old.exists() {
            fs::rename(&old, before.join(part)).map_err(io_error("move", &old))?;
        }
        fs::rename(&new, &old).map_err(io_error("move", &new))?;
        sync(data)?;
    }
    let marker = data.join(IMPORTED);
    fs::rename(incoming.join(IMPORTED), &marker).map_err(io_error("move", &marker))?;
    clear(data)?;
    sync(data)?;
    tracing::info!(dir = %data.display(), before = %before.display(), "imported data replaced the old data");
    Ok(())
}

pub(super) fn sync(dir: &Path) -> Result<(), ImportError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))
}
