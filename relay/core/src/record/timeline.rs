//! What happened to a task, in order: bounded, oldest dropped and counted, but for what operators did, which stays longer.
//! Watchers and spans are fed from it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::AttemptState;
use super::audit::Audit;
use super::code::FailureCode;
use super::{AttentionCause, TaskState};
use crate::id::{AttemptId, CheckpointId, InputId};
use crate::time::Wall;

/// How many events a record keeps.
pub const TIMELINE_MAX: usize = 256;
/// How many of them may be what operators did before the rest begins: the newest.
pub const AUDITS_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Up to this revision events are gone, but for what operators did; behind it every one is here.
    pub dropped: u64,
    pub events: Vec<Arc<TimelineEvent>>,
}

impl Timeline {
    pub fn push(&mut self, event: Arc<TimelineEvent>) {
        while self.events.len() >= TIMELINE_MAX {
            self.drop_oldest();
        }
        self.events.push(event);
    }

    /// Drops a block at once, so that a long task does not shift the whole list on each event. A task that a daemon is loud
    /// about must not lose what a person did to it: audits give way to audits only.
    fn drop_oldest(&mut self) {
        let block = (TIMELINE_MAX / 8) as u64;
        self.dropped += block;
        let over = self.dropped;
        self.events
            .retain(|event| event.revision > over || event.is_audit());
        let audits = self.events.partition_point(|event| event.revision <= over);
        self.events.drain(..audits.saturating_sub(AUDITS_MAX));
    }

