//! Separate disks for processes under test: a mount namespace that a small process keeps open.
//! It ends with the test, and the mount disappears with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::servers::small_disk::SmallDiskSpace;
use crate::wait::wait_within;

/// Keeps the mount as long as its stdin is open.
const MOUNT_SCRIPT: &str = r#"at=$1; shift; mount "$@" "$at" && echo mounted && exec cat"#;

#[derive(Debug)]
pub struct MountedDisk {
    mount_process: Child,
    mount_point: PathBuf,
}

impl MountedDisk {
    /// An empty disk of this size. The error explains why this machine cannot mount one.
    pub async fn mount_tmpfs(at: &Path, mebibytes: u32) -> Result<Self, String> {
        let size = format!("size={mebibytes}m");
        Self::mount(at, &["-t", "tmpfs", "-o", &size, "none"]).await
    }

    /// The file system in an image file.
    pub async fn mount_image(at: &Path, image: &Path) -> Result<Self, String> {
        let image = image.to_str().expect("a plain name");
        Self::mount(at, &["-o", "loop", image]).await
    }

    async fn mount(at: &Path, what: &[&str]) -> Result<Self, String> {
        std::fs::create_dir_all(at).expect("a directory can be made");
        let flags = if is_root() { "-m" } else { "-Urm" };
        let started = Command::new("unshare")
            .args([flags, "sh", "-c", MOUNT_SCRIPT, "sh"])
            .arg(at)
            .args(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut mount_process = started.map_err(|error| format!("unshare: {error}"))?;
        let stdout = mount_process.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let first = wait_within("the result of the mount", lines.next_line()).await;
        if first.is_ok_and(|line| line.is_some_and(|line| line == "mounted")) {
            let at = at.to_owned();
            return Ok(Self {
                mount_process,
                mount_point: at,
            });
        }
        let output = wait_within("the error of the mount", mount_process.wait_with_output()).await;
        let why = output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        );
        Err(why)
    }

    fn pid(&self) -> u32 {
        self.mount_process.id().expect("the mount process runs")
    }

    /// The command prefix that runs a program in the namespace with the disk.
    pub fn command_prefix(&self) -> Vec<String> {
        let pid = self.pid().to_string();
        let user: &[&str] = if is_root() {
            &[]
        } else {
            &["-U", "--preserve-credentials"]
        };
        let arguments = ["nsenter", "-t", &pid, "-m"].into_iter();
        arguments
            .chain(user.iter().copied())
            .map(str::to_owned)
            .collect()
    }

    /// Its directory, as processes in the namespace see it.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The same directory as the test sees it.
    pub fn path_from_host(&self) -> PathBuf {
        let at = self
            .mount_point
            .strip_prefix("/")
            .expect("an absolute path");
        PathBuf::from(format!("/proc/{}/root", self.pid())).join(at)
    }

    pub fn disk_space(&self) -> SmallDiskSpace {
        SmallDiskSpace::of_process(self.pid(), &self.mount_point)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
