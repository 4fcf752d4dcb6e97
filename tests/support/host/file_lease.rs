//! A lease on a file, as file servers take it: whoever opens or executes the file waits until it is given back, or for
//! 45 s, as the kernel is set up. How a test makes a program that cannot be started just now.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Which signal tells of somebody who waits; libc has no name for it.
const F_SETSIG: libc::c_int = 10;

/// Held until the file is dropped. None while somebody else has it open.
#[expect(unsafe_code, reason = "neither std nor rustix has leases on files")]
pub fn lock_with_file_lease(path: &Path) -> Option<File> {
    let file = File::open(path).expect("the file is there");
    let fd = file.as_raw_fd();
    // SAFETY: both calls take a descriptor that is open and a number, and touch no memory.
    let (signal, lease) = unsafe {
        // One that does nothing by default: the usual one would end this process.
        let signal = libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        (signal, libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK))
    };
    ((signal, lease) == (0, 0)).then_some(file)
}