    /// Events that are not here any more.
    pub fn gone(&self) -> u64 {
        let audits = self
            .events
            .partition_point(|event| event.revision <= self.dropped);
        self.dropped - audits as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEvent {
    /// Rises by one within the task, without a gap.
    pub revision: u64,
    /// The relay's clock.
    pub at: Wall,
    /// The daemon's clock, where it told; informational.
    pub observed: Option<Wall>,
    pub attempt: Option<AttemptId>,
    pub kind: EventKind,
    /// The attempt's state after it.
    pub state: Option<AttemptState>,
    /// The task's state after it.
    pub task_state: TaskState,
    pub message: Option<Arc<str>>,
    /// For display: when the timer that this event armed will fire, if nothing happens.
    pub deadline: Option<(TimerKind, Wall)>,
}

impl TimelineEvent {
    /// Something that an operator did.
    pub fn is_audit(&self) -> bool {
        matches!(self.kind, EventKind::Forced(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    Submitted,
    /// A new attempt waits for a daemon.
    Queued,
    Offered {
        daemon: Arc<str>,
    },
    /// LeaseConfirmed: from here on a process may exist.
    Confirmed,
    /// The daemon would not take it.
    Rejected {
        code: Arc<str>,
    },
    Phase(Phase),
    ToolStarted {
        id: Arc<str>,
        name: Arc<str>,
    },
    ToolFinished {
        id: Arc<str>,
    },
    InputAsked {
        input: InputId,
    },
    InputAnswered {
        input: InputId,
    },
    InputReceived {
        input: InputId,
    },
    InputClosed {
        input: InputId,
    },
    /// A timer ran out; what follows from it is in the next events.
    DeadlineExpired {
        timer: TimerKind,
    },
    CancelRequested,
    CancelDelivered,
    CancelConfirmed,
    Ended {
        code: Option<FailureCode>,
        retryable: bool,
    },
    RetryScheduled {
        after_ms: u64,
    },
    RetryStopped,
    /// The conversation could not be resumed; this attempt begins a fresh one.
    ResumeFallback,
    /// An operator or client asked for another attempt.
    RetryAsked,
    Attention(AttentionCause),
    Paused,
    Unpaused,
    /// A result came and files are missing that it needs; one bit for each place in the contract.
    CompletionRefused {
        missing: u64,
    },
    /// The worker's word came after the end: its processes are gone.
    ReceiptArrived,
    /// A terminal frame that changed nothing.
    LateTerminal,
    /// A late result became the task's result.
    AdoptedLate,
    /// Goal-level progress was reported.
    Progress,
    Checkpoint {
        id: CheckpointId,
    },
    /// A person sent a parked task on.
    Resumed {
        by: Arc<str>,
    },
    /// An agent took a parked task over.
    PickedUp {
        by: Arc<str>,
    },
    /// An operator's verb; what follows from it is in the next events.
    Forced(Audit),
    /// A phase came twice or backwards; the first time in an attempt.
    PhaseRegression(Phase),
}

impl EventKind {
    /// The stable name on every surface.
    pub fn as_str(&self) -> &'static str {
        match self {
            EventKind::Submitted => "submitted",
            EventKind::Queued => "queued",
            EventKind::Offered { .. } => "offered",
            EventKind::Confirmed => "confirmed",
            EventKind::Rejected { .. } => "rejected",
            EventKind::Phase(phase) => phase.as_str(),
            EventKind::ToolStarted { .. } => "tool_started",
            EventKind::ToolFinished { .. } => "tool_finished",
            EventKind::InputAsked { .. } => "input_asked",
            EventKind::InputAnswered { .. } => "input_answered",
            EventKind::InputReceived { .. } => "input_received",
            EventKind::InputClosed { .. } => "input_closed",
            EventKind::DeadlineExpired { .. } => "deadline_expired",
            EventKind::CancelRequested => "cancel_requested",
            EventKind::CancelDelivered => "cancel_delivered",
            EventKind::CancelConfirmed => "cancel_confirmed",
            EventKind::Ended { .. } => "ended",
            EventKind::RetryScheduled { .. } => "retry_scheduled",
            EventKind::RetryStopped => "retry_stopped",
            EventKind::ResumeFallback => "resume_fallback",
            EventKind::RetryAsked => "retry_asked",
            EventKind::Attention(_) => "attention",
            EventKind::Paused => "paused",
            EventKind::Unpaused => "unpaused",
            EventKind::CompletionRefused { .. } => "completion_refused",
            EventKind::ReceiptArrived => "receipt_arrived",
            EventKind::LateTerminal => "late_terminal",
            EventKind::AdoptedLate => "adopted_late",
            EventKind::Progress => "progress",
            EventKind::Checkpoint { .. } => "checkpoint",
            EventKind::Resumed { .. } => "resumed",
            EventKind::PickedUp { .. } => "picked_up",
            EventKind::Forced(_) => "forced",
            EventKind::PhaseRegression(_) => "phase_regression",
        }
    }
}

/// The lifecycle phases that a daemon reports. Tool and input edges carry data and are frames of their own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    Accepted,
    Queued,
    Started,
    AgentStarted,
    PromptWritten,
    FirstEventSeen,
    FirstVisibleEventSeen,
    Streaming,
    ToolStarted,
    ToolFinished,
    WaitingInput,
    InputReceived,
    CleanupStarted,
    CleanupFinished,
    Heartbeat,
    RetryScheduled,
    Completed,
    Failed,
    Canceled,
    TimedOut,
    Lost,
    Blocked,
    Checkpointed,
    Released,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Accepted => "accepted",
            Phase::Queued => "queued",
            Phase::Started => "started",
            Phase::AgentStarted => "agent_started",
            Phase::PromptWritten => "prompt_written",
            Phase::FirstEventSeen => "first_event_seen",
            Phase::FirstVisibleEventSeen => "first_visible_event_seen",
            Phase::Streaming => "streaming",
            Phase::ToolStarted => "tool_started",
            Phase::ToolFinished => "tool_finished",
            Phase::WaitingInput => "waiting_input",
            Phase::InputReceived => "input_received",
            Phase::CleanupStarted => "cleanup_started",
            Phase::CleanupFinished => "cleanup_finished",
            Phase::Heartbeat => "heartbeat",
            Phase::RetryScheduled => "retry_scheduled",
            Phase::Completed => "completed",
            Phase::Failed => "failed",
            Phase::Canceled => "canceled",
            Phase::TimedOut => "timed_out",
            Phase::Lost => "lost",
            Phase::Blocked => "blocked",
            Phase::Checkpointed => "checkpointed",
            Phase::Released => "released",
        }
    }
}

/// The twelve timers: eight of the profile, four of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TimerKind {
    Queue,
    Accept,
    ProcessStart,
    PromptWrite,
    FirstEvent,
    FirstVisibleEvent,
    StreamIdle,
    ToolIdle,
    UserInput,
    CleanupTerm,
    Total,
    Lease,
}

