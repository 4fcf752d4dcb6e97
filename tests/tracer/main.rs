//! Runs a program and counts its changes to files, over all its threads. At a chosen change it
//! kills the program or lets the disk fail.
//!
//! `tracer DIR WHAT PROGRAM ARGUMENTS…`, where DIR is the directory whose files count and WHAT
//! is `count` (only counts), `kill N` (SIGKILL before the Nth change or sync), `eio N` (the Nth
//! fsync or fdatasync and all after it fail), `unsynced` (fsync and fdatasync are skipped but
//! report success).
//!
//! Counting begins with the start, or with SIGUSR1 if DIR's parent contains a file `wait`. The
//! counts are written to `DIR.counted` at the end, and `DIR.armed` is not empty after SIGUSR1
//! was handled. Killing the tracer kills the program. When the program ends, the tracer ends
//! with the same status. It ignores SIGTERM.
//!
//! strace could do this, but it counts per thread.
#![expect(
    unsafe_code,
    reason = "processes are traced, which no safe library offers"
)]

use std::ffi::{CString, c_int, c_long, c_void};
use std::fs;
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Whether changes are counted.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

/// The file that confirms the start of counting.
static ARMED_FILE_DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handle_arm_signal(_signal: c_int) {
    IS_ARMED.store(true, Ordering::SeqCst);
    let text = b"armed";
    // SAFETY: the pointer refers to a constant; `write` may be called in a signal handler.
    unsafe {
        libc::write(
            ARMED_FILE_DESCRIPTOR.load(Ordering::SeqCst),
            text.as_ptr().cast(),
            text.len(),
        )
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TracerAction {
    Count,
    Kill(u64),
    Eio(u64),
    SkipSyncs,
}

/// Effect of a system call on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileOperation {
    /// Changes the content of the file in its first argument, or starts writeback without a
    /// guarantee.
    Content,
    /// Makes the file behind its first argument durable.
    Sync,
    /// Changes directory entries.
    Names,
}

fn file_operation(number: i64) -> Option<FileOperation> {
    match number {
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_sync_file_range => Some(FileOperation::Content),
        libc::SYS_fsync | libc::SYS_fdatasync => Some(FileOperation::Sync),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_unlinkat | libc::SYS_mkdirat => {
            Some(FileOperation::Names)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_unlink | libc::SYS_mkdir | libc::SYS_rmdir => {
            Some(FileOperation::Names)
        }
        _ => None,
    }
}

struct SyscallTracer {
    dir: PathBuf,
    action: TracerAction,
    child: libc::pid_t,
    changes: u64,
    syncs: u64,
    /// Threads in a skipped call, with the injected result.
    injected_results: Vec<(libc::pid_t, i64)>,
}

fn main() -> ExitCode {
    let mut arguments_os = std::env::args_os().skip(1);
    let dir = PathBuf::from(arguments_os.next().unwrap_or_default());
    let what = arguments_os.next().unwrap_or_default();
    let mut number = || -> Option<u64> { arguments_os.next()?.to_str()?.parse().ok() };
    let deed = match what.to_str() {
        Some("count") => Some(TracerAction::Count),
        Some("unsynced") => Some(TracerAction::SkipSyncs),
        Some("kill") => number().map(TracerAction::Kill),
        Some("eio") => number().map(TracerAction::Eio),
        _ => None,
    };
    let arguments: Vec<CString> = arguments_os
        .filter_map(|argument| CString::new(argument.as_bytes()).ok())
        .collect();
    let Some(deed) = deed.filter(|_| !arguments.is_empty()) else {
        return fail_with_message("usage: tracer DIR count|kill N|eio N|unsynced PROGRAM…");
    };
    let waits = dir
        .parent()
        .is_some_and(|above| above.join("wait").exists());
    IS_ARMED.store(!waits, Ordering::SeqCst);
    let armed_file = fs::File::create(sibling_path(&dir, ".armed"));
    ARMED_FILE_DESCRIPTOR.store(
        armed_file.map_or(-1, IntoRawFd::into_raw_fd),
        Ordering::SeqCst,
    );
    let handler = handle_arm_signal as extern "C" fn(c_int) as libc::sighandler_t;
    // SAFETY: the handler only makes async-signal-safe calls.
    unsafe {
        libc::signal(libc::SIGUSR1, handler);
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
    }
    let Some(child) = spawn_traced(&arguments) else {
        return fail_with_message("tracer: this program cannot be traced here");
    };
    let mut tracer = SyscallTracer {
        dir,
        action: deed,
        child,
        changes: 0,
        syncs: 0,
        injected_results: Vec::new(),
    };
    let code = tracer.run();
    tracer.write_counts();
    code
}

fn fail_with_message(line: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{line}");
    ExitCode::from(99)
}

/// The program, stopped before its first own instruction, with this process as its tracer.
fn spawn_traced(arguments: &[CString]) -> Option<libc::pid_t> {
    let mut pointers: Vec<*const libc::c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: this process has one thread; the child only makes calls that are allowed after a
    // fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the pointers refer to live strings, and the list ends with null.
        unsafe {
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
            libc::raise(libc::SIGSTOP);
            libc::execvp(pointers[0], pointers.as_ptr());
            libc::_exit(127);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    let seized = ptrace(libc::PTRACE_SEIZE, child, c_long::from(options));
    if seized < 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::kill(child, libc::SIGKILL) };
        return None;
    }
    // SAFETY: takes no pointer.
    unsafe { libc::kill(child, libc::SIGCONT) };
    Some(child)
}

fn ptrace(request: libc::c_uint, tid: libc::pid_t, data: c_long) -> c_long {
    // SAFETY: none of the requests that are made through here takes a pointer.
    unsafe { libc::ptrace(request, tid, std::ptr::null_mut::<c_void>(), data) }
}

impl SyscallTracer {
    fn run(&mut self) -> ExitCode {
        loop {
            let mut status = 0;
            // SAFETY: `status` is a local variable.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
            if tid < 0 {
                // Interrupted by a signal, or no child is left.
                if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                    continue;
                }
                return ExitCode::from(98);
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                if tid == self.child {
                    return exit_code_of(status);
                }
                continue;
            }
            if is_group_stop(status) {
                ptrace(libc::PTRACE_LISTEN, tid, 0);
                continue;
            }
            let signal = self.handle_stop(tid, status);
            ptrace(libc::PTRACE_SYSCALL, tid, c_long::from(signal));
        }
    }

    /// The signal to deliver when the thread continues.
    fn handle_stop(&mut self, tid: libc::pid_t, status: c_int) -> c_int {
        let signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            self.handle_syscall_stop(tid);
            return 0;
        }
        // New threads, a new program, and the tracer's own stops are not signals of the
        // program.
        if status >> 16 != 0 {
            return 0;
        }
        signal
    }

    fn handle_syscall_stop(&mut self, tid: libc::pid_t) {
        let Some(info) = syscall_info(tid) else {
            return;
        };
        if info.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            if let Some(at) = self
                .injected_results
                .iter()
                .position(|(other, _)| *other == tid)
            {
                let (_, answer) = self.injected_results.swap_remove(at);
                inject_result(tid, answer);
            }
            return;
        }
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY || !IS_ARMED.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the kernel reported that this is a syscall entry.
        let entry = unsafe { info.u.entry };
        let number = i64::try_from(entry.nr).unwrap_or(-1);
        if let Some(operation) = file_operation(number)
            .filter(|operation| self.affects_directory(*operation, entry.args[0]))
        {
            self.count_operation(tid, operation);
        }
    }

    fn affects_directory(&self, operation: FileOperation, descriptor: u64) -> bool {
        if operation == FileOperation::Names {
            return true;
        }
        let link = format!("/proc/{}/fd/{descriptor}", self.child);
        fs::read_link(link).is_ok_and(|path| path.starts_with(&self.dir))
    }

    fn count_operation(&mut self, tid: libc::pid_t, operation: FileOperation) {
        self.changes += 1;
        self.syncs += u64::from(operation == FileOperation::Sync);
        let answer = match self.action {
            TracerAction::Kill(n) if self.changes == n => {
                // SAFETY: takes no pointer. The thread is stopped before the call, so the call is
                // never made.
                unsafe { libc::kill(self.child, libc::SIGKILL) };
                None
            }
            TracerAction::Eio(n) if operation == FileOperation::Sync && self.syncs >= n => {
                Some(-i64::from(libc::EIO))
            }
            TracerAction::SkipSyncs if operation == FileOperation::Sync => Some(0),
            TracerAction::Count
            | TracerAction::Kill(_)
            | TracerAction::Eio(_)
            | TracerAction::SkipSyncs => None,
        };
        if let Some(answer) = answer.filter(|_| skip_call(tid)) {
            self.injected_results.push((tid, answer));
        }
    }

    fn write_counts(&self) {
        let counts = format!("{} {}\n", self.changes, self.syncs);
        let _ = fs::write(sibling_path(&self.dir, ".counted"), counts);
    }
}

