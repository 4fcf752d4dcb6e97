//! Servers whose data directory is a small separate disk. The disk is mounted in a mount
//! namespace that ends with the process, so no mount is left. Tests reach it through the
//! process's root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::process::Child;

use crate::client::test_client::TestClient;
use crate::network::ports::unused_port;
use crate::servers::embedded_relay::read_admin_token;
use crate::servers::server_processes::{BatonExecutable, DaemonProcess, spawn_relay};

/// Mounts a small disk on the directory, then executes the program.
const MOUNT_SCRIPT: &str = r#"mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@""#;
const FILLER_FILE: &str = "filler";

/// A daemon on a small disk.
#[derive(Debug)]
pub struct SmallDiskDaemon {
    pub daemon: DaemonProcess,
    pub disk_space: SmallDiskSpace,
}

/// A relay on a small disk.
#[derive(Debug)]
pub struct SmallDiskRelay {
    child: Child,
    admin: TestClient,
    pub disk_space: SmallDiskSpace,
    _dir: TempDir,
}

/// The disk as the test reaches it. Clones refer to the same disk.
#[derive(Clone, Debug)]
pub struct SmallDiskSpace {
    /// Reached through a descriptor, because a process that executes itself again has no root
    /// for a moment.
    _directory: Arc<File>,
    root: PathBuf,
}

impl SmallDiskDaemon {
    /// None if this machine cannot mount a disk; the reason is printed.
    pub async fn start(
        baton: BatonExecutable,
        dir: &Path,
        (url, token): (&str, &str),
        mebibytes: u32,
    ) -> Option<Self> {
        let data = dir.join("small");
        let wrapper = mount_command_prefix(&data, mebibytes)?;
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let token_file = dir.join("credential");
        fs::write(&token_file, token).expect("a file can be written");
        let daemon = DaemonProcess::start_in_directory(baton, &data, &wrapper, |command| {
            command
                .args(["daemon", "--relay", url, "--name", "small", "--slots", "4"])
                .args(["--drain", "5s", "--hold", "0s"])
                .args(["--allow-command", "--token-file"])
                .arg(&token_file);
        })
        .await;
        let disk_space = SmallDiskSpace::of_process(daemon.pid(), &data);
        Some(Self { daemon, disk_space })
    }
}

impl SmallDiskRelay {
    /// None if this machine cannot mount a disk; the reason is printed.
    pub async fn start(baton: BatonExecutable, mebibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("small");
        let wrapper = mount_command_prefix(&data, mebibytes)?;
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let listen = format!("127.0.0.1:{}", unused_port());
        let child = spawn_relay(baton, &data, &wrapper, &listen, &[]).await;
        let disk_space = SmallDiskSpace::of_process(child.id().expect("the relay runs"), &data);
        let admin = TestClient::new(
            &format!("http://{listen}"),
            &read_admin_token(&disk_space.root),
        );
        Some(Self {
            child,
            admin,
            disk_space,
            _dir: dir,
        })
    }

    pub fn admin(&self) -> &TestClient {
        &self.admin
    }

    /// Whether the process that was started still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether it has executed itself again.
    pub fn has_restarted_itself(&self) -> bool {
        let pid = self.child.id().expect("the relay runs");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable.starts_with(b"BATON_STARTED_AGAIN="))
    }
}

impl SmallDiskSpace {
    pub(crate) fn of_process(pid: u32, data: &Path) -> Self {
        let data = data.strip_prefix("/").expect("an absolute path");
        let root = Path::new(&format!("/proc/{pid}/root")).join(data);
        let directory = File::open(root).expect("the disk is mounted");
        let root = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let _directory = Arc::new(directory);
        Self { _directory, root }
    }

    /// The path of a file of the server.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Free bytes now.
    pub fn free_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.root).expect("the disk is mounted");
        disk.f_bavail * disk.f_frsize
    }

    /// Leaves no free byte.
    pub fn fill_disk(&self) {
        let mut filler = self.open_filler();
        for size in [1 << 20, 4096, 1] {
            let block = vec![0; size];
            while has_written(filler.write(&block)) {}
        }
    }

    /// Leaves about this many free bytes.
    pub fn fill_until_free(&self, bytes: u64) {
        let mut filler = self.open_filler();
        let block = vec![0; 1 << 16];
        while self.free_bytes() > bytes && has_written(filler.write(&block)) {}
    }

    pub fn remove_filler(&self) {
        fs::remove_file(self.path(FILLER_FILE)).expect("the filler file exists");
    }

    fn open_filler(&self) -> File {
        let mut options = File::options();
        let opened = options
            .create(true)
            .append(true)
            .open(self.path(FILLER_FILE));
        opened.expect("the filler file can be created")
    }
}

fn has_written(written: std::io::Result<usize>) -> bool {
    match written {
        Ok(written) => written > 0,
        Err(error) if error.kind() == ErrorKind::StorageFull => false,
        Err(error) => panic!("cannot fill the disk: {error}"),
    }
}

/// The command prefix that runs a program with `data` as a separate disk.
fn mount_command_prefix(data: &Path, mebibytes: u32) -> Option<Vec<String>> {
    fs::create_dir_all(data).expect("a directory can be created");
    let size = format!("{mebibytes}m");
    let flags = if rustix::process::geteuid().is_root() {
        "-m"
    } else {
        "-Urm"
    };
    let data = data
        .to_str()
        .expect("a temporary directory has a plain name");
    let arguments = [
        "unshare",
        flags,
        "sh",
        "-c",
        MOUNT_SCRIPT,
        "sh",
        &size,
        data,
    ];
    match try_command_prefix(&arguments) {
        Ok(()) => Some(arguments.map(str::to_owned).into()),
        Err(reason) => {
            report_skip(&reason);
            None
        }
    }
}

fn try_command_prefix(wrapper: &[&str]) -> Result<(), String> {
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

#[expect(clippy::print_stderr, reason = "a skipped test must be reported")]
fn report_skip(reason: &str) {
    eprintln!("skipped: a small disk cannot be mounted here: {reason}");
}
