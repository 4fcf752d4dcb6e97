//! Clocks that a test changes for processes of the executable under test.
//!
//! A file contains the offsets of CLOCK_BOOTTIME and the wall clock. Processes started with it
//! read the file whenever they read the time. All processes of one machine (a daemon and its
//! shims) share one file, so that they resume from a suspend together.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_cli::ServerClocks;
use tempfile::TempDir;

use crate::host::test_boot_id::BOOT_FILE;
use crate::servers::server_processes::BatonExecutable;

/// Names the file. Only the executable under test reads this variable.
pub(crate) const CLOCK_FILE: &str = "BATON_TEST_CLOCK";

/// Milliseconds ahead of the system's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClockOffsets {
    boot_ms: u64,
    wall_ms: i64,
}

impl ClockOffsets {
    fn text(self) -> String {
        format!("{} {}", self.boot_ms, self.wall_ms)
    }

    fn parse(text: &str) -> Option<Self> {
        let (boot, wall) = text.split_once(' ')?;
        Some(Self {
            boot_ms: boot.parse().ok()?,
            wall_ms: wall.parse().ok()?,
        })
    }
}

/// Controls the clocks of one simulated machine.
#[derive(Debug)]
pub struct TestClock {
    offsets: Mutex<ClockOffsets>,
    dir: TempDir,
}

impl TestClock {
    /// Equals the system's clocks until it is changed.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = Self {
            offsets: Mutex::default(),
            dir,
        };
        clock.change_offsets(|_| {});
        clock
    }

    /// The executable, started with this clock.
    pub fn apply_to(&self, baton: BatonExecutable) -> BatonExecutable {
        baton.with_clock_file(self.offset_file())
    }

    /// Sets the wall clock forward or back, as an administrator or NTP would.
    pub fn jump_wall(&self, ms: i64) {
        self.change_offsets(|offsets| offsets.wall_ms += ms);
    }

    /// Simulates a suspend: both clocks advance, but the runtime's timers, which stood still,
    /// do not.
    pub fn advance_suspended(&self, suspended: Duration) {
        let ms = u64::try_from(suspended.as_millis()).expect("a test's suspend is short");
        self.change_offsets(|offsets| {
            offsets.boot_ms += ms;
            offsets.wall_ms += ms.cast_signed();
        });
    }

    fn offset_file(&self) -> PathBuf {
        self.dir.path().join("ahead")
    }

    /// Replaces the file, so that a reader sees the old offsets or the new ones.
    fn change_offsets(&self, change: impl FnOnce(&mut ClockOffsets)) {
        let mut offsets = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut offsets);
        let new = self.dir.path().join("new");
        std::fs::write(&new, offsets.text()).expect("a file can be written");
        std::fs::rename(&new, self.offset_file()).expect("a file can be renamed");
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Clocks of the executable under test: the system's clocks and boot id, unless its environment
/// names files for them.
pub fn clocks_under_test() -> ServerClocks {
    let mut clocks = ServerClocks::default();
    if let Some(file) = std::env::var_os(CLOCK_FILE) {
        clocks
            .shim_environment
            .push((CLOCK_FILE.into(), file.clone()));
        OFFSET_FILE.get_or_init(|| file.into());
        clocks.relay = baton_relay::clock::RelayClock::offset(boot_offset_ms, wall_offset_ms);
        clocks.daemon = baton_daemon::Clock::offset(boot_offset_ms, wall_offset_ms);
    }
    if let Some(file) = std::env::var_os(BOOT_FILE) {
        clocks.boot_id_file = file.into();
    }
    clocks
}

static OFFSET_FILE: OnceLock<PathBuf> = OnceLock::new();
/// The last offsets that were read. A process that outlives its test keeps them.
static LAST_OFFSETS: Mutex<ClockOffsets> = Mutex::new(ClockOffsets {
    boot_ms: 0,
    wall_ms: 0,
});

fn boot_offset_ms() -> u64 {
    read_offsets().boot_ms
}

fn wall_offset_ms() -> i64 {
    read_offsets().wall_ms
}

fn read_offsets() -> ClockOffsets {
    let mut last = LAST_OFFSETS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = OFFSET_FILE.get().and_then(|file| read_offset_file(file));
    *last = now.unwrap_or(*last);
    *last
}

fn read_offset_file(file: &Path) -> Option<ClockOffsets> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(ClockOffsets::parse(&text).unwrap_or_else(|| panic!("{CLOCK_FILE} contains {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offsets_are_stored_and_add_up() {
        let clock = TestClock::new();
        assert_eq!(
            read_offset_file(&clock.offset_file()),
            Some(ClockOffsets::default())
        );
        clock.jump_wall(-86_400_000);
        clock.advance_suspended(Duration::from_secs(3_600));
        let ahead = ClockOffsets {
            boot_ms: 3_600_000,
            wall_ms: -82_800_000,
        };
        assert_eq!(read_offset_file(&clock.offset_file()), Some(ahead));
    }
}
