//! The daemon's only clock: CLOCK_BOOTTIME for every decision (it goes on during a suspend, as
//! leases do), the wall clock for display only. Nothing else in this crate reads a clock.
//!
//! Tests use a manual clock, so that time can jump in the real code. A test executable uses
//! offsets instead, so that time can jump in a daemon and a shim that are separate processes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

pub use baton_daemon_core::time::BootTime;
pub(crate) use baton_daemon_core::time::whole_millis;

/// The longest single wait on the runtime's timer. That timer stops during a suspend and
/// boottime does not, so a sleeper checks the time at least this often.
const SLEEP_STEP_MAX: Duration = Duration::from_millis(500);
/// The same with offsets: sleepers are not notified when they change.
const SLEEP_STEP_MAX_WITH_OFFSETS: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Clock(DaemonClockSource);

#[derive(Clone, Debug)]
enum DaemonClockSource {
    Boot,
    /// Milliseconds that CLOCK_BOOTTIME and the wall clock are ahead, read at every use.
    Offset {
        boot_ahead_ms: fn() -> u64,
        wall_ahead_ms: fn() -> i64,
    },
    Manual(Arc<watch::Sender<BootTime>>),
}

impl Clock {
    pub fn boot() -> Self {
        Self(DaemonClockSource::Boot)
    }

    /// The system's clocks, each ahead by what its function returns at the time of reading.
    /// CLOCK_BOOTTIME never goes back, so its offset may only grow. For test executables.
    pub fn offset(boot_ahead_ms: fn() -> u64, wall_ahead_ms: fn() -> i64) -> Self {
        Self(DaemonClockSource::Offset {
            boot_ahead_ms,
            wall_ahead_ms,
        })
    }

    /// A clock that moves only when [`Clock::advance`] is called.
    pub fn manual(start: BootTime) -> Self {
        Self(DaemonClockSource::Manual(Arc::new(watch::Sender::new(
            start,
        ))))
    }

    /// Moves a manual clock and wakes its sleepers; the real clock cannot be moved.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            DaemonClockSource::Boot | DaemonClockSource::Offset { .. } => {}
            DaemonClockSource::Manual(time) => time.send_modify(|now| *now = now.after(by)),
        }
    }

    pub fn now(&self) -> BootTime {
        match &self.0 {
            DaemonClockSource::Boot => read_boottime(),
            DaemonClockSource::Offset { boot_ahead_ms, .. } => {
                read_boottime().after(Duration::from_millis(boot_ahead_ms()))
            }
            DaemonClockSource::Manual(time) => *time.borrow(),
        }
    }

    /// The wall time, for display. No decision may depend on it.
    #[expect(
        clippy::disallowed_methods,
        reason = "this file is the daemon's clock seam"
    )]
    pub fn wall(&self) -> SystemTime {
        let wall = SystemTime::now();
        match &self.0 {
            DaemonClockSource::Boot | DaemonClockSource::Manual(_) => wall,
            DaemonClockSource::Offset { wall_ahead_ms, .. } => {
                shift_wall_time(wall, wall_ahead_ms())
            }
        }
    }

    /// The wall time in milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        let since = self.wall().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, whole_millis)
    }

    /// How long a sleeper may wait on a timer that does not follow this clock before it checks
    /// the time again.
    pub(crate) fn max_sleep_step(&self) -> Duration {
        match &self.0 {
            DaemonClockSource::Boot | DaemonClockSource::Manual(_) => SLEEP_STEP_MAX,
            DaemonClockSource::Offset { .. } => SLEEP_STEP_MAX_WITH_OFFSETS,
        }
    }

    /// The same for a wait on a kernel timer of CLOCK_BOOTTIME; `None` when that is this clock.
    pub(crate) fn max_poll_wait(&self) -> Option<Duration> {
        match &self.0 {
            DaemonClockSource::Boot => None,
            DaemonClockSource::Offset { .. } | DaemonClockSource::Manual(_) => {
                Some(SLEEP_STEP_MAX_WITH_OFFSETS)
            }
        }
    }

    /// Returns once `at` has come. Cancel safe.
    pub async fn sleep_until(&self, at: BootTime) {
        match &self.0 {
            DaemonClockSource::Boot | DaemonClockSource::Offset { .. } => {
                self.sleep_in_steps_until(at).await
            }
            DaemonClockSource::Manual(time) => {
                // The sender lives in `self`, so the wait cannot fail.
                let _ = time.subscribe().wait_for(|now| *now >= at).await;
            }
        }
    }

    /// Like [`Clock::sleep_until`]; never returns for `None`. Cancel safe.
    pub async fn sleep_until_some(&self, at: Option<BootTime>) {
        match at {
            Some(at) => self.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    async fn sleep_in_steps_until(&self, at: BootTime) {
        loop {
            let left = self.now().until(at);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(self.max_sleep_step())).await;
        }
    }
}

fn shift_wall_time(wall: SystemTime, ahead_ms: i64) -> SystemTime {
    let by = Duration::from_millis(ahead_ms.unsigned_abs());
    let shifted = if ahead_ms < 0 {
        wall.checked_sub(by)
    } else {
        wall.checked_add(by)
    };
    shifted.unwrap_or(wall)
}

fn read_boottime() -> BootTime {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    BootTime::from_millis(seconds * 1_000 + nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_their_time_comes() {
        let clock = Clock::manual(BootTime::from_millis(1_000));
        let sleeper = clock.clone();
        let task =
            tokio::spawn(async move { sleeper.sleep_until(BootTime::from_millis(1_500)).await });
        clock.advance(Duration::from_millis(499));
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        clock.advance(Duration::from_millis(1));
        task.await.unwrap();
        assert_eq!(clock.now(), BootTime::from_millis(1_500));
    }

    static BOOT_AHEAD: AtomicU64 = AtomicU64::new(0);
    static WALL_AHEAD: AtomicI64 = AtomicI64::new(0);

    #[tokio::test]
    async fn offsets_are_read_every_time_and_wake_sleepers() {
        let clock = Clock::offset(
            || BOOT_AHEAD.load(Ordering::Relaxed),
            || WALL_AHEAD.load(Ordering::Relaxed),
        );
        let (start, wall) = (clock.now(), clock.wall());
        WALL_AHEAD.store(-86_400_000, Ordering::Relaxed);
        assert!(clock.wall() < wall - Duration::from_secs(80_000));
        let hour = Duration::from_secs(3_600);
        assert!(
            start.until(clock.now()) < hour,
            "a jump of the wall clock does not move boottime"
        );
        let sleeper = clock.sleep_until(start.after(hour));
        BOOT_AHEAD.store(3_600_000, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(20), sleeper)
            .await
            .expect("the jump wakes it");
    }

    #[test]
    fn boottime_moves_forward_and_spans_saturate() {
        let clock = Clock::boot();
        let first = clock.now();
        assert!(clock.now() >= first);
        assert_eq!(first.after(Duration::MAX), BootTime::from_millis(u64::MAX));
        assert_eq!(
            BootTime::from_millis(5).before(Duration::from_secs(1)),
            BootTime::from_millis(0)
        );
        assert_eq!(
            BootTime::from_millis(9).until(BootTime::from_millis(3)),
            Duration::ZERO
        );
    }
}
