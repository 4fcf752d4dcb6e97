//! Long bodies (prompts over 64 KiB) stored beside the database: one file each, named by its
//! hash and synced before the commit that refers to it. Written by the task that handles the
//! request, never by the dispatcher.
//!
//! A body stays while a task claims it (recorded in the store) or while a request that brought
//! it is in progress (recorded here). When either ends, the body becomes a sweep candidate and
//! is removed if nothing else needs it. This covers the bodies of refused submissions, of
//! removed tasks, and of a crash between writing the file and the commit.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use crate::private_dir;

/// Longer bodies become files; shorter ones stay in the record.
pub(crate) const BODY_INLINE_MAX: usize = 64 * 1024;

/// SHA-256 of a body, which is also its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BodyHash(pub [u8; 32]);

impl BodyHash {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn file_name(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_file_name(name: &str) -> Option<Self> {
        let mut hash = [0; 32];
        let digits = name.as_bytes().chunks_exact(2);
        if name.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

/// The directory of bodies. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct BodyFiles {
    shared: Arc<BodyDirectory>,
}

#[derive(Debug)]
struct BodyDirectory {
    dir: PathBuf,
    state: Mutex<BodyFileState>,
}

#[derive(Debug, Default)]
struct BodyFileState {
    /// Bodies of requests in progress, and how many requests use each.
    pinned: HashMap<BodyHash, usize>,
    /// Bodies that may no longer be needed.
    sweep_candidates: BTreeSet<BodyHash>,
    bytes: u64,
    /// Readers of the whole directory. While there is one, no body is removed.
    readers: usize,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweptBodies {
    pub(crate) bodies: u64,
    pub(crate) bytes: u64,
}

/// Keeps all bodies while it lives, for an export that copies them.
#[derive(Debug)]
pub(crate) struct BodyReadGuard {
    shared: Arc<BodyDirectory>,
}

/// Keeps a body until its submission is answered. By then its claim is stored or the submission
/// is refused. The caller and the dispatcher loop own a clone each, because either may end
/// before the other.
#[derive(Clone, Debug)]
pub(crate) struct BodyPin {
    _pin: Arc<BodyPinGuard>,
}

#[derive(Debug)]
struct BodyPinGuard {
    shared: Arc<BodyDirectory>,
    hash: BodyHash,
}

impl BodyFiles {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        private_dir::create_or_restrict(&dir)?;
        if let Some(parent) = dir.parent() {
            File::open(parent)?.sync_all()?;
        }
        remove_partial_files(&dir)?;
        let state = BodyFileState::scan_dir(&dir)?;
        let state = Mutex::new(state);
        Ok(Self {
            shared: Arc::new(BodyDirectory { dir, state }),
        })
    }

    /// The directory without changes or checks, for read-only use.
    pub(crate) fn open_read_only(dir: PathBuf) -> Self {
        let state = Mutex::default();
        Self {
            shared: Arc::new(BodyDirectory { dir, state }),
        }
    }

    /// Stores the body durably. Idempotent; blocks on the disk.
    pub(crate) fn store(&self, bytes: &[u8]) -> io::Result<BodyPin> {
        let hash = BodyHash::of(bytes);
        // From here on a sweep keeps the body, so a file that exists below stays.
        let pinned = BodyPin::new(&self.shared, hash);
        let (dir, path) = (&self.shared.dir, self.shared.path(hash));
        if !path.exists() {
            // Two writers of the same body write the same bytes; each renames its own file.
            let partial = dir.join(format!("{}.half", uuid::Uuid::now_v7()));
            let written = write_synced(&partial, bytes)
                .and_then(|()| self.shared.publish_file(&partial, &path));
            if let Err(error) = written {
                // The partial file would waste space on a disk that may be full.
                drop(fs::remove_file(&partial));
                return Err(error);
            }
        }
        // Sync also if the file exists: another writer may have renamed it without syncing the
        // name yet.
        File::open(dir)?.sync_all()?;
        Ok(pinned)
    }

    /// Reads a body and checks it against its hash. Blocks on the disk.
    pub(crate) fn load(&self, hash: BodyHash) -> io::Result<String> {
        let bytes = self.load_bytes(hash)?;
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Like `load`, but returns the bytes, for an export.
    pub(crate) fn load_bytes(&self, hash: BodyHash) -> io::Result<Vec<u8>> {
        let bytes = fs::read(self.shared.path(hash))?;
        if BodyHash::of(&bytes) == hash {
            Ok(bytes)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a stored body file does not match its hash",
            ))
        }
    }

    /// Keeps all present bodies until the returned guard is dropped.
    pub(crate) fn read_guard(&self) -> BodyReadGuard {
        self.shared.lock().readers += 1;
        BodyReadGuard {
            shared: Arc::clone(&self.shared),
        }
    }

    /// The length of a body; 0 if it does not exist.
    pub(crate) fn len(&self, hash: BodyHash) -> u64 {
        fs::metadata(self.shared.path(hash)).map_or(0, |file| file.len())
    }

    /// Marks a body for the next sweep, because a task that claimed it was removed.
    pub(crate) fn add_sweep_candidate(&self, hash: BodyHash) {
        self.shared.lock().sweep_candidates.insert(hash);
    }

    /// Bytes on disk of all bodies.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// Removes the bodies that are no longer needed. `claimed` looks in the store and returns
    /// true if the answer is unknown. Blocks on the disk.
    pub(crate) fn sweep(&self, claimed: impl Fn(BodyHash) -> bool) -> SweptBodies {
        let mut swept = SweptBodies::default();
        loop {
            // The lock covers the check and the removal, so a request cannot pin the body in
            // between.
            let mut state = self.shared.lock();
            if state.readers > 0 {
                return swept;
            }
            let Some(hash) = state.sweep_candidates.pop_first() else {
                return swept;
            };
            if state.pinned.contains_key(&hash) || claimed(hash) {
                continue;
            }
            let path = self.shared.path(hash);
            let len = fs::metadata(&path).map_or(0, |file| file.len());
            match fs::remove_file(&path) {
                Ok(()) => {
                    state.bytes = state.bytes.saturating_sub(len);
                    swept.bodies += 1;
                    swept.bytes += len;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The next start tries again.
                Err(error) => tracing::warn!(%error, "an unclaimed body file could not be removed"),
            }
        }
    }

    pub(crate) fn has_sweep_candidates(&self) -> bool {
        !self.shared.lock().sweep_candidates.is_empty()
    }
}

impl BodyPin {
    fn new(shared: &Arc<BodyDirectory>, hash: BodyHash) -> Self {
        *shared.lock().pinned.entry(hash).or_default() += 1;
        let shared = Arc::clone(shared);
        Self {
            _pin: Arc::new(BodyPinGuard { shared, hash }),
        }
    }
}

impl Drop for BodyReadGuard {
    fn drop(&mut self) {
        self.shared.lock().readers -= 1;
    }
}

impl Drop for BodyPinGuard {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(count) = state.pinned.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                state.pinned.remove(&self.hash);
                state.sweep_candidates.insert(self.hash);
            }
        }
    }
}

