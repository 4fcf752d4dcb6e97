//! Every write of this process, counted, and the end of the process at a chosen one. The C library's functions are
//! replaced by ours, which the standard library and sled then call: what reaches the disk before a kill is exactly what
//! the kernel was given before it.
#![expect(
    unsafe_code,
    reason = "functions of the C library are replaced, and the kernel is called in their place"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

/// Writes that are left to this process; as good as endless unless it was told to die.
static WRITES_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// Lets this process die by SIGKILL in the middle of its `n`th write from now on: half of it is done.
pub(crate) fn kill_at_write(n: i64) {
    WRITES_LEFT.store(n, Ordering::SeqCst);
}

fn is_last_write() -> bool {
    match WRITES_LEFT.fetch_sub(1, Ordering::SeqCst) {
        more if more > 1 => false,
        1 => true,
        // Another thread is about to end all of them.
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

/// Runs `whole`, or `half` of it and then nothing more.
fn count_write(whole: impl FnOnce() -> c_long, half: impl FnOnce() -> c_long) -> c_long {
    if is_last_write() {
        half();
        kill_self();
    }
    whole()
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller's promise is passed on; half of its bytes are its bytes.
    let call = |len: usize| unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, len, at) };
    count_write(|| call(len), || call(len / 2)) as isize
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise is passed on; half of its bytes are its bytes.
    let call = |len: usize| unsafe { libc::syscall(libc::SYS_write, fd, bytes, len) };
    // Standard output and wakers of threads are no files.
    if fd <= libc::STDERR_FILENO || len == size_of::<u64>() {
        return call(len) as isize;
    }
    count_write(|| call(len), || call(len / 2)) as isize
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    // SAFETY: takes no pointer.
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) };
    count_write(call, || 0) as c_int
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise is passed on.
    let call = || unsafe {
        let (from, to) = (CStr::from_ptr(from).as_ptr(), CStr::from_ptr(to).as_ptr());
        let here = libc::AT_FDCWD;
        libc::syscall(libc::SYS_renameat2, here, from, here, to, 0)
    };
    count_write(call, || 0) as c_int
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise is passed on.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) };
    count_write(call, || 0) as c_int
}
