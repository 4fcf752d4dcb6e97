//! Runs a program and counts what it does to files, over all its threads; ends it, or lets the disk fail it, at a chosen one.
//!
//! `tracer DIR WHAT PROGRAM ARGUMENTS…`, where DIR is the directory whose files count and WHAT is
//! `count` (nothing is done), `kill N` (SIGKILL before the Nth change or sync), `eio N` (the Nth fsync or fdatasync fails, and all
//! after it), `unsynced` (no fsync and no fdatasync is made, and each says that it was).
//!
//! Counting begins with the start, or with SIGUSR1 if a file `wait` lies in DIR's parent. What was counted is written to
//! `DIR.counted` at the end, and `DIR.armed` is no longer empty once SIGUSR1 was heard. Killing the tracer kills the program, whose end
//! is the tracer's; SIGTERM it ignores.
//! strace could do this but for one thing: its counters are per thread.
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

/// Whether it is time to count.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

/// Where it is said that counting has begun.
static ARMED_FILE_DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handle_arm_signal(_signal: c_int) {
    IS_ARMED.store(true, Ordering::SeqCst);
    let word = b"armed";
    // SAFETY: the pointer is to a constant; `write` may be called in a handler.
    unsafe {
        libc::write(
            ARMED_FILE_DESCRIPTOR.load(Ordering::SeqCst),
            word.as_ptr().cast(),
            word.len(),
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

/// What a call does to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileOperation {
    /// Changes the file behind its first argument, or hurries it to the disk without a promise.
    Content,
    /// Makes the file behind its first argument durable.
    Sync,
    /// Changes names.
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
    /// Threads in a call whose answer is ours, with that answer.
    injected_results: Vec<(libc::pid_t, i64)>,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let dir = PathBuf::from(words.next().unwrap_or_default());
    let what = words.next().unwrap_or_default();
    let mut number = || -> Option<u64> { words.next()?.to_str()?.parse().ok() };
    let deed = match what.to_str() {
        Some("count") => Some(TracerAction::Count),
        Some("unsynced") => Some(TracerAction::SkipSyncs),
        Some("kill") => number().map(TracerAction::Kill),
        Some("eio") => number().map(TracerAction::Eio),
        _ => None,
    };
    let arguments: Vec<CString> = words
        .filter_map(|word| CString::new(word.as_bytes()).ok())
        .collect();
    let Some(deed) = deed.filter(|_| !arguments.is_empty()) else {
        return fail_with_message("usage: tracer DIR count|kill N|eio N|unsynced PROGRAM…");
    };
    let waits = dir
        .parent()
        .is_some_and(|above| above.join("wait").exists());
    IS_ARMED.store(!waits, Ordering::SeqCst);
    let said = fs::File::create(sibling_path(&dir, ".armed"));
    ARMED_FILE_DESCRIPTOR.store(said.map_or(-1, IntoRawFd::into_raw_fd), Ordering::SeqCst);
    let handler = handle_arm_signal as extern "C" fn(c_int) as libc::sighandler_t;
    // SAFETY: the handler only does what a handler may.
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

/// The program, stopped before its first instruction of its own, with us as its tracer.
fn spawn_traced(arguments: &[CString]) -> Option<libc::pid_t> {
    let mut pointers: Vec<*const libc::c_char> =
        arguments.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: this process has one thread; the child only makes calls that are allowed after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the pointers are to strings that live, and end with none.
        unsafe {
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
            libc::raise(libc::SIGSTOP);
            libc::execvp(pointers[0], pointers.as_ptr());
            libc::_exit(127);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is ours.
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
            // SAFETY: `status` is ours.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
            if tid < 0 {
                // A signal, or nobody is left.
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

    /// What to pass on to the thread when it goes on.
    fn handle_stop(&mut self, tid: libc::pid_t, status: c_int) -> c_int {
        let signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            self.handle_syscall_stop(tid);
            return 0;
        }
        // New threads, a new program, and the stops of a tracer: none of the program's own signals.
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
                give(tid, answer);
            }
            return;
        }
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY || !IS_ARMED.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the kernel said that this is an entry.
        let entry = unsafe { info.u.entry };
        let number = i64::try_from(entry.nr).unwrap_or(-1);
        if let Some(touch) =
            file_operation(number).filter(|touch| self.affects_directory(*touch, entry.args[0]))
        {
            self.count_operation(tid, touch);
        }
    }

    fn affects_directory(&self, touch: FileOperation, descriptor: u64) -> bool {
        if touch == FileOperation::Names {
            return true;
        }
        let link = format!("/proc/{}/fd/{descriptor}", self.child);
        fs::read_link(link).is_ok_and(|path| path.starts_with(&self.dir))
    }

    fn count_operation(&mut self, tid: libc::pid_t, touch: FileOperation) {
        self.changes += 1;
        self.syncs += u64::from(touch == FileOperation::Sync);
        let answer = match self.action {
            TracerAction::Kill(n) if self.changes == n => {
                // SAFETY: takes no pointer. The thread is stopped before the call, so the call is never made.
                unsafe { libc::kill(self.child, libc::SIGKILL) };
                None
            }
            TracerAction::Eio(n) if touch == FileOperation::Sync && self.syncs >= n => {
                Some(-i64::from(libc::EIO))
            }
            TracerAction::SkipSyncs if touch == FileOperation::Sync => Some(0),
            TracerAction::Count
            | TracerAction::Kill(_)
            | TracerAction::Eio(_)
            | TracerAction::SkipSyncs => None,
        };
        if let Some(answer) = answer.filter(|_| skip(tid)) {
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

/// A program that is stopped stays so.
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

/// Makes the call that a thread is about to make no call at all. False where this machine's registers are not known here.
#[cfg(target_arch = "x86_64")]
fn skip(tid: libc::pid_t) -> bool {
    with_registers(tid, |registers| registers.orig_rax = u64::MAX)
}

/// Lets a call that was not made give this answer.
#[cfg(target_arch = "x86_64")]
fn give(tid: libc::pid_t, answer: i64) {
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
fn skip(_tid: libc::pid_t) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn give(_tid: libc::pid_t, _answer: i64) {}
