//! The relay's one clock seam: the only file that reads the system's clocks.
//!
//! Decisions take the monotonic `Moment` (CLOCK_BOOTTIME, so that time asleep counts); display, retention and
//! credential expiry take `Wall`. A test holds a `ClockControl` and can jump either clock or freeze both under
//! the real relay. Nothing here decides anything.

use std::sync::Arc;
use std::time::Duration;

use baton_core::time::{Moment, Now, Wall};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Longest single sleep: tokio's timers stand still while the machine is suspended, CLOCK_BOOTTIME does not.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Both clocks, cheap to clone; all clones of one clock agree.
#[derive(Clone, Debug)]
pub struct Clock {
    /// CLOCK_BOOTTIME at construction: moments count from one second before it, so none is zero.
    origin_ms: u64,
    /// How a test bent the clock; absent in production.
    bent: Option<Arc<watch::Sender<Bend>>>,
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
        let origin_ms = read(ClockId::Boottime).saturating_sub(1_000);
        Self {
            origin_ms,
            bent: None,
        }
    }

    /// A clock that runs like the system's until its control bends it.
    pub fn controlled() -> (Self, ClockControl) {
        let bent = Arc::new(watch::Sender::new(Bend::default()));
        let clock = Self {
            bent: Some(bent.clone()),
            ..Self::system()
        };
        let control = ClockControl {
            clock: clock.clone(),
            bent,
        };
        (clock, control)
    }

    pub fn now(&self) -> Now {
        let bend = self
            .bent
            .as_ref()
            .map_or_else(Bend::default, |bent| *bent.borrow());
        bend.frozen.unwrap_or_else(|| self.unfrozen(bend))
    }

    /// Completes once `now().at` has reached `until`. Cancel safe.
    pub async fn sleep_until(&self, until: Moment) {
        let mut bends = self.bent.as_ref().map(|bent| bent.subscribe());
        loop {
            let left = until.since(self.now().at);
            if left == 0 {
                return;
            }
            let nap = Duration::from_millis(left).min(LONGEST_NAP);
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = bend_changed(bends.as_mut()) => {}
            }
        }
    }

    fn unfrozen(&self, bend: Bend) -> Now {
        let at = read(ClockId::Boottime).saturating_sub(self.origin_ms);
        let wall = read(ClockId::Realtime);
        Now {
            at: Moment(at.saturating_add(bend.ahead_ms)),
            wall: Wall(wall.saturating_add_signed(bend.wall_ahead_ms)),
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
}
