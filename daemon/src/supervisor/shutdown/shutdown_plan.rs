//! What the daemon does when it is ordered to stop. Pure.
//!
//! Attempts may finish until the end of the drain. What still runs then is handed over: the relay
//! is asked to extend the leases, the shims get them, and the daemon exits while the shims stay.
//! Without lease extensions the rest is killed. In any case the daemon has exited soon after its
//! deadline, whatever the relay and the shims do.

use std::time::Duration;

use crate::clock::BootTime;

/// The part of the drain that is reserved for the hand-over: a request to the relay, and a message
/// to each shim.
const HAND_OVER_RESERVE: Duration = Duration::from_secs(2);
/// The part of the drain that is reserved for killing: SIGTERM, time to clean up, SIGKILL, and the
/// receipts' way to the relay.
const KILL_RESERVE: Duration = Duration::from_secs(4);
/// Time after the deadline for what was begun before it. With the last writes and the Goodbye to
/// the relay it stays under a second.
const EXIT_MARGIN: Duration = Duration::from_millis(300);
/// The least time for the last writes, also when the deadline has passed.
const MIN_WRITE_TIME: Duration = Duration::from_millis(200);
/// How long the daemon waits for the relay's last acks, once nothing runs any more.
const FINAL_ACK_WAIT: Duration = Duration::from_secs(5);

/// The steps of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownPlan {
    Working,
    /// The relay has ordered a drain, which it may withdraw.
    DrainedByRelay,
    /// Ordered to stop: attempts may finish until `finish_by`.
    Draining {
        finish_by: BootTime,
        leave_by: BootTime,
    },
    /// What still runs goes on without this daemon.
    HandingOver {
        extension: LeaseExtensionState,
        leave_by: BootTime,
    },
    /// The rest is being killed.
    Killing {
        /// When SIGKILL is sent at the latest: the receipts need the rest of the time.
        kill_by: BootTime,
        leave_by: BootTime,
    },
    /// Nothing is left to do; the relay has until then to acknowledge the last frames.
    Exiting {
        until: BootTime,
        leave_by: BootTime,
        /// The leases of what still runs were extended.
        restarts: bool,
    },
}

/// How far the request for a lease extension has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseExtensionState {
    /// There was no stream to request it on yet.
    NotRequested,
    /// Requested on this stream at this time; the grant counts from it.
    Requested { stream: u64, at: BootTime },
    /// Granted. The shims are getting their leases.
    Granted,
}

/// How the daemon stops, by its configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShutdownSettings {
    pub(super) drain: Duration,
    /// Zero: nothing is handed over.
    pub(super) lease_extension: Duration,
}

impl ShutdownSettings {
    pub(super) fn begin_drain(self, now: BootTime) -> ShutdownPlan {
        let reserve = if self.lease_extension.is_zero() {
            KILL_RESERVE
        } else {
            HAND_OVER_RESERVE
        };
        ShutdownPlan::Draining {
            finish_by: now.after(self.drain - reserve.min(self.drain / 2)),
            leave_by: now.after(self.drain + EXIT_MARGIN),
        }
    }
}

/// What the next step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShutdownInputs {
    pub(super) now: BootTime,
    /// No attempt uses a slot.
    pub(super) is_idle: bool,
    /// Every attempt may be left to its shim, which has the lease that the relay granted last.
    pub(super) may_exit: bool,
    pub(super) settings: ShutdownSettings,
}

impl ShutdownPlan {
    pub(super) fn accepts_work(self) -> bool {
        matches!(self, Self::Working)
    }

