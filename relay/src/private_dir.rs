//! Directories that only the owner may read, because they contain prompts and the agents'
//! answers.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

const OWNER_ONLY_MODE: u32 = 0o700;

/// Creates the directory and its parents. An existing directory keeps its mode, because it may
/// belong to somebody else.
pub(crate) fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(OWNER_ONLY_MODE)
        .create(path)
}

/// Creates a directory inside the relay's data directory, or restricts its mode if it exists
/// with wider permissions.
pub(crate) fn create_or_restrict(path: &Path) -> io::Result<()> {
    create_private(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY_MODE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_directories_are_restricted_and_existing_ones_keep_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (open, new) = (dir.path().join("open"), dir.path().join("a/new"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        create_private(&open).unwrap();
        create_or_restrict(&new).unwrap();
        assert_eq!((mode(&open), mode(&new)), (0o755, 0o700));
        create_or_restrict(&open).unwrap();
        assert_eq!(mode(&open), 0o700);
    }
}
