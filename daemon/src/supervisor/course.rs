//! How the daemon goes on: working, resting at the relay's wish, or on its way out. Pure.
//!
//! On its way out it lets attempts finish, and what still runs then is handed over: the relay is asked for a hold, the
//! shims are told, and the daemon goes while they stay. Without holds the rest is killed. Whatever others do or do not
//! do, it is gone soon after its deadline.

use std::time::Duration;

use crate::clock::Moment;

/// Of the drain's time, what is kept for handing over: a question to the relay, and a word to each shim.
const HAND_OVER: Duration = Duration::from_secs(2);
/// The same for killing: TERM, time to clean up, KILL, and the receipts' way to the relay.
const KILL: Duration = Duration::from_secs(4);
/// Beyond the deadline, for what was begun before it. With the last writes and the farewell to the relay it stays under a
/// second.
const TAIL: Duration = Duration::from_millis(300);
/// The least that the last writes get, also where nothing is left of the time.
const LAST_WRITES: Duration = Duration::from_millis(200);
/// How long the relay is waited for to take what is unacknowledged, once nothing runs any more.
const LEAVE: Duration = Duration::from_secs(5);

/// How the daemon goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Working,
    /// The relay wants no new work to be taken; it may change its mind.
    Resting,
    /// Ordered to stop: attempts may finish until then.
    Draining {
        over_at: Moment,
        leave_by: Moment,
    },
    /// What still runs goes on without this daemon.
    HandingOver {
        hold: Hold,
        leave_by: Moment,
    },
    /// The rest is being killed.
    Killing {
        /// When KILL goes out at the latest: the receipts need the rest.
        kill_by: Moment,
        leave_by: Moment,
    },
    /// Nothing is left to do here; the relay has until then to take the last frames.
    Leaving {
        until: Moment,
        leave_by: Moment,
        /// A hold was taken for what still runs.
        restarts: bool,
    },
}

/// How far the relay has come with the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// There was no stream to ask on yet.
    Unasked,
    /// On this stream, at this moment; the grant counts from it.
    Asked { stream: u64, at: Moment },
    /// Granted. The shims are being told.
    Granted,
}

/// The order to stop, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    pub(super) drain: Duration,
    /// Zero: nothing is handed over.
    pub(super) hold: Duration,
}

impl Stopping {
    pub(super) fn begin(self, now: Moment) -> Course {
        let lead = if self.hold.is_zero() { KILL } else { HAND_OVER };
        Course::Draining {
            over_at: now.after(self.drain - lead.min(self.drain / 2)),
            leave_by: now.after(self.drain + TAIL),
        }
    }
}

/// What a step of the course depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) now: Moment,
    /// No attempt holds a slot any more.
    pub(super) idle: bool,
    /// Every attempt may be left to its shim, which has the lease that the relay granted last.
    pub(super) may_leave: bool,
    pub(super) stopping: Stopping,
}

impl Course {
    pub(super) fn takes_work(self) -> bool {
        matches!(self, Self::Working)
    }

