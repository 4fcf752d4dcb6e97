//! Prepares the directory before sled opens it: the lock, the files that would make sled's open
//! fail, and the directory syncs that sled never does.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::log_format;
use crate::private_dir;
use crate::store::StoreOpenError;

/// Attempts to take the lock. A relay that is closing gets time to release it; then a second
/// relay is refused.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// The paths of a store.
#[derive(Clone, Debug)]
pub(crate) struct StorePaths {
    pub(crate) dir: PathBuf,
    pub(crate) sled: PathBuf,
    pub(crate) watermark: PathBuf,
    pub(crate) backup_dir: PathBuf,
    /// A copy of `sled` for reading.
    pub(crate) copy_dir: PathBuf,
    pub(crate) quarantine: PathBuf,
    /// Marks that a write met a damaged page.
    pub(crate) damage_marker: PathBuf,
}

impl StorePaths {
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            sled: dir.join("sled"),
            watermark: dir.join("watermark"),
            backup_dir: dir.join("kept"),
            copy_dir: dir.join("looking"),
            quarantine: dir.join("quarantine"),
            damage_marker: dir.join("damaged"),
        }
    }

    /// sled's data file.
    pub(crate) fn db_file(&self) -> PathBuf {
        self.sled.join("db")
    }
}

/// Whether the directory's lock is taken. Creates nothing and does not wait.
pub(crate) fn is_locked(paths: &StorePaths) -> Result<bool, StoreOpenError> {
    let path = paths.dir.join("lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(io_error("lock", &path)(error.into())),
    }
}

/// Creates the directory and takes its lock, which lasts as long as the returned file is open.
pub(crate) fn lock(paths: &StorePaths) -> Result<File, StoreOpenError> {
    private_dir::create_or_restrict(&paths.dir).map_err(io_error("create", &paths.dir))?;
    let path = paths.dir.join("lock");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(&path).map_err(io_error("open", &path))?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => pause(),
            Err(error) => return Err(io_error("lock", &path)(error.into())),
        }
    }
    Err(StoreOpenError::Locked {
        dir: paths.dir.clone(),
    })
}

/// Waits between two attempts to take a lock. The kernel offers no wait with a time limit.
pub(crate) fn pause() {
    std::thread::park_timeout(LOCK_PAUSE);
}

/// Snapshots that sled would take for valid although they are not: half written by a crash
/// inside its open, or damaged. Everything else is left to sled, because a log without its
/// snapshot may be incomplete.
pub(crate) fn broken_snapshots(dir: &Path) -> Result<Vec<PathBuf>, StoreOpenError> {
    let mut broken = Vec::new();
    for path in snapshots(dir)? {
        if !log_format::is_whole_snapshot(&path).map_err(io_error("read", &path))? {
            broken.push(path);
        }
    }
    Ok(broken)
}

/// The snapshot that sled begins with.
pub(crate) fn newest_snapshot(dir: &Path) -> Result<Option<PathBuf>, StoreOpenError> {
    Ok(snapshots(dir)?.into_iter().max())
}

/// Removes an unfinished `conf`. sled writes it in two steps and its data file after it, so a
/// `conf` alone may be incomplete and would stop sled.
pub(crate) fn drop_unfinished_conf(paths: &StorePaths) -> Result<(), StoreOpenError> {
    let conf = paths.sled.join("conf");
    if conf.exists() && !paths.db_file().exists() {
        fs::remove_file(&conf).map_err(io_error("remove", &conf))?;
    }
    Ok(())
}

/// sled's `snap.*` files in a directory; none if it does not exist.
pub(crate) fn snapshots(dir: &Path) -> Result<Vec<PathBuf>, StoreOpenError> {
    let is_snapshot = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("snap."))
    };
    Ok(files(dir)?.into_iter().filter(is_snapshot).collect())
}

/// Counts the files that sled has moved out of its log, which it never syncs. There must be
/// none.
pub(crate) fn blob_files(paths: &StorePaths) -> Result<u64, StoreOpenError> {
    let count = files(&paths.sled.join("blobs"))?.len() as u64;
    if count > 0 {
        tracing::error!(
            count,
            "sled stores values in blob files, which it does not sync"
        );
    }
    Ok(count)
}

/// Everything in a directory; nothing if it does not exist.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>, StoreOpenError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("list", dir)(error)),
    };
    let paths: io::Result<Vec<PathBuf>> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    paths.map_err(io_error("list", dir))
}

/// Makes the names of all files durable. Before that, a power cut can remove the whole
/// directory.
pub(crate) fn sync_names(paths: &StorePaths) -> Result<(), StoreOpenError> {
    let parent = paths
        .dir
        .canonicalize()
        .map_err(io_error("resolve", &paths.dir))?;
    let mut all = vec![
        paths.sled.join("conf"),
        paths.sled.join("blobs"),
        paths.sled.clone(),
    ];
    all.extend(parent.ancestors().take(2).map(Path::to_owned));
    for path in all {
        let file = File::open(&path).map_err(io_error("open", &path))?;
        file.sync_all().map_err(io_error("sync", &path))?;
    }
    Ok(())
}

/// Marks the damage for the next start, which would otherwise meet the same page again. Best
/// effort: the caller is about to stop, and a missing marker costs one more attempt.
pub(crate) fn write_damage_marker(paths: &StorePaths, what: &str) {
    let written = fs::write(&paths.damage_marker, what)
        .and_then(|()| File::open(&paths.damage_marker)?.sync_all())
        .and_then(|()| File::open(&paths.dir)?.sync_all());
    if let Err(error) = written {
        tracing::error!(%error, "writing the damage marker failed");
    }
}

/// Removes the marker, because it was wrong or the damage is gone.
pub(crate) fn remove_damage_marker(paths: &StorePaths) -> Result<(), StoreOpenError> {
    match fs::remove_file(&paths.damage_marker) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", &paths.damage_marker)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) fn remove_dir(dir: &Path) -> Result<(), StoreOpenError> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("remove", dir)(error)),
    }
}

pub(crate) fn io_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreOpenError {
    let path = path.to_owned();
    move |source| StoreOpenError::Io { op, path, source }
}
