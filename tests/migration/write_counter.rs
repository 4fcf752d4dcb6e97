//! Counts every write of this process and kills it at a chosen one. It replaces functions of
//! the C library, which the standard library and sled then call, so the disk gets exactly the
//! data that the kernel had before the kill.
#![expect(
    unsafe_code,
    reason = "functions of the C library are replaced, and the replacements make the system call"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

/// Writes that are left to this process; practically unlimited unless a kill is set.
static WRITES_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// Kills this process with SIGKILL in the middle of its `n`th write from now on: half of it is
/// done.
pub(crate) fn kill_at_write(n: i64) {
    WRITES_LEFT.store(n, Ordering::SeqCst);
}

fn is_last_write() -> bool {
    match WRITES_LEFT.fetch_sub(1, Ordering::SeqCst) {
        more if more > 1 => false,
        1 => true,
        // Another thread is about to kill the process.
        _none => park_forever(),
    }
}

fn park_forever() -> ! {
    loop {
        std::thread::park();
    }
}

fn kill_self() -> ! {
    // SAFETY: takes no pointer; the signal cannot be caught.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    park_forever()
}

/// Runs `whole`, or `half` of it and then kills the process.
fn count_write(whole: impl FnOnce() -> c_long, half: impl FnOnce() -> c_long) -> c_long {
    if is_last_write() {
        half();
        kill_self();
    }
    whole()
}

/// # Safety
///
/// Same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller guarantees a valid buffer of `len` bytes, and only part of it is used.
    let call = |len: usize| unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, len, at) };
    count_write(|| call(len), || call(len / 2)) as isize
}

/// # Safety
///
/// Same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    // SAFETY: the caller guarantees a valid buffer of `len` bytes, and only part of it is used.
    let call = |len: usize| unsafe { libc::syscall(libc::SYS_write, fd, bytes, len) };
    // Standard output and the wakers of threads are not files.
    if fd <= libc::STDERR_FILENO || len == size_of::<u64>() {
        return call(len) as isize;
    }
    count_write(|| call(len), || call(len / 2)) as isize
}

/// # Safety
///
/// Same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    // SAFETY: takes no pointer.
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) };
    count_write(call, || 0) as c_int
}

/// # Safety
///
/// Same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller guarantees valid strings.
    let call = || unsafe {
        let (from, to) = (CStr::from_ptr(from).as_ptr(), CStr::from_ptr(to).as_ptr());
        let here = libc::AT_FDCWD;
        libc::syscall(libc::SYS_renameat2, here, from, here, to, 0)
    };
    count_write(call, || 0) as c_int
}

/// # Safety
///
/// Same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees a valid string.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) };
    count_write(call, || 0) as c_int
}