impl BodyDirectory {
    fn path(&self, hash: BodyHash) -> PathBuf {
        self.dir.join(hash.file_name())
    }

    /// Renames a complete body to its final name, and counts it unless another writer was
    /// first.
    fn publish_file(&self, partial: &Path, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        if path.exists() {
            return fs::remove_file(partial);
        }
        fs::rename(partial, path)?;
        state.bytes += fs::metadata(path)?.len();
        Ok(())
    }

    // A panic cannot leave the state half changed, so a poisoned lock is safe to use.
    fn lock(&self) -> MutexGuard<'_, BodyFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyFileState {
    /// Counts the bodies. After a start any of them may be left over from a crash, so all are
    /// candidates.
    fn scan_dir(dir: &Path) -> io::Result<Self> {
        let mut state = Self::default();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let hash = name.to_str().and_then(BodyHash::from_file_name);
            state.bytes += entry.metadata()?.len();
            state.sweep_candidates.extend(hash);
        }
        Ok(state)
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes files that a crash left half written; nothing refers to them.
fn remove_partial_files(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "half")
        {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_body(text: &str) -> String {
        text.repeat(BODY_INLINE_MAX + 1)
    }

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_body_is_kept_once_and_checked_when_read() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = BodyFiles::open(dir.path().join("bodies")).unwrap();
        let text = long_body("p");
        let first = bodies.store(text.as_bytes()).unwrap();
        let second = bodies.store(text.as_bytes()).unwrap();
        drop((first, second));
        let hash = BodyHash::of(text.as_bytes());
        assert_eq!(bodies.load(hash).unwrap(), text);
        assert_eq!(files(&dir.path().join("bodies")), 1);
        assert_eq!(bodies.bytes(), text.len() as u64);
        fs::write(dir.path().join("bodies").join(hash.file_name()), "other").unwrap();
        assert_eq!(
            bodies.load(hash).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_body_is_removed_when_no_request_or_task_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = BodyFiles::open(dir.path().to_owned()).unwrap();
        let (claimed, refused) = (long_body("c"), long_body("r"));
        let claim = BodyHash::of(claimed.as_bytes());
        let wanted = |hash| hash == claim;
        let first = bodies.store(claimed.as_bytes()).unwrap();
        let second = bodies.store(refused.as_bytes()).unwrap();
        let again = second.clone();
        drop((first, second));
        bodies.sweep(wanted);
        assert_eq!(files(dir.path()), 2, "one request is still in progress");
        drop(again);
        bodies.sweep(wanted);
        assert_eq!(files(dir.path()), 1);
        assert_eq!(bodies.load(claim).unwrap(), claimed);
        bodies.add_sweep_candidate(claim);
        let reading = bodies.read_guard();
        bodies.sweep(|_| false);
        assert_eq!(files(dir.path()), 1, "a reader keeps them");
        drop(reading);
        bodies.sweep(|_| false);
        assert_eq!((files(dir.path()), bodies.bytes()), (0, 0));
    }

    #[test]
    fn a_start_sweeps_bodies_left_by_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = BodyFiles::open(dir.path().to_owned()).unwrap();
        drop(bodies.store(long_body("a").as_bytes()).unwrap());
        drop(bodies.store(long_body("b").as_bytes()).unwrap());
        fs::write(dir.path().join("1234.half"), "half").unwrap();
        drop(bodies);
        let bodies = BodyFiles::open(dir.path().to_owned()).unwrap();
        assert_eq!(bodies.bytes(), 2 * long_body("a").len() as u64);
        let kept = BodyHash::of(long_body("b").as_bytes());
        bodies.sweep(|hash| hash == kept);
        assert_eq!(files(dir.path()), 1);
        assert!(!bodies.has_sweep_candidates());
    }
}
