//! Where an import stands on the disk, from its first file to its last: what a start refuses, takes over or clears away.
//!
//! A directory that an import fills holds `importing` until the import is whole, and `imported` from then on. An import
//! into a running relay fills `incoming/` inside its directory, and the next start puts that in the place of what was
//! there: one rename after the other, each of which can be repeated after a crash.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::import::{ImportError, io_error};
use crate::store;

pub(super) const IMPORTING: &str = "importing";
pub(super) const IMPORTED: &str = "imported";
const INCOMING: &str = "incoming";
/// What an import makes, beside its marker.
pub(super) const DATA_PARTS: [&str; 3] = ["store", "output", "bodies"];

/// The directory that an import into the running relay of `data` fills.
pub(super) fn incoming_dir(data: &Path) -> PathBuf {
    data.join(INCOMING)
}

/// Why a directory that an import did not finish is refused.
pub(super) fn interrupted_import(data: &Path) -> Option<ImportError> {
    let marker = data.join(IMPORTING);
    marker.exists().then(|| ImportError::Interrupted {
        dir: data.to_owned(),
    })
}

/// Before anything in the directory is opened.
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
    tracing::warn!(dir = %incoming.display(), "an import into this relay was interrupted; it is cleared away");
    clear(data)
}

/// Takes away what an import that did not finish left, or one that is no longer wanted.
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
    // Nobody else may be using what is put away, or be putting it away too. A crash may have left only one of them.
    let stores = [data.join("store"), incoming.join("store")];
    let there = stores.iter().filter(|store| store.exists());
    let _locks = there
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
    let note = data.join(IMPORTED);
    fs::rename(incoming.join(IMPORTED), &note).map_err(io_error("move", &note))?;
    clear(data)?;
    sync(data)?;
    tracing::info!(dir = %data.display(), before = %before.display(), "the imported data is in place");
    Ok(())
}

pub(super) fn sync(dir: &Path) -> Result<(), ImportError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))
}
