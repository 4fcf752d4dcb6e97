//! The relay's clock, and the only file that reads the system clocks.
//!
//! Decisions use `MonotonicTime` (CLOCK_BOOTTIME, so that time in suspend counts). Display,
//! retention and credential expiry use `WallTime`. A test can move or freeze both clocks of a
//! relay in its own process with `ClockControl`; a test executable can give offsets to a relay
//! in another process. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use baton_core::time::{ClockReading, MonotonicTime, WallTime};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Longest single sleep. tokio's timers stop while the machine is suspended; CLOCK_BOOTTIME
/// does not.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Longest single sleep under offsets, because a sleeper is not notified when an offset
/// changes.
const SLEEP_MAX_WITH_OFFSETS: Duration = Duration::from_millis(20);

/// Both clocks. Cheap to clone; all clones agree.
#[derive(Clone, Debug)]
pub struct RelayClock {
    /// CLOCK_BOOTTIME at construction, minus one second. Readings count from it, so none is
    /// zero.
    origin_ms: u64,
    source: RelayClockSource,
}

/// Where readings come from: the system clocks, plus what a test adds.
#[derive(Clone, Debug)]
enum RelayClockSource {
    System,
    Controlled(Arc<watch::Sender<ClockShift>>),
    /// Milliseconds by which CLOCK_BOOTTIME and the wall clock are ahead; called at every
    /// reading.
    Offset {
        boot_ahead_ms: fn() -> u64,
        wall_ahead_ms: fn() -> i64,
    },
}

/// Lets a test move a `RelayClock`.
#[derive(Clone, Debug)]
pub struct ClockControl {
    clock: RelayClock,
    shift: Arc<watch::Sender<ClockShift>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClockShift {
    ahead_ms: u64,
    wall_ahead_ms: i64,
    frozen: Option<ClockReading>,
}

impl RelayClock {
    pub fn system() -> Self {
        Self::read_from(RelayClockSource::System)
    }

    /// The system clocks, each shifted by what its function returns at the time of reading.
    /// CLOCK_BOOTTIME never goes back, so its offset may only grow. Test executables use this
    /// to make a clock jump in a relay that runs as a separate process.
    pub fn offset(boot_ahead_ms: fn() -> u64, wall_ahead_ms: fn() -> i64) -> Self {
        Self::read_from(RelayClockSource::Offset {
            boot_ahead_ms,
            wall_ahead_ms,
        })
    }

    fn read_from(source: RelayClockSource) -> Self {
        let boot_ms = read_clock(ClockId::Boottime) + source.shift().ahead_ms;
        Self {
            origin_ms: boot_ms.saturating_sub(1_000),
            source,
        }
    }

    /// A clock that runs like the system's until its control changes it.
    pub fn controlled() -> (Self, ClockControl) {
        let shift = Arc::new(watch::Sender::new(ClockShift::default()));
        let clock = Self::read_from(RelayClockSource::Controlled(shift.clone()));
        let control = ClockControl {
            clock: clock.clone(),
            shift,
        };
        (clock, control)
    }

    pub fn now(&self) -> ClockReading {
        let shift = self.source.shift();
        shift.frozen.unwrap_or_else(|| self.shifted_now(shift))
    }

    /// Completes once `now().monotonic` has reached `until`. Cancel safe.
    pub async fn sleep_until(&self, until: MonotonicTime) {
        let mut changes = self.source.changes();
        let longest = self.source.sleep_max();
        loop {
            let left = until.since(self.now().monotonic);
            if left == 0 {
                return;
            }
            let nap = Duration::from_millis(left).min(longest);
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = shift_changed(changes.as_mut()) => {}
            }
        }
    }

    fn shifted_now(&self, shift: ClockShift) -> ClockReading {
        let boot_ms = read_clock(ClockId::Boottime).saturating_add(shift.ahead_ms);
        let wall = read_clock(ClockId::Realtime);
        ClockReading {
            monotonic: MonotonicTime(boot_ms.saturating_sub(self.origin_ms)),
            wall: WallTime(wall.saturating_add_signed(shift.wall_ahead_ms)),
        }
    }
}

