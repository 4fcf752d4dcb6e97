//! A daemon whose data directory is a small disk of its own. The disk is mounted in a mount namespace that dies with the daemon, so
//! that nothing of it is left behind; tests reach it through the daemon's root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::processes::{Baton, DaemonProcess};

/// Makes the directory a disk of its own, then becomes the program.
const MOUNT: &str = r#"mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@""#;
const FILLER: &str = "filler";

#[derive(Debug)]
pub struct SmallDisk {
    pub daemon: DaemonProcess,
    /// The disk as the test sees it.
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
        fs::create_dir_all(&data).expect("a directory can be made");
        let size = format!("{mebibytes}m");
        let flags = if rustix::process::geteuid().is_root() {
            "-m"
        } else {
            "-Urm"
        };
        let data_text = data
            .to_str()
            .expect("a temporary directory has a plain name");
        let wrapper = ["unshare", flags, "sh", "-c", MOUNT, "sh", &size, data_text];
        if let Err(reason) = try_out(&wrapper) {
            skip(&reason);
            return None;
        }
        let token_file = dir.join("credential");
        fs::write(&token_file, token).expect("a file can be written");
        let daemon = DaemonProcess::start_in(baton, &data, &wrapper, |command| {
            command
                .args(["daemon", "--relay", url, "--name", "small", "--slots", "4"])
                .args(["--allow-command", "--drain", "5s", "--token-file"])
                .arg(&token_file);
        })
        .await;
        let root = format!("/proc/{}/root", daemon.pid());
        let root = Path::new(&root).join(data_text.trim_start_matches('/'));
        Some(Self { daemon, root })
    }

    /// A file of the daemon's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Leaves no free byte.
    pub fn fill(&self) {
        let mut filler = File::create(self.path(FILLER)).expect("there is room for a name");
        for size in [1 << 20, 4096, 1] {
            let block = vec![0; size];
            while match filler.write(&block) {
                Ok(written) => written > 0,
                Err(error) if error.kind() == ErrorKind::StorageFull => false,
                Err(error) => panic!("the disk was to be filled: {error}"),
            } {}
        }
    }

    pub fn free(&self) {
        fs::remove_file(self.path(FILLER)).expect("it was filled");
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
