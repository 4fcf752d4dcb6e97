//! Keeps paths beneath a root: no `..`, absolute path or symbolic link may lead outside. The
//! kernel checks every component while it opens the path, so nothing can be replaced between
//! the check and the use.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

/// The kernel may return EAGAIN when a component was renamed meanwhile.
const OPEN_TRIES: usize = 100;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Why a working directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CwdError {
    #[error(
        "the working directory {} is outside its root {}; choose a directory inside the root, or another root with --workspace",
        cwd.display(),
        root.display()
    )]
    Outside { cwd: PathBuf, root: PathBuf },
    #[error(
        "the working directory {} cannot be used: {source}; choose a directory that exists on this daemon's machine",
        cwd.display()
    )]
    Unusable { cwd: PathBuf, source: io::Error },
}

/// The directory that `cwd` names beneath `root`, with every link followed. An absolute path
/// must lie inside the root.
pub(super) fn resolve_cwd(root: &Path, cwd: &Path) -> Result<PathBuf, CwdError> {
    let outside = || CwdError::Outside {
        cwd: cwd.to_owned(),
        root: root.to_owned(),
    };
    let unusable = |source: io::Error| CwdError::Unusable {
        cwd: root.join(cwd),
        source,
    };
    let inner = if cwd.is_absolute() {
        strip_root(root, cwd).ok_or_else(outside)?
    } else {
        cwd.to_owned()
    };
    let inner = if inner.as_os_str().is_empty() {
        Path::new(".")
    } else {
        &inner
    };
    let base = open(root, DIRECTORY, Mode::empty()).map_err(|error| unusable(error.into()))?;
    match open_beneath(&base, inner, DIRECTORY) {
        Ok(directory) => opened_path(&directory).map_err(unusable),
        Err(Errno::XDEV | Errno::LOOP) => Err(outside()),
        // The kernel or a sandbox does not support openat2. This check is not safe against
        // concurrent renames.
        Err(Errno::NOSYS | Errno::PERM) => {
            let resolved = root.join(inner).canonicalize().map_err(unusable)?;
            let root = root.canonicalize().map_err(unusable)?;
            if resolved.starts_with(root) {
                Ok(resolved)
            } else {
                Err(outside())
            }
        }
        Err(error) => Err(unusable(error.into())),
    }
}

/// Checks that a root can be used and returns its path without links.
pub(crate) fn check_root(path: &Path) -> io::Result<PathBuf> {
    let resolved = path.canonicalize()?;
    open(&resolved, DIRECTORY, Mode::empty())?;
    Ok(resolved)
}

/// Makes an absolute path relative to the root. The path may spell the root with symbolic
/// links.
fn strip_root(root: &Path, cwd: &Path) -> Option<PathBuf> {
    if let Ok(inner) = cwd.strip_prefix(root) {
        return Some(inner.to_owned());
    }
    let resolved = cwd.canonicalize().ok()?;
    let root = root.canonicalize().ok()?;
    Some(resolved.strip_prefix(root).ok()?.to_owned())
}

/// Opens a path if every component stays beneath `base`.
pub(crate) fn open_beneath(base: &OwnedFd, inner: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..OPEN_TRIES {
        match openat2(base, inner, flags, Mode::empty(), resolve) {
            Err(error @ (Errno::AGAIN | Errno::INTR)) => last = error,
            done => return done,
        }
    }
    Err(last)
}

/// The current path of an open descriptor.
pub(crate) fn opened_path(opened: &OwnedFd) -> io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let path = rustix::fs::readlinkat(CWD, link, Vec::new())?;
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_inside_the_root_resolve_and_paths_outside_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (root, other) = (dir.join("root"), dir.join("rooted"));
        for made in [&root, &root.join("a/b"), &other] {
            std::fs::create_dir_all(made).unwrap();
        }
        symlink("a/b", root.join("inner")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink(&other, root.join("away")).unwrap();
        symlink("/proc/self/cwd", root.join("magic")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();

        let resolved = |cwd: &str| resolve_cwd(&root, Path::new(cwd));
        assert_eq!(resolved("").unwrap(), root);
        assert_eq!(resolved("a/b").unwrap(), root.join("a/b"));
        assert_eq!(resolved("a/../a").unwrap(), root.join("a"));
        assert_eq!(resolved("inner").unwrap(), root.join("a/b"));
        assert_eq!(
            resolved(root.join("a").to_str().unwrap()).unwrap(),
            root.join("a")
        );
        let neighbour = other.to_str().unwrap();
        for escape in [
            "..",
            "a/../..",
            "up",
            "up/rooted",
            "away",
            "magic",
            "/",
            neighbour,
        ] {
            let refused = resolved(escape);
            assert!(matches!(refused, Err(CwdError::Outside { .. })), "{escape}");
        }
        for unusable in ["missing", "file", "a/missing"] {
            let refused = resolved(unusable);
            assert!(
                matches!(refused, Err(CwdError::Unusable { .. })),
                "{unusable}"
            );
        }
    }

    #[test]
    fn a_root_spelled_with_links_is_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("root/a")).unwrap();
        symlink("root", dir.join("other")).unwrap();
        let found = resolve_cwd(&dir.join("root"), &dir.join("other/a")).unwrap();
        assert_eq!(found, dir.join("root/a"));
    }
}
