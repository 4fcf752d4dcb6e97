//! The status that a daemon publishes for health checks and operators, and whether it is
//! healthy. Pure.

use std::time::Duration;

use crate::clock::BootTime;
use crate::machine::disk_monitor::DiskState;

/// How late an answer may be, beyond two heartbeats.
const LATE_ANSWER_MARGIN: Duration = Duration::from_secs(1);
/// A loop that has not turned for this long hangs. It turns every five seconds when nothing
/// happens.
const STUCK_AFTER: Duration = Duration::from_secs(15);

/// The latest status; a watch channel carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonStatus {
    /// A stream is open and the relay has sent Welcome on it.
    pub connected: bool,
    /// Empty until the first Welcome.
    pub daemon_id: String,
    pub slots: u32,
    /// Attempts that are unfinished for the relay and so take up a slot there: also accepted
    /// ones, and those whose process is gone while their files are checked or their output is
    /// sent.
    pub running: u32,
    pub draining: bool,
    /// Frames, oneof arms and enum values of a newer relay that this daemon did not know and
    /// ignored.
    pub unknown_messages: u64,
    /// The disk under the data directory.
    pub disk: DiskState,
    /// Less memory is available than new work requires.
    pub low_memory: bool,
    /// The relay on the current stream; `None` without one.
    pub relay_contact: Option<RelayContact>,
    /// Why there is no stream; empty while there is one.
    pub disconnect_reason: String,
    /// When the daemon's loop last turned.
    pub loop_turned_at: BootTime,
}

/// When the relay last answered, and how often it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayContact {
    pub at: BootTime,
    pub interval: Duration,
}

/// What is wrong with a daemon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HealthProblem {
    #[error("the daemon's loop has not turned for {} s; restart it", .0.as_secs())]
    Stuck(Duration),
    #[error("no stream to the relay: {0}")]
    Disconnected(String),
    #[error("the relay has not answered for {} s", .0.as_secs())]
    RelaySilent(Duration),
    #[error("new work is refused: {0}; free some space")]
    Disk(DiskState),
    #[error(
        "new work is refused: too little memory is available; see memory_floor_percent in daemon.toml"
    )]
    Memory,
}

impl DaemonStatus {
    pub(crate) fn new(daemon_id: &str, slots: u32, now: BootTime) -> Self {
        Self {
            connected: false,
            daemon_id: daemon_id.to_owned(),
            slots,
            running: 0,
            draining: false,
            unknown_messages: 0,
            disk: DiskState::Fine,
            low_memory: false,
            relay_contact: None,
            disconnect_reason: "it has not connected yet".to_owned(),
            loop_turned_at: now,
        }
    }

    /// Whether the loop hangs. That needs a restart; all other problems end by themselves or
    /// need the relay.
    pub fn stuck_problem(&self, now: BootTime) -> Option<HealthProblem> {
        let idle = self.loop_turned_at.until(now);
        (idle >= STUCK_AFTER).then_some(HealthProblem::Stuck(idle))
    }

    /// Why no work reaches this daemon.
    pub fn problem(&self, now: BootTime) -> Option<HealthProblem> {
        if let Some(stuck) = self.stuck_problem(now) {
            return Some(stuck);
        }
        let Some(contact) = self.relay_contact else {
            return Some(HealthProblem::Disconnected(self.disconnect_reason.clone()));
        };
        let silent = contact.at.until(now);
        if silent > contact.interval * 2 + LATE_ANSWER_MARGIN {
            return Some(HealthProblem::RelaySilent(silent));
        }
        if self.disk != DiskState::Fine {
            return Some(HealthProblem::Disk(self.disk));
        }
        self.low_memory.then_some(HealthProblem::Memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    #[test]
    fn a_daemon_is_healthy_while_its_loop_turns_and_the_relay_answers() {
        let mut status = DaemonStatus::new("d", 4, at(0));
        assert!(matches!(
            status.problem(at(1)),
            Some(HealthProblem::Disconnected(_))
        ));
        status.relay_contact = Some(RelayContact {
            at: at(1_000),
            interval: Duration::from_secs(5),
        });
        status.loop_turned_at = at(11_000);
        assert_eq!(status.problem(at(12_000)), None);
        status.disk = DiskState::Low;
        let full = status.problem(at(12_000)).unwrap().to_string();
        assert!(full.contains("nearly full"), "{full}");
        status.disk = DiskState::Fine;
        let deaf = HealthProblem::RelaySilent(Duration::from_millis(11_001));
        assert_eq!(status.problem(at(12_001)), Some(deaf));
        assert_eq!(status.stuck_problem(at(25_999)), None);
        let stuck = HealthProblem::Stuck(Duration::from_secs(15));
        assert_eq!(status.problem(at(26_000)), Some(stuck));
    }
}
