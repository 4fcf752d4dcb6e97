//! The kernel's boot id as the executable under test reads it, so that a test can simulate a
//! reboot.

use std::path::PathBuf;

use tempfile::TempDir;
use uuid::Uuid;

use crate::servers::server_processes::BatonExecutable;

/// Names the file. Only the executable under test reads this variable.
pub(crate) const BOOT_FILE: &str = "BATON_TEST_BOOT_ID";

/// Controls the boot id of one simulated machine.
#[derive(Debug)]
pub struct TestBootId {
    dir: TempDir,
}

impl TestBootId {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let boot = Self { dir };
        boot.change_boot_id();
        boot
    }

    /// The executable, started with this boot id.
    pub fn apply_to(&self, baton: BatonExecutable) -> BatonExecutable {
        baton.with_boot_id_file(self.boot_id_file())
    }

    /// From now on every read returns a new boot id.
    pub fn change_boot_id(&self) {
        let id = format!("{}\n", Uuid::now_v7());
        std::fs::write(self.boot_id_file(), id).expect("a file can be written");
    }

    fn boot_id_file(&self) -> PathBuf {
        self.dir.path().join("boot_id")
    }
}

impl Default for TestBootId {
    fn default() -> Self {
        Self::new()
    }
}