/// The name of a file next to a directory.
fn sibling_path(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Whether the stop is a job-control stop, which must stay in effect.
fn is_group_stop(status: c_int) -> bool {
    status >> 16 == libc::PTRACE_EVENT_STOP && libc::WSTOPSIG(status) != libc::SIGTRAP
}

fn exit_code_of(status: c_int) -> ExitCode {
    let code = if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn syscall_info(tid: libc::pid_t) -> Option<libc::ptrace_syscall_info> {
    let mut info = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes to `info`, for which all zeros are a value.
    unsafe {
        let written = libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            tid,
            size as *mut c_void,
            info.as_mut_ptr().cast::<c_void>(),
        );
        (written > 0).then(|| info.assume_init())
    }
}

/// Turns the call that a thread is about to make into no call. False if this architecture's
/// registers are not supported.
#[cfg(target_arch = "x86_64")]
fn skip_call(tid: libc::pid_t) -> bool {
    with_registers(tid, |registers| registers.orig_rax = u64::MAX)
}

/// Sets the result of a skipped call.
#[cfg(target_arch = "x86_64")]
fn inject_result(tid: libc::pid_t, answer: i64) {
    with_registers(tid, |registers| registers.rax = answer.cast_unsigned());
}

#[cfg(target_arch = "x86_64")]
fn with_registers(tid: libc::pid_t, change: impl FnOnce(&mut libc::user_regs_struct)) -> bool {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the kernel reads and writes exactly this structure.
    unsafe {
        if libc::ptrace(libc::PTRACE_GETREGS, tid, none, registers.as_mut_ptr()) < 0 {
            return false;
        }
        let mut registers = registers.assume_init();
        change(&mut registers);
        libc::ptrace(libc::PTRACE_SETREGS, tid, none, &raw mut registers) >= 0
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn skip_call(_tid: libc::pid_t) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn inject_result(_tid: libc::pid_t, _answer: i64) {}
