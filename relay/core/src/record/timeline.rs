//! The timeline of a task: its events in order. It is bounded; the oldest events are dropped
//! and counted, but operator actions are retained longer. Watchers and spans are built from it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::AttemptStateKind;
use super::audit::OperatorAudit;
use super::failure_code::FailureCode;
use super::{AttentionCause, TaskState};
use crate::ids::{AttemptId, CheckpointId, InputId};
use crate::time::WallTime;

/// Limit on the events of a record.
pub const TIMELINE_MAX: usize = 256;
/// Limit on operator actions that are older than the retained events; the newest are retained.
pub const AUDITS_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTimeline {
    /// Events up to this revision were dropped, except operator actions. Later ones are
    /// complete.
    pub dropped_through: u64,
    pub events: Vec<Arc<TimelineEvent>>,
}

impl TaskTimeline {
    pub fn push(&mut self, event: Arc<TimelineEvent>) {
        while self.events.len() >= TIMELINE_MAX {
            self.drop_oldest();
        }
        self.events.push(event);
    }

    /// Drops a block at once, so that a long task does not shift the whole list on each event.
    /// Many events of a daemon must not push out operator actions, so an audit event is dropped
    /// only for newer audit events.
    fn drop_oldest(&mut self) {
        let block = (TIMELINE_MAX / 8) as u64;
        self.dropped_through += block;
        let dropped_through = self.dropped_through;
        self.events
            .retain(|event| event.revision > dropped_through || event.is_audit());
        let audits = self
            .events
            .partition_point(|event| event.revision <= dropped_through);
        self.events.drain(..audits.saturating_sub(AUDITS_MAX));
    }

