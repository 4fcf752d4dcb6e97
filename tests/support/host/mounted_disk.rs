//! Disks of their own for processes that come and go: a mount namespace that a small process holds open. It ends with the test, and
//! nothing of the mount is left behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::servers::small_disk::SmallDiskSpace;
use crate::wait::wait_within;

/// Holds the mount as long as its stdin is open.
const MOUNT_SCRIPT: &str = r#"at=$1; shift; mount "$@" "$at" && echo mounted && exec cat"#;

#[derive(Debug)]
pub struct MountedDisk {
    mount_process: Child,
    mount_point: PathBuf,
}

impl MountedDisk {
    /// A disk of this size, empty. An error says why this machine gives nobody one.
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
        let mut holder = started.map_err(|error| format!("unshare: {error}"))?;
        let said = holder.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(said).lines();
        let first = wait_within("a mount or a refusal", lines.next_line()).await;
        if first.is_ok_and(|line| line.is_some_and(|line| line == "mounted")) {
            let at = at.to_owned();
            return Ok(Self {
                mount_process: holder,
                mount_point: at,
            });
        }
        let output = wait_within("a refusal", holder.wait_with_output()).await;
        let why = output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        );
        Err(why)
    }

    fn pid(&self) -> u32 {
        self.mount_process.id().expect("the holder runs")
    }

    /// The words before a command line that runs it where the disk is mounted.
    pub fn command_prefix(&self) -> Vec<String> {
        let pid = self.pid().to_string();
        let user: &[&str] = if is_root() {
            &[]
        } else {
            &["-U", "--preserve-credentials"]
        };
        let words = ["nsenter", "-t", &pid, "-m"].into_iter();
        words
            .chain(user.iter().copied())
            .map(str::to_owned)
            .collect()
    }

    /// Its directory, as processes see it that were started by way of it.
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
