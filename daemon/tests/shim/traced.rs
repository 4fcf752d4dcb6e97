//! Processes that seem to survive SIGKILL.

use std::ptr::null_mut;

/// A dead process that is traced is not reported to its parent, which sees a process that
/// cannot be killed.
#[expect(unsafe_code, reason = "neither std nor rustix can trace")]
pub(crate) fn trace(pid: i32) {
    let nothing = null_mut::<libc::c_void>();
    // SAFETY: no memory is shared with the kernel by this request.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
    assert_eq!(traced, 0, "this test must be allowed to trace");
}

/// Reaps it as its tracer, so that its parent can reap it too. For the thread that traces it.
#[expect(unsafe_code, reason = "rustix waits for no traced threads")]
pub(crate) fn detach(pid: i32) {
    // SAFETY: without a buffer for the status nothing is written.
    let waited = unsafe { libc::waitpid(pid, null_mut(), libc::__WALL) };
    assert_eq!(waited, pid);
}
