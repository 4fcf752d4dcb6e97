//! The daemon's one clock: CLOCK_BOOTTIME for every decision (it keeps counting while the machine
//! sleeps, as leases do), the wall clock for display only. Nothing else in this crate reads a clock.
//! A hand-driven clock takes its place in tests, so that time can jump in the real code.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Longest single wait on the runtime's timer. That timer stands still while the machine is
/// suspended and boottime does not, so a sleeper looks again at least this often.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// A point on the daemon's own time line, in milliseconds since boot. Never sent to anyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(wait)))
    }

    pub fn before(self, lead: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(lead)))
    }

    /// Time left until `later`; zero once it has come.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Boot,
    Manual(Arc<watch::Sender<Moment>>),
}

impl Clock {
    pub fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock that moves only when [`Clock::advance`] is called.
    pub fn manual(start: Moment) -> Self {
        Self(Source::Manual(Arc::new(watch::Sender::new(start))))
    }

    /// Moves a manual clock and wakes its sleepers; the real clock cannot be moved.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::Boot => {}
            Source::Manual(time) => time.send_modify(|now| *now = now.after(by)),
        }
    }

    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::Boot => boottime(),
            Source::Manual(time) => *time.borrow(),
        }
    }

    /// Wall time, for people to read. No decision may depend on it.
    #[expect(
        clippy::disallowed_methods,
        reason = "this file is the daemon's clock seam"
    )]
    pub fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Returns once `at` has come. Cancel safe.
    pub async fn sleep_until(&self, at: Moment) {
        match &self.0 {
            Source::Boot => nap_until(at).await,
            Source::Manual(time) => {
                // The sender lives in `self`, so the wait cannot fail.
                let _ = time.subscribe().wait_for(|now| *now >= at).await;
            }
        }
    }

    /// Like [`Clock::sleep_until`]; without a moment it never returns. Cancel safe.
    pub async fn sleep_until_some(&self, at: Option<Moment>) {
        match at {
            Some(at) => self.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

async fn nap_until(at: Moment) {
    loop {
        let left = boottime().until(at);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_NAP)).await;
    }
}

fn boottime() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment(seconds * 1_000 + nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn manual_clock_wakes_sleepers_only_when_their_moment_comes() {
        let clock = Clock::manual(Moment::from_millis(1_000));
        let sleeper = clock.clone();
        let task =
            tokio::spawn(async move { sleeper.sleep_until(Moment::from_millis(1_500)).await });
        clock.advance(Duration::from_millis(499));
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        clock.advance(Duration::from_millis(1));
        task.await.unwrap();
        assert_eq!(clock.now(), Moment::from_millis(1_500));
    }

    #[test]
    fn boottime_moves_forward_and_spans_saturate() {
        let clock = Clock::boot();
        let first = clock.now();
        assert!(clock.now() >= first);
        assert_eq!(first.after(Duration::MAX), Moment::from_millis(u64::MAX));
        assert_eq!(
            Moment::from_millis(5).before(Duration::from_secs(1)),
            Moment::from_millis(0)
        );
        assert_eq!(
            Moment::from_millis(9).until(Moment::from_millis(3)),
            Duration::ZERO
        );
    }
}
