//! A copy of what sled's recovery may overwrite, made before sled opens its files and kept
//! until the decision to start. Recovery zeroes in place everything in its log after the first
//! damage, and segments without live pages. A refused start must leave everything unchanged.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::log_format::{SEGMENT, SledLog};
use super::recovery_survey::RecoverySurvey;
use super::store_paths::{StorePaths, broken_snapshots, files, io_error, remove_dir, snapshots};
use crate::store::StoreOpenError;

/// Above this the copy would cost too much at a start. A refusal is still a refusal, but the
/// damaged bytes are then as sled left them.
const MAX_COPIED_SEGMENTS: usize = (1 << 30) / SEGMENT;

#[derive(Debug)]
pub(crate) struct SledFileBackup {
    paths: StorePaths,
    /// The length of sled's file; 0 when nothing was copied.
    len: u64,
    /// Numbers of the segments that were copied.
    copied: Vec<u64>,
    /// Numbers of the segments that were empty; a restore zeroes them again.
    empty: Vec<u64>,
}

/// Moves or copies a file.
type FileTransfer = fn(&Path, &Path) -> io::Result<()>;

impl SledFileBackup {
    /// Starts a backup and moves broken snapshots aside, so that sled does not use them.
    pub(crate) fn make(paths: &StorePaths) -> Result<Self, StoreOpenError> {
        let backup = Self {
            paths: paths.clone(),
            len: 0,
            copied: Vec::new(),
            empty: Vec::new(),
        };
        // A crash during a start may have left them there.
        transfer_all(&backup.broken_snapshot_dir(), &paths.sled, rename)?;
        remove_dir(&paths.backup_dir)?;
        if paths.db_file().exists() {
            let aside = backup.broken_snapshot_dir();
            fs::create_dir_all(&aside).map_err(io_error("create", &aside))?;
            for path in broken_snapshots(&paths.sled)? {
                let to = aside.join(path.file_name().unwrap_or_default());
                fs::rename(&path, &to).map_err(io_error("move", &path))?;
            }
        }
        Ok(backup)
    }

    /// Whether a broken snapshot was moved aside.
    pub(crate) fn has_broken(&self) -> Result<bool, StoreOpenError> {
        Ok(!files(&self.broken_snapshot_dir())?.is_empty())
    }

    /// Copies the segments that recovery may write to, according to the survey.
    pub(crate) fn copy(&mut self, log: &SledLog, survey: &RecoverySurvey) {
        if let Err(error) = self.try_copy(log, survey) {
            tracing::warn!(%error, "opening sled without a backup of its files");
            self.len = 0;
        }
    }

    fn try_copy(&mut self, log: &SledLog, survey: &RecoverySurvey) -> io::Result<()> {
        if survey.written_segments.len() > MAX_COPIED_SEGMENTS {
            return Err(io::Error::other(
                "the segments written since the last start are too large to copy",
            ));
        }
        self.copied.clone_from(&survey.written_segments);
        self.empty.clone_from(&survey.empty);
        if self.copied.len() as u64 * SEGMENT as u64 > free_disk_bytes(&self.paths)? / 2 {
            return Err(io::Error::other(
                "not enough free disk space for the backup",
            ));
        }
        let to = File::create(self.copy_file())?;
        for number in &self.copied {
            to.write_all_at(&log.segment(*number)?, number * SEGMENT as u64)?;
        }
        for path in snapshots(&self.paths.sled).map_err(io::Error::other)? {
            let name = path.file_name().unwrap_or_default();
            fs::copy(&path, self.paths.backup_dir.join(name))?;
        }
        self.len = log.len;
        Ok(())
    }

    /// Restores everything to its original state.
    pub(crate) fn restore_original(self) -> Result<(), StoreOpenError> {
        self.restore(&self.paths.sled, rename)?;
        remove_dir(&self.paths.backup_dir)
    }

    fn restore(&self, sled: &Path, transfer: FileTransfer) -> Result<(), StoreOpenError> {
        if self.len > 0 {
            for path in snapshots(sled)? {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
            transfer_all(&self.paths.backup_dir, sled, transfer)?;
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

    /// Removes the backup when the start continues. Broken snapshots are kept in the
    /// quarantine.
    pub(crate) fn discard(self) -> Result<Vec<PathBuf>, StoreOpenError> {
        let mut moved = Vec::new();
        for path in files(&self.broken_snapshot_dir())? {
            let quarantine = &self.paths.quarantine;
            fs::create_dir_all(quarantine).map_err(io_error("create", quarantine))?;
            let to = quarantine.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &to).map_err(io_error("move", &path))?;
            tracing::warn!(file = %to.display(), "moved a broken sled snapshot to quarantine");
            moved.push(to);
        }
        remove_dir(&self.paths.backup_dir)?;
        Ok(moved)
    }

    /// Makes a full copy of the original files in the quarantine, to investigate an accepted
    /// loss.
    pub(crate) fn copy_to_quarantine(&self, name: &str) -> Result<Option<PathBuf>, StoreOpenError> {
        let to = self.paths.quarantine.join(name);
        remove_dir(&to)?;
        let copied = copy_dir(&self.paths.sled, &to).map_err(io_error("copy", &to));
        let restored = copied.and_then(|()| self.restore(&to, copy));
        match restored {
            Ok(()) => Ok(Some(to)),
            Err(error) => {
                tracing::warn!(%error, "copying the damaged database to quarantine failed");
                Ok(None)
            }
        }
    }

    fn copy_file(&self) -> PathBuf {
        self.paths.backup_dir.join("db")
    }

    /// Directory of the broken snapshots during the start.
    fn broken_snapshot_dir(&self) -> PathBuf {
        self.paths.backup_dir.join("aside")
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop)
}

/// Transfers all snapshots of one directory to another.
fn transfer_all(from: &Path, to: &Path, transfer: FileTransfer) -> Result<(), StoreOpenError> {
    for path in snapshots(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        transfer(&path, &to).map_err(io_error("restore", &to))?;
    }
    Ok(())
}

/// Free bytes on the disk.
pub(crate) fn free_disk_bytes(paths: &StorePaths) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(&paths.dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Copies the files of a directory without its subdirectories.
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
