//! Small files that are there whole or not at all: written beside, synced, and put in place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces `dir/name`, so that it survives the machine.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = dir.join(name);
    let draft = path.with_extension("new");
    let mut file = open_private(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, &path)?;
    File::open(dir)?.sync_all()
}

/// An empty file that only this user may read.
pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
}
