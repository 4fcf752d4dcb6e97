//! What a daemon tells the program that it runs in, for health checks and for people; and whether that is well. Pure.

use std::time::Duration;

use crate::clock::Moment;
use crate::disk::DiskState;

/// Answers may be this late beyond two heartbeats.
const LATE: Duration = Duration::from_secs(1);
/// A loop that has not turned for this long hangs. It turns every five seconds when nothing happens.
const STUCK: Duration = Duration::from_secs(15);

/// The latest facts; a watch channel carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonStatus {
    /// A stream stands and the relay has said Welcome on it.
    pub connected: bool,
    /// Empty until the first Welcome.
    pub daemon_id: String,
    pub slots: u32,
    /// Attempts that are not over for the relay, and so hold a slot there: accepted ones, and those whose process is gone while
    /// their files are looked at or their output goes out.
    pub running: u32,
    pub draining: bool,
    /// Frames, arms and numbers of a newer relay that this daemon did not know and ignored.
    pub unknown: u64,
    /// The disk under the data directory.
    pub disk: DiskState,
    /// Less memory is available than must be before new work is taken.
    pub low_memory: bool,
    /// The relay on the present stream; none without one.
    pub heard: Option<Heard>,
    /// Why there is no stream; empty while there is one.
    pub trouble: String,
    /// When the daemon's loop last turned.
    pub turned_at: Moment,
}

/// When the relay last answered, and how often it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    pub at: Moment,
    pub every: Duration,
}

/// What is wrong with a daemon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ailment {
    #[error("the daemon's loop has not turned for {} s; restart it", .0.as_secs())]
    Stuck(Duration),
    #[error("no stream to the relay: {0}")]
    Unconnected(String),
    #[error("the relay has not been heard for {} s", .0.as_secs())]
    Deaf(Duration),
    #[error("new work is refused: {0}; free some space")]
    Disk(DiskState),
    #[error(
        "new work is refused: too little memory is available; see memory_floor_percent in daemon.toml"
    )]
    Memory,
}

impl DaemonStatus {
    pub(crate) fn new(daemon_id: &str, slots: u32, now: Moment) -> Self {
        Self {
            connected: false,
            daemon_id: daemon_id.to_owned(),
            slots,
            running: 0,
            draining: false,
            unknown: 0,
            disk: DiskState::Fine,
            low_memory: false,
            heard: None,
            trouble: "it has not connected yet".to_owned(),
            turned_at: now,
        }
    }

    /// The loop turns. One that does not needs a restart; everything else mends itself or needs the relay.
    pub fn stuck(&self, now: Moment) -> Option<Ailment> {
        let stood = self.turned_at.until(now);
        (stood >= STUCK).then_some(Ailment::Stuck(stood))
    }

    /// Why no work reaches this daemon: a daemon that cannot receive is not alive.
    pub fn ailment(&self, now: Moment) -> Option<Ailment> {
        if let Some(stuck) = self.stuck(now) {
            return Some(stuck);
        }
        let Some(heard) = self.heard else {
            return Some(Ailment::Unconnected(self.trouble.clone()));
        };
        let silent = heard.at.until(now);
        if silent > heard.every * 2 + LATE {
            return Some(Ailment::Deaf(silent));
        }
        if self.disk != DiskState::Fine {
            return Some(Ailment::Disk(self.disk));
        }
        self.low_memory.then_some(Ailment::Memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn a_daemon_is_well_while_its_loop_turns_and_it_hears_the_relay() {
        let mut status = DaemonStatus::new("d", 4, at(0));
        assert!(matches!(
            status.ailment(at(1)),
            Some(Ailment::Unconnected(_))
        ));
        status.heard = Some(Heard {
            at: at(1_000),
            every: Duration::from_secs(5),
        });
        status.turned_at = at(11_000);
        assert_eq!(status.ailment(at(12_000)), None);
        status.disk = DiskState::Low;
        let full = status.ailment(at(12_000)).unwrap().to_string();
        assert!(full.contains("nearly full"), "{full}");
        status.disk = DiskState::Fine;
        let deaf = Ailment::Deaf(Duration::from_millis(11_001));
        assert_eq!(status.ailment(at(12_001)), Some(deaf));
        assert_eq!(status.stuck(at(25_999)), None);
        let stuck = Ailment::Stuck(Duration::from_secs(15));
        assert_eq!(status.ailment(at(26_000)), Some(stuck));
    }
}
