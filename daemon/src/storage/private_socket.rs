//! Unix sockets in private directories. A socket's path is limited to 107 bytes and a data
//! directory's may be longer, so both ends use a file descriptor of the directory.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// The directory belongs to this process, so an existing socket in it is a leftover.
pub(crate) fn bind(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let path = dir.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let dir_fd = open_dir(dir)?;
    let listener = UnixListener::bind(descriptor_path(&dir_fd, name))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(crate) fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty()).map(File::from)?)
}

/// The same file under a short path, while `dir` is open.
pub(crate) fn descriptor_path(dir: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}
