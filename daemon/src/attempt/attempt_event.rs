//! What an attempt's task reports to the supervisor.

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::{LeaseToken, WorkspaceReport};

use super::{AgentNotice, AttemptEnding, CoalescedChunk, EventProgress};
use crate::clock::BootTime;
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::OutputCutReason;

#[derive(Debug)]
pub(crate) enum AttemptEvent {
    /// A phase was reached; `next_deadline` is informational.
    PhaseEntered {
        phase: OneTimePhase,
        pid: Option<i32>,
        next_deadline: Option<BootTime>,
        /// The deadline that ended the attempt, on the phase that begins its cleanup.
        passed_deadline: Option<DeadlineKind>,
        progress: EventProgress,
    },
    Output {
        chunk: CoalescedChunk,
        progress: EventProgress,
    },
    /// A coding agent used a tool or asked for input.
    AgentNotice {
        notice: AgentNotice,
        progress: EventProgress,
    },
    /// Output of this length is lost.
    OutputMissing {
        length: u64,
        why: OutputCutReason,
        progress: EventProgress,
    },
    /// Much of the transcript was read without an event of its own.
    TranscriptRead { progress: EventProgress },
    /// A shim that did not answer has been reached.
    ShimReached {
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
    },
    /// The attempt cannot start yet, for this reason.
    WaitsForWorkspace { message: String },
    /// The workspace of the attempt.
    WorkspaceReady(Box<WorkspaceReport>),
    /// Every process is gone, or cannot be killed; the rest of the output is still to come.
    ProcessesGone,
    /// The last event.
    Ended(AttemptEnding),
}

impl AttemptEvent {
    /// How far it has consumed the transcript.
    pub(crate) fn progress(&self) -> Option<&EventProgress> {
        match self {
            Self::PhaseEntered { progress, .. }
            | Self::Output { progress, .. }
            | Self::AgentNotice { progress, .. }
            | Self::OutputMissing { progress, .. }
            | Self::TranscriptRead { progress } => Some(progress),
            Self::ShimReached { .. }
            | Self::WaitsForWorkspace { .. }
            | Self::WorkspaceReady(_)
            | Self::ProcessesGone
            | Self::Ended(_) => None,
        }
    }

    pub(super) fn progress_mut(&mut self) -> Option<&mut EventProgress> {
        match self {
            Self::PhaseEntered { progress, .. }
            | Self::Output { progress, .. }
            | Self::AgentNotice { progress, .. }
            | Self::OutputMissing { progress, .. }
            | Self::TranscriptRead { progress } => Some(progress),
            Self::ShimReached { .. }
            | Self::WaitsForWorkspace { .. }
            | Self::WorkspaceReady(_)
            | Self::ProcessesGone
            | Self::Ended(_) => None,
        }
    }
}
