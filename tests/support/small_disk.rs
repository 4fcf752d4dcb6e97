//! Servers whose data directory is a small disk of its own. The disk is mounted in a mount namespace that dies with the process, so
//! that nothing of it is left behind; tests reach it through the process's root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::process::Child;

use crate::client::Client;
use crate::ports::quiet_port;
use crate::processes::{Baton, DaemonProcess, spawn_relay};
use crate::relay::read_token;

/// Makes the directory a disk of its own, then becomes the program.
const MOUNT: &str = r#"mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@""#;
const FILLER: &str = "filler";

/// A daemon on a small disk.
#[derive(Debug)]
pub struct SmallDisk {
    pub daemon: DaemonProcess,
    pub room: Room,
}

/// A relay on a small disk.
#[derive(Debug)]
pub struct SmallRelay {
    child: Child,
    admin: Client,
    pub room: Room,
    _dir: TempDir,
}

/// The disk as the test sees it. Clones see the same.
#[derive(Clone, Debug)]
pub struct Room {
    /// Reached through a descriptor: a process that becomes itself anew has no root for a moment.
    _held: Arc<File>,
    root: PathBuf,
}

impl SmallDisk {
    /// None where this machine lets nobody mount anything; the reason is printed.
    pub async fn start(
        baton: Baton,
        dir: &Path,
        (url, token): (&str, &str),
        mebibytes: u32,
    ) -> Option<Self> {
        let data = dir.join("small");
        let wrapper = wrapper(&data, mebibytes)?;
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let token_file = dir.join("credential");
        fs::write(&token_file, token).expect("a file can be written");
        let daemon = DaemonProcess::start_in(baton, &data, &wrapper, |command| {
            command
                .args(["daemon", "--relay", url, "--name", "small", "--slots", "4"])
                .args(["--drain", "5s", "--hold", "0s"])
                .args(["--allow-command", "--token-file"])
                .arg(&token_file);
        })
        .await;
        let room = Room::of(daemon.pid(), &data);
        Some(Self { daemon, room })
    }
}

impl SmallRelay {
    /// None where this machine lets nobody mount anything; the reason is printed.
    pub async fn start(baton: Baton, mebibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("small");
        let wrapper = wrapper(&data, mebibytes)?;
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let listen = format!("127.0.0.1:{}", quiet_port());
        let child = spawn_relay(baton, &data, &wrapper, &listen, &[]).await;
        let room = Room::of(child.id().expect("the relay runs"), &data);
        let admin = Client::new(&format!("http://{listen}"), &read_token(&room.root));
        Some(Self {
            child,
            admin,
            room,
            _dir: dir,
        })
    }

    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Whether it still is the process that was started.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether it has become itself anew.
    pub fn has_started_again(&self) -> bool {
        let pid = self.child.id().expect("the relay runs");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable.starts_with(b"BATON_STARTED_AGAIN="))
    }
}

impl Room {
    pub(crate) fn of(pid: u32, data: &Path) -> Self {
        let data = data.strip_prefix("/").expect("an absolute path");
        let root = Path::new(&format!("/proc/{pid}/root")).join(data);
        let held = File::open(root).expect("the disk is mounted");
        let root = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        let _held = Arc::new(held);
        Self { _held, root }
    }

    /// A file of the server's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// What is free now.
    pub fn left(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.root).expect("the disk is there");
        disk.f_bavail * disk.f_frsize
    }

    /// Leaves no free byte.
    pub fn fill(&self) {
        let mut filler = self.filler();
        for size in [1 << 20, 4096, 1] {
            let block = vec![0; size];
            while wrote(filler.write(&block)) {}
        }
    }

    /// Leaves about so many free bytes.
    pub fn leave(&self, bytes: u64) {
        let mut filler = self.filler();
        let block = vec![0; 1 << 16];
        while self.left() > bytes && wrote(filler.write(&block)) {}
    }

    pub fn free(&self) {
        fs::remove_file(self.path(FILLER)).expect("it was filled");
    }

    fn filler(&self) -> File {
        let mut options = File::options();
        let opened = options.create(true).append(true).open(self.path(FILLER));
        opened.expect("there is room for a name")
    }
}

fn wrote(written: std::io::Result<usize>) -> bool {
    match written {
        Ok(written) => written > 0,
        Err(error) if error.kind() == ErrorKind::StorageFull => false,
        Err(error) => panic!("the disk was to be filled: {error}"),
    }
}

/// The words before a command line that runs it with `data` as a disk of its own.
fn wrapper(data: &Path, mebibytes: u32) -> Option<Vec<String>> {
    fs::create_dir_all(data).expect("a directory can be made");
    let size = format!("{mebibytes}m");
    let flags = if rustix::process::geteuid().is_root() {
        "-m"
    } else {
        "-Urm"
    };
    let data = data
        .to_str()
        .expect("a temporary directory has a plain name");
    let words = ["unshare", flags, "sh", "-c", MOUNT, "sh", &size, data];
    match try_out(&words) {
        Ok(()) => Some(words.map(str::to_owned).into()),
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

fn try_out(wrapper: &[&str]) -> Result<(), String> {
    let tried = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[expect(clippy::print_stderr, reason = "a test that was not run must say so")]
fn skip(reason: &str) {
    eprintln!("skipped: a small disk cannot be mounted here: {reason}");
}
