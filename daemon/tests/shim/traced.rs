//! Processes that seem to survive KILL, for the tests of who looks after them.

use std::ptr::null_mut;

/// A dead process that is traced is not handed to its parent: to that one it looks like one that cannot be killed.
#[expect(unsafe_code, reason = "neither std nor rustix can trace")]
pub(crate) fn trace(pid: i32) {
    let nothing = null_mut::<libc::c_void>();
    // SAFETY: no memory is shared with the kernel by this request.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
    assert_eq!(traced, 0, "this test must be allowed to trace");
}

/// Takes note of its death, and hands it to its parent. For the thread that traces it.
#[expect(unsafe_code, reason = "rustix waits for no traced threads")]
pub(crate) fn detach(pid: i32) {
    // SAFETY: without a place for the status nothing is written.
    let waited = unsafe { libc::waitpid(pid, null_mut(), libc::__WALL) };
    assert_eq!(waited, pid);
}
