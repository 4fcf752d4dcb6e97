//! Long bodies (prompts over 64 KiB) beside the database: one file each, named by its hash, synced before the commit
//! that names it. Written by whoever makes the request, never by the dispatcher.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

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
}

/// The directory of bodies. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    dir: Arc<Path>,
}

impl Bodies {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        if let Some(parent) = dir.parent() {
            File::open(parent)?.sync_all()?;
        }
        remove_halves(&dir)?;
        Ok(Self { dir: dir.into() })
    }

    /// The directory as it lies, for one who only reads.
    pub(crate) fn look(dir: PathBuf) -> Self {
        Self { dir: dir.into() }
    }

    /// Makes the body durable. Idempotent; blocks on the disk.
    pub(crate) fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let path = self.dir.join(BodyHash::of(bytes).file_name());
        if path.exists() {
            // Another writer may have renamed it and not synced the name yet.
            return File::open(&self.dir)?.sync_all();
        }
        // Two writers of one body write the same bytes; each renames a file of its own.
        let half = self.dir.join(format!("{}.half", uuid::Uuid::now_v7()));
        let mut file = File::create_new(&half)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&half, &path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Reads a body back and checks it against its name. Blocks on the disk.
    pub(crate) fn load(&self, hash: BodyHash) -> io::Result<String> {
        let bytes = self.load_bytes(hash)?;
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The same as bytes, for one who carries it elsewhere.
    pub(crate) fn load_bytes(&self, hash: BodyHash) -> io::Result<Vec<u8>> {
        let bytes = fs::read(self.dir.join(hash.file_name()))?;
        if BodyHash::of(&bytes) == hash {
            Ok(bytes)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a stored body does not match its hash",
            ))
        }
    }
}

/// What a crash left half-written; nothing names it.
fn remove_halves(dir: &Path) -> io::Result<()> {
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

    #[test]
    fn a_body_is_kept_once_and_checked_when_read() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = Bodies::open(dir.path().join("bodies")).unwrap();
        let text = "p".repeat(BODY_INLINE_MAX + 1);
        bodies.keep(text.as_bytes()).unwrap();
        bodies.keep(text.as_bytes()).unwrap();
        let hash = BodyHash::of(text.as_bytes());
        assert_eq!(bodies.load(hash).unwrap(), text);
        assert_eq!(fs::read_dir(dir.path().join("bodies")).unwrap().count(), 1);
        fs::write(dir.path().join("bodies").join(hash.file_name()), "other").unwrap();
        assert_eq!(
            bodies.load(hash).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