    /// The number of dropped events.
    pub fn dropped_count(&self) -> u64 {
        let audits = self
            .events
            .partition_point(|event| event.revision <= self.dropped_through);
        self.dropped_through - audits as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEvent {
    /// Rises by one within the task, without gaps.
    pub revision: u64,
    /// By the relay's clock.
    pub at: WallTime,
    /// By the daemon's clock, if it sent a time; informational.
    pub observed_at: Option<WallTime>,
    pub attempt: Option<AttemptId>,
    pub kind: TimelineEventKind,
    /// The state of the attempt after the event.
    pub state: Option<AttemptStateKind>,
    /// The state of the task after the event.
    pub task_state: TaskState,
    pub message: Option<Arc<str>>,
    /// For display: the next deadline after this event, except the lease.
    pub deadline: Option<(TimerKind, WallTime)>,
}

impl TimelineEvent {
    /// Whether it records an operator action.
    pub fn is_audit(&self) -> bool {
        matches!(self.kind, TimelineEventKind::Forced(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimelineEventKind {
    Submitted,
    /// A new attempt waits for a daemon.
    Queued,
    Offered {
        daemon: Arc<str>,
    },
    /// LeaseConfirmed: from here on a process may exist.
    Confirmed,
    /// The daemon rejected the offer.
    Rejected {
        code: Arc<str>,
    },
    Phase(LifecyclePhase),
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
    /// A timer expired; the following events show the consequences.
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
    /// A completion was refused because required files are missing. One bit for each file of
    /// the contract.
    CompletionRefused {
        missing: u64,
    },
    /// The worker confirmed after the end that its processes are gone.
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
    /// A person resumed a parked task.
    Resumed {
        by: Arc<str>,
    },
    /// An agent picked up a parked task.
    PickedUp {
        by: Arc<str>,
    },
    /// An operator action; the following events show the consequences.
    Forced(OperatorAudit),
    /// The first time in an attempt that a phase was repeated or out of order.
    PhaseRegression(LifecyclePhase),
}

impl TimelineEventKind {
    /// The stable name in every interface.
    pub fn as_str(&self) -> &'static str {
        match self {
            TimelineEventKind::Submitted => "submitted",
            TimelineEventKind::Queued => "queued",
            TimelineEventKind::Offered { .. } => "offered",
            TimelineEventKind::Confirmed => "confirmed",
            TimelineEventKind::Rejected { .. } => "rejected",
            TimelineEventKind::Phase(phase) => phase.as_str(),
            TimelineEventKind::ToolStarted { .. } => "tool_started",
            TimelineEventKind::ToolFinished { .. } => "tool_finished",
            TimelineEventKind::InputAsked { .. } => "input_asked",
            TimelineEventKind::InputAnswered { .. } => "input_answered",
            TimelineEventKind::InputReceived { .. } => "input_received",
            TimelineEventKind::InputClosed { .. } => "input_closed",
            TimelineEventKind::DeadlineExpired { .. } => "deadline_expired",
            TimelineEventKind::CancelRequested => "cancel_requested",
            TimelineEventKind::CancelDelivered => "cancel_delivered",
            TimelineEventKind::CancelConfirmed => "cancel_confirmed",
            TimelineEventKind::Ended { .. } => "ended",
            TimelineEventKind::RetryScheduled { .. } => "retry_scheduled",
            TimelineEventKind::RetryStopped => "retry_stopped",
            TimelineEventKind::ResumeFallback => "resume_fallback",
            TimelineEventKind::RetryAsked => "retry_asked",
            TimelineEventKind::Attention(_) => "attention",
            TimelineEventKind::Paused => "paused",
            TimelineEventKind::Unpaused => "unpaused",
            TimelineEventKind::CompletionRefused { .. } => "completion_refused",
            TimelineEventKind::ReceiptArrived => "receipt_arrived",
            TimelineEventKind::LateTerminal => "late_terminal",
            TimelineEventKind::AdoptedLate => "adopted_late",
            TimelineEventKind::Progress => "progress",
            TimelineEventKind::Checkpoint { .. } => "checkpoint",
            TimelineEventKind::Resumed { .. } => "resumed",
            TimelineEventKind::PickedUp { .. } => "picked_up",
            TimelineEventKind::Forced(_) => "forced",
            TimelineEventKind::PhaseRegression(_) => "phase_regression",
        }
    }
}

/// The lifecycle phases that a daemon reports. Tool calls and inputs carry data and have frames
/// of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LifecyclePhase {
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

impl LifecyclePhase {
    pub fn as_str(self) -> &'static str {
        match self {
            LifecyclePhase::Accepted => "accepted",
            LifecyclePhase::Queued => "queued",
            LifecyclePhase::Started => "started",
            LifecyclePhase::AgentStarted => "agent_started",
            LifecyclePhase::PromptWritten => "prompt_written",
            LifecyclePhase::FirstEventSeen => "first_event_seen",
            LifecyclePhase::FirstVisibleEventSeen => "first_visible_event_seen",
            LifecyclePhase::Streaming => "streaming",
            LifecyclePhase::ToolStarted => "tool_started",
            LifecyclePhase::ToolFinished => "tool_finished",
            LifecyclePhase::WaitingInput => "waiting_input",
            LifecyclePhase::InputReceived => "input_received",
            LifecyclePhase::CleanupStarted => "cleanup_started",
            LifecyclePhase::CleanupFinished => "cleanup_finished",
            LifecyclePhase::Heartbeat => "heartbeat",
            LifecyclePhase::RetryScheduled => "retry_scheduled",
            LifecyclePhase::Completed => "completed",
            LifecyclePhase::Failed => "failed",
            LifecyclePhase::Canceled => "canceled",
            LifecyclePhase::TimedOut => "timed_out",
            LifecyclePhase::Lost => "lost",
            LifecyclePhase::Blocked => "blocked",
            LifecyclePhase::Checkpointed => "checkpointed",
            LifecyclePhase::Released => "released",
        }
    }
}

/// The twelve timers: eight from the profile, four of the relay.
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

    use super::super::audit::AuditedOperation;
    use super::*;

    fn event(revision: u64, audit: bool) -> Arc<TimelineEvent> {
        let kind = if audit {
            TimelineEventKind::Forced(OperatorAudit {
                operation: AuditedOperation::Pause,
                by: "olga".into(),
                attempt_before: AttemptStateKind::Queued,
                attempt_after: AttemptStateKind::Queued,
                task_before: TaskState::Queued,
            })
        } else {
            TimelineEventKind::Progress
        };
        Arc::new(TimelineEvent {
            revision,
            at: WallTime(0),
            observed_at: None,
            attempt: None,
            kind,
            state: None,
            task_state: TaskState::Queued,
            message: None,
            deadline: None,
        })
    }

    proptest! {
        /// For any sequence of events the timeline is bounded, complete after
        /// `dropped_through`, and before it contains only the newest audit events.
        #[test]
        fn audit_events_are_dropped_only_for_newer_audit_events(audits in proptest::collection::vec(prop::bool::weighted(0.2), 0..1_200)) {
            let mut timeline = TaskTimeline::default();
            for (revision, audit) in (1..).zip(&audits) {
                timeline.push(event(revision, *audit));
            }
            let newest = audits.len() as u64;
            prop_assert!(timeline.events.len() <= TIMELINE_MAX);
            let (old, whole): (Vec<_>, Vec<_>) = timeline
                .events
                .iter()
                .partition(|event| event.revision <= timeline.dropped_through);
            let whole = whole.into_iter().map(|event| event.revision);
            prop_assert!(whole.eq(timeline.dropped_through + 1..=newest));
            let is_old_audit = |revision: &u64| {
                *revision <= timeline.dropped_through && audits[usize::try_from(*revision - 1).unwrap()]
            };
            let mut wanted: Vec<u64> = (1..=newest).filter(is_old_audit).collect();
            wanted.drain(..wanted.len().saturating_sub(AUDITS_MAX));
            let old: Vec<u64> = old.into_iter().map(|event| event.revision).collect();
            prop_assert_eq!(timeline.dropped_count() + timeline.events.len() as u64, newest);
            prop_assert_eq!(old, wanted);
        }
    }
}
