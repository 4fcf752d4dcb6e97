//! The relay's one clock seam: the only file that reads the system's clocks.
//!
//! Decisions take the monotonic `Moment` (CLOCK_BOOTTIME, so that time asleep counts); display, retention and
//! credential expiry take `Wall`. A test holds a `ClockControl` and can jump either clock or freeze both under
//! the real relay; a test executable gives offsets to a relay that is a process of its own. Nothing here decides
//! anything.

use std::sync::Arc;
use std::time::Duration;

use baton_core::time::{ClockReading, MonotonicTime, WallTime};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Longest single sleep: tokio's timers stand still while the machine is suspended, CLOCK_BOOTTIME does not.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The same under offsets: nobody tells a sleeper that they changed.
const SLEEP_MAX_WITH_OFFSETS: Duration = Duration::from_millis(20);

/// Both clocks, cheap to clone; all clones of one clock agree.
#[derive(Clone, Debug)]
pub struct RelayClock {
    /// CLOCK_BOOTTIME at construction: moments count from one second before it, so none is zero.
    origin_ms: u64,
    source: RelayClockSource,
}

/// Where readings come from: the system's clocks, and what a test adds to them.
#[derive(Clone, Debug)]
enum RelayClockSource {
    System,
    Controlled(Arc<watch::Sender<ClockShift>>),
    /// Milliseconds that CLOCK_BOOTTIME and the wall clock are ahead, asked at every reading.
    Offset {
        boot_ahead_ms: fn() -> u64,
        wall_ahead_ms: fn() -> i64,
    },
}

/// A test's hand on a `Clock`.
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

    /// The system's clocks, each ahead by what its function says at the moment of reading. CLOCK_BOOTTIME never goes
    /// back, so its offset may only grow. For test executables: a jump reaches a relay that is a process of its own.
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

    /// A clock that runs like the system's until its control bends it.
    pub fn controlled() -> (Self, ClockControl) {
        let bent = Arc::new(watch::Sender::new(ClockShift::default()));
        let clock = Self::read_from(RelayClockSource::Controlled(bent.clone()));
        let control = ClockControl {
            clock: clock.clone(),
            shift: bent,
        };
        (clock, control)
    }

    pub fn now(&self) -> ClockReading {
        let bend = self.source.shift();
        bend.frozen.unwrap_or_else(|| self.shifted_now(bend))
    }

    /// Completes once `now().at` has reached `until`. Cancel safe.
    pub async fn sleep_until(&self, until: MonotonicTime) {
        let mut bends = self.source.changes();
        let longest = self.source.sleep_max();
        loop {
            let left = until.since(self.now().monotonic);
            if left == 0 {
                return;
            }
            let nap = Duration::from_millis(left).min(longest);
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = shift_changed(bends.as_mut()) => {}
            }
        }
    }

    fn shifted_now(&self, bend: ClockShift) -> ClockReading {
        let boot_ms = read_clock(ClockId::Boottime).saturating_add(bend.ahead_ms);
        let wall = read_clock(ClockId::Realtime);
        ClockReading {
            monotonic: MonotonicTime(boot_ms.saturating_sub(self.origin_ms)),
            wall: WallTime(wall.saturating_add_signed(bend.wall_ahead_ms)),
        }
    }
}

impl RelayClockSource {
    fn shift(&self) -> ClockShift {
        match self {
            RelayClockSource::System => ClockShift::default(),
            RelayClockSource::Controlled(bent) => *bent.borrow(),
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
            RelayClockSource::Controlled(bent) => Some(bent.subscribe()),
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
    /// Both clocks jump ahead, as after a suspended machine wakes.
    pub fn jump(&self, ms: u64) {
        self.shift.send_modify(|bend| {
            bend.ahead_ms += ms;
            bend.wall_ahead_ms += i64::try_from(ms).unwrap_or(i64::MAX);
            if let Some(now) = &mut bend.frozen {
                now.monotonic = now.monotonic + ms;
                now.wall = WallTime(now.wall.0 + ms);
            }
        });
    }

    /// Only the wall clock jumps, either way, as when an administrator or NTP sets it.
    pub fn jump_wall(&self, ms: i64) {
        self.shift.send_modify(|bend| {
            bend.wall_ahead_ms += ms;
            if let Some(now) = &mut bend.frozen {
                now.wall = WallTime(now.wall.0.saturating_add_signed(ms));
            }
        });
    }

    /// Time stands still until `jump` moves it.
    pub fn freeze(&self) {
        let now = self.clock.now();
        self.shift.send_modify(|bend| bend.frozen = Some(now));
    }
}

async fn shift_changed(bends: Option<&mut watch::Receiver<ClockShift>>) {
    if let Some(bends) = bends
        && bends.changed().await.is_ok()
    {
        return;
    }
    // Without a control, or after it went, the clock is never bent again.
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
    async fn a_jump_wakes_sleepers_and_a_wall_jump_moves_no_moment() {
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
            .expect("the jump wakes it")
            .unwrap();
        assert_eq!(clock.now().monotonic.since(start.monotonic), 3_600_000);
    }

    static BOOT_AHEAD: AtomicU64 = AtomicU64::new(0);
    static WALL_AHEAD: AtomicI64 = AtomicI64::new(0);

    #[tokio::test]
    async fn offsets_are_asked_at_every_reading_and_wake_sleepers() {
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
            "only the wall moved"
        );
        let sleeper = clock.sleep_until(start.monotonic + 3_600_000);
        BOOT_AHEAD.store(3_600_000, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes it");
    }
}
