//! A copy of sled's files, made before sled opens them and kept until the decision to start. sled's recovery overwrites
//! whatever it cannot read, in place; a start that is refused must leave the evidence as it was.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::preflight::{Places, io_error, snapshots};

/// Beyond this the copy would cost more at every start than it may ever be worth. A refusal stays a refusal: only the
/// damaged bytes are then as sled left them.
const LARGEST: u64 = 2 << 30;

#[derive(Debug)]
pub(super) struct Kept {
    places: Places,
    /// False when there was nothing to copy, or no room to.
    made: bool,
}

impl Kept {
    pub(super) fn make(places: &Places) -> Result<Self, OpenError> {
        remove_dir(&places.kept)?;
        let len = fs::metadata(places.db_file()).map_or(0, |meta| meta.len());
        let mut kept = Self {
            places: places.clone(),
            made: false,
        };
        if len == 0 || len > LARGEST {
            return Ok(kept);
        }
        match kept.copy() {
            Ok(()) => kept.made = true,
            Err(error) => {
                tracing::warn!(%error, "opening without a copy of the database beside it");
                remove_dir(&places.kept)?;
            }
        }
        Ok(kept)
    }

    fn copy(&self) -> io::Result<()> {
        fs::create_dir(&self.places.kept)?;
        for path in self.originals().map_err(io::Error::other)? {
            fs::copy(
                &path,
                self.places.kept.join(path.file_name().unwrap_or_default()),
            )?;
        }
        Ok(())
    }

    /// The start is refused: everything as it was.
    pub(super) fn put_back(self) -> Result<(), OpenError> {
        self.copy_back()?;
        self.discard()
    }

    /// As `put_back`, but the copy stays, for a second try at opening.
    pub(super) fn copy_back(&self) -> Result<(), OpenError> {
        if !self.made {
            return Ok(());
        }
        for path in snapshots(&self.places.sled)? {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        for path in list_files(&self.places.kept)? {
            let to = self.places.sled.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &to).map_err(io_error("restore", &to))?;
        }
        Ok(())
    }

    /// The start goes on without loss.
    pub(super) fn discard(self) -> Result<(), OpenError> {
        remove_dir(&self.places.kept)
    }

    /// The start goes on although something is missing: what there was is kept for whoever looks into it.
    pub(super) fn file_away(self, name: &str) -> Result<Option<PathBuf>, OpenError> {
        if !self.made {
            return Ok(None);
        }
        let quarantine = &self.places.quarantine;
        fs::create_dir_all(quarantine).map_err(io_error("create", quarantine))?;
        let to = quarantine.join(name);
        remove_dir(&to)?;
        fs::rename(&self.places.kept, &to).map_err(io_error("move", &to))?;
        Ok(Some(to))
    }

    fn originals(&self) -> Result<Vec<PathBuf>, OpenError> {
        let mut files = snapshots(&self.places.sled)?;
        files.extend(["db", "conf"].map(|name| self.places.sled.join(name)));
        Ok(files)
    }
}

fn list_files(dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io_error("list", dir)(error)),
    }
}

fn remove_dir(dir: &Path) -> Result<(), OpenError> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("remove", dir)(error)),
    }
}