    pub(super) fn is_stopping(self) -> bool {
        match self {
            Self::Working | Self::Resting => false,
            Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. }
            | Self::Leaving { .. } => true,
        }
    }

    /// Where it goes from here, now.
    pub(super) fn next(self, scene: Scene) -> Self {
        let Scene { now, .. } = scene;
        match self {
            Self::Draining { leave_by, .. }
            | Self::HandingOver { leave_by, .. }
            | Self::Killing { leave_by, .. }
                if scene.idle =>
            {
                Self::Leaving {
                    until: now.after(LEAVE).min(leave_by),
                    leave_by,
                    restarts: false,
                }
            }
            Self::Draining { over_at, leave_by } if over_at <= now => {
                if scene.stopping.hold.is_zero() {
                    let left = now.until(leave_by.before(TAIL));
                    Self::Killing {
                        kill_by: now.after(left / 2),
                        leave_by,
                    }
                } else {
                    Self::HandingOver {
                        hold: Hold::Unasked,
                        leave_by,
                    }
                }
            }
            Self::HandingOver {
                hold: Hold::Granted,
                leave_by,
            } if scene.may_leave => Self::Leaving {
                until: now,
                leave_by,
                restarts: true,
            },
            Self::HandingOver { hold, leave_by } if leave_by <= now => Self::Leaving {
                until: now,
                leave_by,
                restarts: hold == Hold::Granted,
            },
            Self::Killing { leave_by, .. } if leave_by <= now => Self::Leaving {
                until: now,
                leave_by,
                restarts: false,
            },
            other @ (Self::Working
            | Self::Resting
            | Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. }
            | Self::Leaving { .. }) => other,
        }
    }

    /// When time alone moves it on.
    pub(super) fn wake_at(self) -> Option<Moment> {
        match self {
            Self::Working | Self::Resting => None,
            Self::Draining { over_at, .. } => Some(over_at),
            Self::HandingOver { leave_by, .. } | Self::Killing { leave_by, .. } => Some(leave_by),
            Self::Leaving { until, .. } => Some(until),
        }
    }

    /// What is left for the disk to take the last frames.
    pub(super) fn last_writes(self, now: Moment) -> Duration {
        match self {
            Self::Leaving { leave_by, .. } => now.until(leave_by).max(LAST_WRITES),
            Self::Working
            | Self::Resting
            | Self::Draining { .. }
            | Self::HandingOver { .. }
            | Self::Killing { .. } => LAST_WRITES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn scene(now: u64, stopping: Stopping) -> Scene {
        Scene {
            now: at(now),
            idle: false,
            may_leave: false,
            stopping,
        }
    }

    const HOLDING: Stopping = Stopping {
        drain: Duration::from_secs(30),
        hold: Duration::from_secs(600),
    };

    #[test]
    fn what_outlasts_the_drain_is_handed_over_and_then_the_daemon_leaves_at_once() {
        let course = HOLDING.begin(at(0));
        assert_eq!(course.wake_at(), Some(at(28_000)));
        assert_eq!(course.next(scene(27_999, HOLDING)), course);
        let course = course.next(scene(28_000, HOLDING));
        let leave_by = at(30_300);
        let hold = Hold::Unasked;
        assert_eq!(course, Course::HandingOver { hold, leave_by });
        let granted = Course::HandingOver {
            hold: Hold::Granted,
            leave_by,
        };
        assert_eq!(granted.next(scene(28_100, HOLDING)), granted);
        let ready = Scene {
            may_leave: true,
            ..scene(28_100, HOLDING)
        };
        assert_eq!(course.next(ready), course, "told of what?");
        let left = Course::Leaving {
            until: at(28_100),
            leave_by,
            restarts: true,
        };
        assert_eq!(granted.next(ready), left);
    }

    #[test]
    fn a_relay_that_does_not_answer_delays_nobody_beyond_the_deadline() {
        let course = HOLDING.begin(at(0)).next(scene(28_000, HOLDING));
        assert_eq!(course.next(scene(30_299, HOLDING)), course);
        let left = Course::Leaving {
            until: at(30_300),
            leave_by: at(30_300),
            restarts: false,
        };
        assert_eq!(course.next(scene(30_300, HOLDING)), left);
        assert_eq!(left.last_writes(at(30_300)), LAST_WRITES);
        assert_eq!(left.last_writes(at(20_300)), Duration::from_secs(10));
    }

    #[test]
    fn without_holds_the_rest_is_killed_in_time_for_its_receipts() {
        let killing = Stopping {
            hold: Duration::ZERO,
            ..HOLDING
        };
        let course = killing.begin(at(0));
        let course = course.next(scene(26_000, killing));
        let killing_now = Course::Killing {
            kill_by: at(28_000),
            leave_by: at(30_300),
        };
        assert_eq!(course, killing_now);
        let idle = Scene {
            idle: true,
            ..scene(27_000, killing)
        };
        let left = Course::Leaving {
            until: at(30_300),
            leave_by: at(30_300),
            restarts: false,
        };
        assert_eq!(course.next(idle), left, "five seconds, but not beyond");
    }

    #[test]
    fn however_short_the_drain_is_half_of_it_is_for_the_attempts() {
        let short = Stopping {
            drain: Duration::from_secs(1),
            ..HOLDING
        };
        assert_eq!(short.begin(at(0)).wake_at(), Some(at(500)));
        let none = Stopping {
            drain: Duration::ZERO,
            ..HOLDING
        };
        let course = none.begin(at(0)).next(scene(0, none));
        assert!(matches!(course, Course::HandingOver { leave_by, .. } if leave_by == at(300)));
    }
}
