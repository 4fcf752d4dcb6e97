//! Why an attempt was ordered to stop, and what that decides about its end.

use baton_proto::v1::CancelReason;
use baton_proto::worker::{FoldSnapshot, StopOrder};

/// Why an attempt was ordered to stop. A stronger reason replaces a weaker one and decides which
/// frame ends the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Canceled(CancelReason),
    /// The daemon stops and could wait no longer. For the task that is a loss and not a cancel, so
    /// only a receipt is sent: the relay's policy for losses decides how the task goes on.
    Drained,
    /// The attempt's frames cannot be stored.
    DiskFull,
    /// A frame of the attempt exceeds what is written to the disk at once.
    TooLong,
    /// No renewal was acknowledged in time. Only a receipt is sent, and the result if there was
    /// one.
    LeaseEnded,
    /// The relay took the attempt away and accepts only a receipt.
    Fenced,
}

impl StopReason {
    pub(super) fn is_stronger_than(self, other: Self) -> bool {
        self.strength() > other.strength()
    }

    fn strength(self) -> u8 {
        match self {
            Self::Canceled(_) | Self::Drained | Self::DiskFull | Self::TooLong => 0,
            Self::LeaseEnded => 1,
            Self::Fenced => 2,
        }
    }

    /// Whether the attempt's lease is no longer valid.
    pub(super) fn ends_lease(self) -> bool {
        match self {
            Self::LeaseEnded | Self::Fenced => true,
            Self::Canceled(_) | Self::Drained | Self::DiskFull | Self::TooLong => false,
        }
    }

    /// Whether an agent may end its turn first. Not when the relay would not accept the result,
    /// and not after a deadline that the relay watches: an agent whose question was not answered
    /// in time would produce a result without the answer.
    pub(super) fn allows_interrupt(self) -> bool {
        match self {
            Self::Canceled(reason) => reason != CancelReason::Deadline,
            Self::Drained => true,
            Self::DiskFull | Self::TooLong | Self::LeaseEnded | Self::Fenced => false,
        }
    }

    /// Whether the attempt's agent may still call its tools.
    pub(super) fn allows_tool_calls(self) -> bool {
        match self {
            Self::Canceled(_) | Self::Drained => true,
            Self::DiskFull | Self::TooLong | Self::LeaseEnded | Self::Fenced => false,
        }
    }

    /// The order and the cancel reason as the snapshot stores them.
    pub(super) fn to_snapshot(reason: Option<Self>) -> (i32, i32) {
        let (order, cancel) = match reason {
            None => (StopOrder::Unspecified, CancelReason::Unspecified),
            Some(Self::Canceled(cancel)) => (StopOrder::Canceled, cancel),
            Some(Self::Drained) => (StopOrder::Drained, CancelReason::Unspecified),
            Some(Self::DiskFull) => (StopOrder::DiskFull, CancelReason::Unspecified),
            Some(Self::TooLong) => (StopOrder::TooLong, CancelReason::Unspecified),
            Some(Self::LeaseEnded) => (StopOrder::LeaseEnded, CancelReason::Unspecified),
            Some(Self::Fenced) => (StopOrder::Fenced, CancelReason::Unspecified),
        };
        (order.into(), cancel.into())
    }

    pub(super) fn from_snapshot(snapshot: &FoldSnapshot) -> Option<Self> {
        match snapshot.stop() {
            StopOrder::Unspecified => None,
            StopOrder::Canceled => Some(Self::Canceled(snapshot.cancel_reason())),
            StopOrder::Drained => Some(Self::Drained),
            StopOrder::DiskFull => Some(Self::DiskFull),
            StopOrder::TooLong => Some(Self::TooLong),
            StopOrder::LeaseEnded => Some(Self::LeaseEnded),
            StopOrder::Fenced => Some(Self::Fenced),
        }
    }
}