impl RelayClockSource {
    fn shift(&self) -> ClockShift {
        match self {
            RelayClockSource::System => ClockShift::default(),
            RelayClockSource::Controlled(shift) => *shift.borrow(),
            RelayClockSource::Offset {
                boot_ahead_ms,
                wall_ahead_ms,
            } => ClockShift {
                ahead_ms: boot_ahead_ms(),
                wall_ahead_ms: wall_ahead_ms(),
                frozen: None,
            },
        }
    }

    fn changes(&self) -> Option<watch::Receiver<ClockShift>> {
        match self {
            RelayClockSource::System | RelayClockSource::Offset { .. } => None,
            RelayClockSource::Controlled(shift) => Some(shift.subscribe()),
        }
    }

    fn sleep_max(&self) -> Duration {
        match self {
            RelayClockSource::System | RelayClockSource::Controlled(_) => SLEEP_MAX,
            RelayClockSource::Offset { .. } => SLEEP_MAX_WITH_OFFSETS,
        }
    }
}

impl ClockControl {
    /// Both clocks jump ahead, as after a suspend.
    pub fn jump(&self, ms: u64) {
        self.shift.send_modify(|shift| {
            shift.ahead_ms += ms;
            shift.wall_ahead_ms += i64::try_from(ms).unwrap_or(i64::MAX);
            if let Some(now) = &mut shift.frozen {
                now.monotonic = now.monotonic + ms;
                now.wall = WallTime(now.wall.0 + ms);
            }
        });
    }

    /// Only the wall clock jumps, in either direction, as when an administrator or NTP sets it.
    pub fn jump_wall(&self, ms: i64) {
        self.shift.send_modify(|shift| {
            shift.wall_ahead_ms += ms;
            if let Some(now) = &mut shift.frozen {
                now.wall = WallTime(now.wall.0.saturating_add_signed(ms));
            }
        });
    }

    /// Stops both clocks until `jump` moves them.
    pub fn freeze(&self) {
        let now = self.clock.now();
        self.shift.send_modify(|shift| shift.frozen = Some(now));
    }
}

async fn shift_changed(changes: Option<&mut watch::Receiver<ClockShift>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    // Without a control, or after it was dropped, the clock never changes again.
    std::future::pending().await
}

fn read_clock(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000 + nanos / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_jump_wakes_sleepers_and_a_wall_jump_keeps_monotonic_time() {
        let (clock, control) = RelayClock::controlled();
        control.freeze();
        let start = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(start.monotonic + 3_600_000).await }
        });

        control.jump_wall(-5_000);
        assert_eq!(clock.now().monotonic, start.monotonic);
        assert_eq!(clock.now().wall.0, start.wall.0 - 5_000);

        control.jump(3_600_000);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes the sleeper")
            .unwrap();
        assert_eq!(clock.now().monotonic.since(start.monotonic), 3_600_000);
    }

    static BOOT_AHEAD: AtomicU64 = AtomicU64::new(0);
    static WALL_AHEAD: AtomicI64 = AtomicI64::new(0);

    #[tokio::test]
    async fn clock_offsets_apply_at_every_reading_and_wake_sleepers() {
        let clock = RelayClock::offset(
            || BOOT_AHEAD.load(Ordering::Relaxed),
            || WALL_AHEAD.load(Ordering::Relaxed),
        );
        let start = clock.now();
        WALL_AHEAD.store(-86_400_000, Ordering::Relaxed);
        let back = clock.now();
        assert!(back.wall.0 < start.wall.0 - 80_000_000);
        assert!(
            back.monotonic.since(start.monotonic) < 80_000_000,
            "only the wall clock moved"
        );
        let sleeper = clock.sleep_until(start.monotonic + 3_600_000);
        BOOT_AHEAD.store(3_600_000, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes the sleeper");
    }
}