    pub(super) fn is_stopping(self) -> bool {
        match self {
            Self::Working | Self::DrainedByRelay => false,
            Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. }
            | Self::Exiting { .. } => true,
        }
    }

    /// The step that follows now.
    pub(super) fn next(self, inputs: ShutdownInputs) -> Self {
        let ShutdownInputs { now, .. } = inputs;
        match self {
            Self::Draining { leave_by, .. }
            | Self::HandingOver { leave_by, .. }
            | Self::Killing { leave_by, .. }
                if inputs.is_idle =>
            {
                Self::Exiting {
                    until: now.after(FINAL_ACK_WAIT).min(leave_by),
                    leave_by,
                    restarts: false,
                }
            }
            Self::Draining {
                finish_by,
                leave_by,
            } if finish_by <= now => {
                if inputs.settings.lease_extension.is_zero() {
                    let left = now.until(leave_by.before(EXIT_MARGIN));
                    Self::Killing {
                        kill_by: now.after(left / 2),
                        leave_by,
                    }
                } else {
                    Self::HandingOver {
                        extension: LeaseExtensionState::NotRequested,
                        leave_by,
                    }
                }
            }
            Self::HandingOver {
                extension: LeaseExtensionState::Granted,
                leave_by,
            } if inputs.may_exit => Self::Exiting {
                until: now,
                leave_by,
                restarts: true,
            },
            Self::HandingOver {
                extension,
                leave_by,
            } if leave_by <= now => Self::Exiting {
                until: now,
                leave_by,
                restarts: extension == LeaseExtensionState::Granted,
            },
            Self::Killing { leave_by, .. } if leave_by <= now => Self::Exiting {
                until: now,
                leave_by,
                restarts: false,
            },
            other @ (Self::Working
            | Self::DrainedByRelay
            | Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. }
            | Self::Exiting { .. }) => other,
        }
    }

    /// When time alone causes the next step.
    pub(super) fn wake_at(self) -> Option<BootTime> {
        match self {
            Self::Working | Self::DrainedByRelay => None,
            Self::Draining { finish_by, .. } => Some(finish_by),
            Self::HandingOver { leave_by, .. } | Self::Killing { leave_by, .. } => Some(leave_by),
            Self::Exiting { until, .. } => Some(until),
        }
    }

    /// The time that is left to write the last frames.
    pub(super) fn write_time_left(self, now: BootTime) -> Duration {
        match self {
            Self::Exiting { leave_by, .. } => now.until(leave_by).max(MIN_WRITE_TIME),
            Self::Working
            | Self::DrainedByRelay
            | Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. } => MIN_WRITE_TIME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    fn inputs_at(now: u64, stopping: ShutdownSettings) -> ShutdownInputs {
        ShutdownInputs {
            now: at(now),
            is_idle: false,
            may_exit: false,
            settings: stopping,
        }
    }

    const WITH_EXTENSION: ShutdownSettings = ShutdownSettings {
        drain: Duration::from_secs(30),
        lease_extension: Duration::from_secs(600),
    };

    #[test]
    fn attempts_that_outlast_the_drain_are_handed_over() {
        let plan = WITH_EXTENSION.begin_drain(at(0));
        assert_eq!(plan.wake_at(), Some(at(28_000)));
        assert_eq!(plan.next(inputs_at(27_999, WITH_EXTENSION)), plan);
        let plan = plan.next(inputs_at(28_000, WITH_EXTENSION));
        let leave_by = at(30_300);
        let extension = LeaseExtensionState::NotRequested;
        assert_eq!(
            plan,
            ShutdownPlan::HandingOver {
                extension,
                leave_by
            }
        );
        let granted = ShutdownPlan::HandingOver {
            extension: LeaseExtensionState::Granted,
            leave_by,
        };
        assert_eq!(granted.next(inputs_at(28_100, WITH_EXTENSION)), granted);
        let ready = ShutdownInputs {
            may_exit: true,
            ..inputs_at(28_100, WITH_EXTENSION)
        };
        assert_eq!(plan.next(ready), plan, "told of what?");
        let left = ShutdownPlan::Exiting {
            until: at(28_100),
            leave_by,
            restarts: true,
        };
        assert_eq!(granted.next(ready), left);
    }

    #[test]
    fn a_silent_relay_does_not_delay_the_exit_past_the_deadline() {
        let plan = WITH_EXTENSION
            .begin_drain(at(0))
            .next(inputs_at(28_000, WITH_EXTENSION));
        assert_eq!(plan.next(inputs_at(30_299, WITH_EXTENSION)), plan);
        let left = ShutdownPlan::Exiting {
            until: at(30_300),
            leave_by: at(30_300),
            restarts: false,
        };
        assert_eq!(plan.next(inputs_at(30_300, WITH_EXTENSION)), left);
        assert_eq!(left.write_time_left(at(30_300)), MIN_WRITE_TIME);
        assert_eq!(left.write_time_left(at(20_300)), Duration::from_secs(10));
    }

    #[test]
    fn without_lease_extensions_the_rest_is_killed_in_time() {
        let killing = ShutdownSettings {
            lease_extension: Duration::ZERO,
            ..WITH_EXTENSION
        };
        let plan = killing.begin_drain(at(0));
        let plan = plan.next(inputs_at(26_000, killing));
        let killing_now = ShutdownPlan::Killing {
            kill_by: at(28_000),
            leave_by: at(30_300),
        };
        assert_eq!(plan, killing_now);
        let idle = ShutdownInputs {
            is_idle: true,
            ..inputs_at(27_000, killing)
        };
        let left = ShutdownPlan::Exiting {
            until: at(30_300),
            leave_by: at(30_300),
            restarts: false,
        };
        assert_eq!(plan.next(idle), left, "five seconds, but not beyond");
    }

    #[test]
    fn half_of_a_short_drain_is_for_the_attempts() {
        let short = ShutdownSettings {
            drain: Duration::from_secs(1),
            ..WITH_EXTENSION
        };
        assert_eq!(short.begin_drain(at(0)).wake_at(), Some(at(500)));
        let none = ShutdownSettings {
            drain: Duration::ZERO,
            ..WITH_EXTENSION
        };
        let plan = none.begin_drain(at(0)).next(inputs_at(0, none));
        assert!(matches!(plan, ShutdownPlan::HandingOver { leave_by, .. } if leave_by == at(300)));
    }
}
