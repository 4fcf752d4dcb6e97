//! How the daemon goes on: working, resting at the relay's wish, or on its way out.

use crate::clock::Moment;

/// How the daemon goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Working,
    /// The relay wants no new work to be taken; it may change its mind.
    Resting,
    /// Ordered to stop: attempts may finish until then.
    Draining {
        kill_at: Moment,
    },
    /// The rest is being killed.
    Killing,
    /// Nothing runs any more; the relay has until then to take the last frames.
    Leaving {
        until: Moment,
    },
}

impl Course {
    pub(super) fn takes_work(self) -> bool {
        matches!(self, Self::Working)
    }

    pub(super) fn is_stopping(self) -> bool {
        match self {
            Self::Working | Self::Resting => false,
            Self::Draining { .. } | Self::Killing | Self::Leaving { .. } => true,
        }
    }
}
