//! Small files that are replaced atomically: written beside the old one, synced, and renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Replaces `dir/name` and syncs it, so that it survives a power failure.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = dir.join(name);
    let draft = path.with_extension("new");
    let mut file = open_private(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, &path)?;
    File::open(dir)?.sync_all()
}

/// The contents of a regular file. A file that would block its reader, such as a pipe without a
/// writer, is refused at once.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file for reading.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// Creates an empty file that only this user may read.
pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn a_pipe_instead_of_a_file_does_not_block_the_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attempt");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        read(&path).unwrap_err();
        read(dir.path()).unwrap_err();
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        assert_eq!(read(&file).unwrap(), b"text");
    }
}
