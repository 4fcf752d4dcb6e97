//! A copy of what sled's recovery may overwrite, made before sled opens its files and kept until the decision to start.
//! Recovery zeroes, in place, all of its log that stands behind the first damage, and what holds no page any more; a
//! start that is refused must leave everything as it was.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::log_format::{SEGMENT, SledLog};
use super::recovery_survey::RecoverySurvey;
use super::store_paths::{StorePaths, broken_snapshots, files, io_error, remove_dir, snapshots};
use crate::store::StoreOpenError;

/// Beyond this the copy would cost more at a start than it may ever be worth. A refusal stays a refusal: only the
/// damaged bytes are then as sled left them.
const MAX_COPIED_SEGMENTS: usize = (1 << 30) / SEGMENT;

#[derive(Debug)]
pub(crate) struct SledFileBackup {
    places: StorePaths,
    /// The length of sled's file; 0 when nothing was copied.
    len: u64,
    /// Segments that were copied, by number.
    copied: Vec<u64>,
    /// Segments that were empty, by number: they are emptied again.
    empty: Vec<u64>,
}

/// How a file gets from here to there.
type FileTransfer = fn(&Path, &Path) -> io::Result<()>;

impl SledFileBackup {
    /// With snapshots that are broken out of sled's sight, so that it does not take them for whole ones.
    pub(crate) fn make(places: &StorePaths) -> Result<Self, StoreOpenError> {
        let kept = Self {
            places: places.clone(),
            len: 0,
            copied: Vec::new(),
            empty: Vec::new(),
        };
        // A crash in the middle of a start may have left them there.
        transfer_all(&kept.broken_snapshot_dir(), &places.sled, rename)?;
        remove_dir(&places.backup_dir)?;
        if places.db_file().exists() {
            let aside = kept.broken_snapshot_dir();
            fs::create_dir_all(&aside).map_err(io_error("create", &aside))?;
            for path in broken_snapshots(&places.sled)? {
                let to = aside.join(path.file_name().unwrap_or_default());
                fs::rename(&path, &to).map_err(io_error("move", &path))?;
            }
        }
        Ok(kept)
    }

    /// Whether a broken snapshot was set aside.
    pub(crate) fn has_broken(&self) -> Result<bool, StoreOpenError> {
        Ok(!files(&self.broken_snapshot_dir())?.is_empty())
    }

    /// Copies what the survey says that recovery may write to.
    pub(crate) fn copy(&mut self, log: &SledLog, survey: &RecoverySurvey) {
        if let Err(error) = self.try_copy(log, survey) {
            tracing::warn!(%error, "opening without a copy of what sled may overwrite");
            self.len = 0;
        }
    }

    fn try_copy(&mut self, log: &SledLog, survey: &RecoverySurvey) -> io::Result<()> {
        if survey.written_segments.len() > MAX_COPIED_SEGMENTS {
            return Err(io::Error::other(
                "too much was written since the last start",
            ));
        }
        self.copied.clone_from(&survey.written_segments);
        self.empty.clone_from(&survey.empty);
        if self.copied.len() as u64 * SEGMENT as u64 > free_disk_bytes(&self.places)? / 2 {
            return Err(io::Error::other("the disk has no room for it"));
        }
        let to = File::create(self.copy_file())?;
        for number in &self.copied {
            to.write_all_at(&log.segment(*number)?, number * SEGMENT as u64)?;
        }
        for path in snapshots(&self.places.sled).map_err(io::Error::other)? {
            let name = path.file_name().unwrap_or_default();
            fs::copy(&path, self.places.backup_dir.join(name))?;
        }
        self.len = log.len;
        Ok(())
    }

    /// Everything as it was.
    pub(crate) fn restore_original(self) -> Result<(), StoreOpenError> {
        self.restore(&self.places.sled, rename)?;
        remove_dir(&self.places.backup_dir)
    }

    fn restore(&self, sled: &Path, transfer: FileTransfer) -> Result<(), StoreOpenError> {
        if self.len > 0 {
            for path in snapshots(sled)? {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
            transfer_all(&self.places.backup_dir, sled, transfer)?;
            let db = sled.join("db");
            self.write_back(&db).map_err(io_error("restore", &db))?;
        }
        transfer_all(&self.broken_snapshot_dir(), sled, transfer)
    }

    fn write_back(&self, to: &Path) -> io::Result<()> {
        let (from, db) = (
            SledLog::open(&self.copy_file())?,
            OpenOptions::new().write(true).open(to)?,
        );
        for number in &self.copied {
            db.write_all_at(&from.segment(*number)?, number * SEGMENT as u64)?;
        }
        let zeros = vec![0; SEGMENT];
        for number in &self.empty {
            db.write_all_at(&zeros, number * SEGMENT as u64)?;
        }
        db.set_len(self.len)?;
        db.sync_data()
    }

    /// The start goes on. Broken snapshots are kept for whoever wants to look at them.
    pub(crate) fn discard(self) -> Result<Vec<PathBuf>, StoreOpenError> {
        let mut moved = Vec::new();
        for path in files(&self.broken_snapshot_dir())? {
            let quarantine = &self.places.quarantine;
            fs::create_dir_all(quarantine).map_err(io_error("create", quarantine))?;
            let to = quarantine.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &to).map_err(io_error("move", &path))?;
            tracing::warn!(file = %to.display(), "moved a broken sled snapshot away");
            moved.push(to);
        }
        remove_dir(&self.places.backup_dir)?;
        Ok(moved)
    }

    /// A full copy of everything as it was, for whoever looks into the loss that is now accepted.
    pub(crate) fn copy_to_quarantine(&self, name: &str) -> Result<Option<PathBuf>, StoreOpenError> {
        let to = self.places.quarantine.join(name);
        remove_dir(&to)?;
        let copied = copy_dir(&self.places.sled, &to).map_err(io_error("copy", &to));
        let restored = copied.and_then(|()| self.restore(&to, copy));
        match restored {
            Ok(()) => Ok(Some(to)),
            Err(error) => {
                tracing::warn!(%error, "the damaged database could not be copied to quarantine");
                Ok(None)
            }
        }
    }

    fn copy_file(&self) -> PathBuf {
        self.places.backup_dir.join("db")
    }

    /// Where broken snapshots are meanwhile.
    fn broken_snapshot_dir(&self) -> PathBuf {
        self.places.backup_dir.join("aside")
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop)
}

/// All snapshots of one directory to another.
fn transfer_all(from: &Path, to: &Path, how: FileTransfer) -> Result<(), StoreOpenError> {
    for path in snapshots(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        how(&path, &to).map_err(io_error("restore", &to))?;
    }
    Ok(())
}

/// Bytes that are free on the disk.
pub(crate) fn free_disk_bytes(places: &StorePaths) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(&places.dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The files in a directory, without what is below it.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for path in files(from)
        .map_err(io::Error::other)?
        .iter()
        .filter(|path| path.is_file())
    {
        fs::copy(path, to.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
