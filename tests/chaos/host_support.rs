//! Checks which faults this machine supports. Each is tried once: if it works, a test that
//! needs it fails and is never skipped. Skips are reported.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

static SKIP_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether commands in a mount namespace may mount a small disk.
pub(crate) fn can_mount() -> bool {
    let flags = if is_root() { "-m" } else { "-Urm" };
    let script = "mount -t tmpfs none /tmp && command -v nsenter";
    try_command("a separate disk", "unshare", &[flags, "sh", "-c", script])
}

pub(crate) fn can_mount_images() -> bool {
    let script = "command -v mkfs.ext4 && losetup --find && unshare -m mount -t tmpfs none /tmp";
    try_command("a disk in an image", "sh", &["-c", script])
}

pub(crate) fn can_make_networks() -> bool {
    let script = "ip netns add baton-probe-$$ && ip netns exec baton-probe-$$ true; \
                  code=$?; ip netns delete baton-probe-$$; exit $code";
    try_command("an isolated network", "sh", &["-c", script])
}

pub(crate) fn can_trace() -> bool {
    let known = cfg!(target_arch = "x86_64");
    known && try_command("tracing", crate::TRACER, &["/nowhere", "count", "true"])
}

fn try_command(what: &str, program: &str, arguments: &[&str]) -> bool {
    let why = match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let count = SKIP_COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    println!("skipped ({count} so far): this machine does not support {what}: {why}");
    false
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
