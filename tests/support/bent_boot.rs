//! The kernel's boot id as the executable under test sees it: a test decides that the machine was started again.

use std::path::PathBuf;

use tempfile::TempDir;
use uuid::Uuid;

use crate::processes::Baton;

/// Names the file. Only the executable under test knows it.
pub(crate) const BOOT_FILE: &str = "BATON_TEST_BOOT_ID";

/// A test's hand on the boot id of one machine.
#[derive(Debug)]
pub struct BentBoot {
    dir: TempDir,
}

impl BentBoot {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let boot = Self { dir };
        boot.reboot();
        boot
    }

    /// The executable, started on this machine.
    pub fn bend(&self, baton: Baton) -> Baton {
        baton.on_boot(self.file())
    }

    /// Whoever asks from now on is told of another boot.
    pub fn reboot(&self) {
        let id = format!("{}\n", Uuid::now_v7());
        std::fs::write(self.file(), id).expect("a file can be written");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("boot_id")
    }
}

impl Default for BentBoot {
    fn default() -> Self {
        Self::new()
    }
}
