//! The relay's one clock seam: the only file that reads the system's clocks.
//!
//! Decisions take the monotonic `Moment` (CLOCK_BOOTTIME, so that time asleep counts); display, retention and
//! credential expiry take `Wall`. A test holds a `ClockControl` and can jump either clock or freeze both under
//! the real relay; a test executable gives offsets to a relay that is a process of its own. Nothing here decides
//! anything.

use std::sync::Arc;
use std::time::Duration;

use baton_core::time::{Moment, Now, Wall};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Longest single sleep: tokio's timers stand still while the machine is suspended, CLOCK_BOOTTIME does not.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// The same under offsets: nobody tells a sleeper that they changed.
const NAP_UNDER_OFFSETS: Duration = Duration::from_millis(20);

/// Both clocks, cheap to clone; all clones of one clock agree.
#[derive(Clone, Debug)]
pub struct Clock {
    /// CLOCK_BOOTTIME at construction: moments count from one second before it, so none is zero.
    origin_ms: u64,
    source: Source,
}

/// Where readings come from: the system's clocks, and what a test adds to them.
#[derive(Clone, Debug)]
enum Source {
    System,
    Controlled(Arc<watch::Sender<Bend>>),
    /// Milliseconds that CLOCK_BOOTTIME and the wall clock are ahead, asked at every reading.
    Offset {
        boot_ahead_ms: fn() -> u64,
        wall_ahead_ms: fn() -> i64,
    },
}

/// A test's hand on a `Clock`.
#[derive(Clone, Debug)]
pub struct ClockControl {
    clock: Clock,
    bent: Arc<watch::Sender<Bend>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bend {
    ahead_ms: u64,
    wall_ahead_ms: i64,
    frozen: Option<Now>,
}

impl Clock {
    pub fn system() -> Self {
        Self::read_from(Source::System)
    }

    /// The system's clocks, each ahead by what its function says at the moment of reading. CLOCK_BOOTTIME never goes
    /// back, so its offset may only grow. For test executables: a jump reaches a relay that is a process of its own.
    pub fn offset(boot_ahead_ms: fn() -> u64, wall_ahead_ms: fn() -> i64) -> Self {
        Self::read_from(Source::Offset {
            boot_ahead_ms,
            wall_ahead_ms,
        })
    }

    fn read_from(source: Source) -> Self {
        let boot_ms = read(ClockId::Boottime) + source.bend().ahead_ms;
        Self {
            origin_ms: boot_ms.saturating_sub(1_000),
            source,
        }
    }

    /// A clock that runs like the system's until its control bends it.
    pub fn controlled() -> (Self, ClockControl) {
        let bent = Arc::new(watch::Sender::new(Bend::default()));
        let clock = Self::read_from(Source::Controlled(bent.clone()));
        let control = ClockControl {
            clock: clock.clone(),
            bent,
        };
        (clock, control)
    }

    pub fn now(&self) -> Now {
        let bend = self.source.bend();
        bend.frozen.unwrap_or_else(|| self.unfrozen(bend))
    }

    /// Completes once `now().at` has reached `until`. Cancel safe.
    pub async fn sleep_until(&self, until: Moment) {
        let mut bends = self.source.changes();
        let longest = self.source.longest_nap();
        loop {
            let left = until.since(self.now().at);
            if left == 0 {
                return;
            }
            let nap = Duration::from_millis(left).min(longest);
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = bend_changed(bends.as_mut()) => {}
            }
        }
    }

    fn unfrozen(&self, bend: Bend) -> Now {
        let boot_ms = read(ClockId::Boottime).saturating_add(bend.ahead_ms);
        let wall = read(ClockId::Realtime);
        Now {
            at: Moment(boot_ms.saturating_sub(self.origin_ms)),
            wall: Wall(wall.saturating_add_signed(bend.wall_ahead_ms)),
        }
    }
}

impl Source {
    fn bend(&self) -> Bend {
        match self {
            Source::System => Bend::default(),
            Source::Controlled(bent) => *bent.borrow(),
            Source::Offset {
                boot_ahead_ms,
                wall_ahead_ms,
            } => Bend {
                ahead_ms: boot_ahead_ms(),
                wall_ahead_ms: wall_ahead_ms(),
                frozen: None,
            },
        }
    }

    fn changes(&self) -> Option<watch::Receiver<Bend>> {
        match self {
            Source::System | Source::Offset { .. } => None,
            Source::Controlled(bent) => Some(bent.subscribe()),
        }
    }

    fn longest_nap(&self) -> Duration {
        match self {
            Source::System | Source::Controlled(_) => LONGEST_NAP,
            Source::Offset { .. } => NAP_UNDER_OFFSETS,
        }
    }
}

impl ClockControl {
    /// Both clocks jump ahead, as after a suspended machine wakes.
    pub fn jump(&self, ms: u64) {
        self.bent.send_modify(|bend| {
            bend.ahead_ms += ms;
            bend.wall_ahead_ms += i64::try_from(ms).unwrap_or(i64::MAX);
            if let Some(now) = &mut bend.frozen {
                now.at = now.at + ms;
                now.wall = Wall(now.wall.0 + ms);
            }
        });
    }

    /// Only the wall clock jumps, either way, as when an administrator or NTP sets it.
    pub fn jump_wall(&self, ms: i64) {
        self.bent.send_modify(|bend| {
            bend.wall_ahead_ms += ms;
            if let Some(now) = &mut bend.frozen {
                now.wall = Wall(now.wall.0.saturating_add_signed(ms));
            }
        });
    }

    /// Time stands still until `jump` moves it.
    pub fn freeze(&self) {
        let now = self.clock.now();
        self.bent.send_modify(|bend| bend.frozen = Some(now));
    }
}

async fn bend_changed(bends: Option<&mut watch::Receiver<Bend>>) {
    if let Some(bends) = bends
        && bends.changed().await.is_ok()
    {
        return;
    }
    // Without a control, or after it went, the clock is never bent again.
    std::future::pending().await
}

fn read(clock: ClockId) -> u64 {
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
        let (clock, control) = Clock::controlled();
        control.freeze();
        let start = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(start.at + 3_600_000).await }
        });

        control.jump_wall(-5_000);
        assert_eq!(clock.now().at, start.at);
        assert_eq!(clock.now().wall.0, start.wall.0 - 5_000);

        control.jump(3_600_000);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes it")
            .unwrap();
        assert_eq!(clock.now().at.since(start.at), 3_600_000);
    }

    static BOOT_AHEAD: AtomicU64 = AtomicU64::new(0);
    static WALL_AHEAD: AtomicI64 = AtomicI64::new(0);

    #[tokio::test]
    async fn offsets_are_asked_at_every_reading_and_wake_sleepers() {
        let clock = Clock::offset(
            || BOOT_AHEAD.load(Ordering::Relaxed),
            || WALL_AHEAD.load(Ordering::Relaxed),
        );
        let start = clock.now();
        WALL_AHEAD.store(-86_400_000, Ordering::Relaxed);
        let back = clock.now();
        assert!(back.wall.0 < start.wall.0 - 80_000_000);
        assert!(back.at.since(start.at) < 80_000_000, "only the wall moved");
        let sleeper = clock.sleep_until(start.at + 3_600_000);
        BOOT_AHEAD.store(3_600_000, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes it");
    }
}
