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
    /// A phase was reached; `next_deadline` is for people.
    PhaseEntered {
        phase: OneTimePhase,
        pid: Option<i32>,
        next_deadline: Option<BootTime>,
        /// Of the beginning of the end: the deadline that it is ended for.
        passed_deadline: Option<DeadlineKind>,
        progress: EventProgress,
    },
    Output {
        chunk: CoalescedChunk,
        progress: EventProgress,
    },
    /// A coding agent did or wants something.
    AgentNotice {
        notice: AgentNotice,
        progress: EventProgress,
    },
    /// Output of this length is gone for good.
    OutputMissing {
        length: u64,
        why: OutputCutReason,
        progress: EventProgress,
    },
    /// Much was read of which there is nothing to tell.
    TranscriptRead { progress: EventProgress },
    /// A shim that did not answer does so now.
    ShimReached {
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
    },
    /// It cannot start yet, and why.
    WaitsForWorkspace { message: String },
    /// Where it works.
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