impl TimerKind {
    pub const ALL: [TimerKind; 12] = [
        TimerKind::Queue,
        TimerKind::Accept,
        TimerKind::ProcessStart,
        TimerKind::PromptWrite,
        TimerKind::FirstEvent,
        TimerKind::FirstVisibleEvent,
        TimerKind::StreamIdle,
        TimerKind::ToolIdle,
        TimerKind::UserInput,
        TimerKind::CleanupTerm,
        TimerKind::Total,
        TimerKind::Lease,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TimerKind::Queue => "queue",
            TimerKind::Accept => "accept",
            TimerKind::ProcessStart => "process_start",
            TimerKind::PromptWrite => "prompt_write",
            TimerKind::FirstEvent => "first_event",
            TimerKind::FirstVisibleEvent => "first_visible_event",
            TimerKind::StreamIdle => "stream_idle",
            TimerKind::ToolIdle => "tool_idle",
            TimerKind::UserInput => "user_input",
            TimerKind::CleanupTerm => "cleanup_term",
            TimerKind::Total => "total",
            TimerKind::Lease => "lease",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::audit::Operation;
    use super::*;

    fn event(revision: u64, audit: bool) -> Arc<TimelineEvent> {
        let kind = if audit {
            EventKind::Forced(Audit {
                operation: Operation::Pause,
                by: "olga".into(),
                attempt_before: AttemptState::Queued,
                attempt_after: AttemptState::Queued,
                task_before: TaskState::Queued,
            })
        } else {
            EventKind::Progress
        };
        Arc::new(TimelineEvent {
            revision,
            at: Wall(0),
            observed: None,
            attempt: None,
            kind,
            state: None,
            task_state: TaskState::Queued,
            message: None,
            deadline: None,
        })
    }

    proptest! {
        /// Whatever comes: bounded, whole behind `dropped`, and before it the newest audits and nothing else.
        #[test]
        fn audits_give_way_to_audits_only(audits in proptest::collection::vec(prop::bool::weighted(0.2), 0..1_200)) {
            let mut timeline = Timeline::default();
            for (revision, audit) in (1..).zip(&audits) {
                timeline.push(event(revision, *audit));
            }
            let newest = audits.len() as u64;
            prop_assert!(timeline.events.len() <= TIMELINE_MAX);
            let (old, whole): (Vec<_>, Vec<_>) = timeline
                .events
                .iter()
                .partition(|event| event.revision <= timeline.dropped);
            let whole = whole.into_iter().map(|event| event.revision);
            prop_assert!(whole.eq(timeline.dropped + 1..=newest));
            let is_old_audit = |revision: &u64| {
                *revision <= timeline.dropped && audits[usize::try_from(*revision - 1).unwrap()]
            };
            let mut wanted: Vec<u64> = (1..=newest).filter(is_old_audit).collect();
            wanted.drain(..wanted.len().saturating_sub(AUDITS_MAX));
            let old: Vec<u64> = old.into_iter().map(|event| event.revision).collect();
            prop_assert_eq!(timeline.gone() + timeline.events.len() as u64, newest);
            prop_assert_eq!(old, wanted);
        }
    }
}
