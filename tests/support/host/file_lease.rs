//! A kernel lease on a file, as file servers take it. Any process that opens or executes the
//! file waits until the lease is released, or for 45 s by the kernel's default. Tests use it to
//! make a program that cannot be started for a while.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Sets the signal that reports a waiting process; libc has no constant for it.
const F_SETSIG: libc::c_int = 10;

/// The lease lasts until the file is dropped. None while another process has the file open.
#[expect(unsafe_code, reason = "neither std nor rustix has leases on files")]
pub fn lock_with_file_lease(path: &Path) -> Option<File> {
    let file = File::open(path).expect("the file exists");
    let fd = file.as_raw_fd();
    // SAFETY: both calls take a descriptor that is open and a number, and touch no memory.
    let (signal, lease) = unsafe {
        // SIGURG does nothing by default. The usual signal would end this process.
        let signal = libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        (signal, libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK))
    };
    ((signal, lease) == (0, 0)).then_some(file)
}
