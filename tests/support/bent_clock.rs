//! Clocks that a test moves under processes of the executable under test.
//!
//! A file holds how far CLOCK_BOOTTIME and the wall clock are ahead; the processes that were started with it look at
//! it whenever they read time. Everything that runs on one machine (a daemon and its shims) has one file, so that
//! they wake from a suspend together.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_cli::Clocks;
use tempfile::TempDir;

use crate::bent_boot::BOOT_FILE;
use crate::processes::Baton;

/// Names the file. Only the executable under test knows it.
pub(crate) const CLOCK_FILE: &str = "BATON_TEST_CLOCK";

/// Milliseconds ahead of the system's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ahead {
    boot_ms: u64,
    wall_ms: i64,
}

impl Ahead {
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

/// A test's hand on the clocks of one machine.
#[derive(Debug)]
pub struct BentClock {
    ahead: Mutex<Ahead>,
    dir: TempDir,
}

impl BentClock {
    /// Runs like the system's until it is moved.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = Self {
            ahead: Mutex::default(),
            dir,
        };
        clock.change(|_| {});
        clock
    }

    /// The executable, started on this clock.
    pub fn bend(&self, baton: Baton) -> Baton {
        baton.on_clock(self.file())
    }

    /// The wall clock is set, either way, as an administrator or NTP would.
    pub fn jump_wall(&self, ms: i64) {
        self.change(|ahead| ahead.wall_ms += ms);
    }

    /// The machine has slept: both clocks are ahead, while timers of the runtime, which stood still, are not.
    pub fn suspend(&self, slept: Duration) {
        let ms = u64::try_from(slept.as_millis()).expect("a test's span is short");
        self.change(|ahead| {
            ahead.boot_ms += ms;
            ahead.wall_ms += ms.cast_signed();
        });
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ahead")
    }

    /// Replaces the file, so that a reader finds the old offsets or the new ones.
    fn change(&self, change: impl FnOnce(&mut Ahead)) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut ahead);
        let new = self.dir.path().join("new");
        std::fs::write(&new, ahead.text()).expect("a file can be written");
        std::fs::rename(&new, self.file()).expect("a file can be renamed");
    }
}

impl Default for BentClock {
    fn default() -> Self {
        Self::new()
    }
}

/// What the executable under test runs on: the system's clocks and boot, unless its environment names files for them.
pub fn clocks_under_test() -> Clocks {
    let mut clocks = Clocks::default();
    if let Some(file) = std::env::var_os(CLOCK_FILE) {
        clocks
            .shim_environment
            .push((CLOCK_FILE.into(), file.clone()));
        FILE.get_or_init(|| file.into());
        clocks.relay = baton_relay::clock::Clock::offset(boot_ahead_ms, wall_ahead_ms);
        clocks.daemon = baton_daemon::Clock::offset(boot_ahead_ms, wall_ahead_ms);
    }
    if let Some(file) = std::env::var_os(BOOT_FILE) {
        clocks.boot_id_file = file.into();
    }
    clocks
}

static FILE: OnceLock<PathBuf> = OnceLock::new();
/// What was read last: a process that outlives its test keeps the time it had.
static LAST: Mutex<Ahead> = Mutex::new(Ahead {
    boot_ms: 0,
    wall_ms: 0,
});

fn boot_ahead_ms() -> u64 {
    read().boot_ms
}

fn wall_ahead_ms() -> i64 {
    read().wall_ms
}

fn read() -> Ahead {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let now = FILE.get().and_then(|file| read_file(file));
    *last = now.unwrap_or(*last);
    *last
}

fn read_file(file: &Path) -> Option<Ahead> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(Ahead::parse(&text).unwrap_or_else(|| panic!("{CLOCK_FILE} holds {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_survive_the_file_and_add_up() {
        let clock = BentClock::new();
        assert_eq!(read_file(&clock.file()), Some(Ahead::default()));
        clock.jump_wall(-86_400_000);
        clock.suspend(Duration::from_secs(3_600));
        let ahead = Ahead {
            boot_ms: 3_600_000,
            wall_ms: -82_800_000,
        };
        assert_eq!(read_file(&clock.file()), Some(ahead));
    }
}
