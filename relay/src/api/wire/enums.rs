//! Conversions between the enums of the core and of the protocol. Each is an exhaustive match, so a
//! new variant cannot be forgotten.

use baton_core::io::session_input::LossReason;
use baton_core::record::{
    AttemptStateKind, AttentionCause, EndedBy, InputDecision, LifecyclePhase, TaskState,
    TerminationReceipt, TimerKind,
};
use baton_core::task::spec::{
    DispatchPolicy, InputTimeoutPolicy, MissingPolicy, PermissionEffect, TurnKind,
    UnsafeLossPolicy, WorkspaceMode,
};
use baton_proto::v1;

pub(crate) fn task_state(state: TaskState) -> v1::TaskState {
    match state {
        TaskState::Pending => v1::TaskState::Pending,
        TaskState::Queued => v1::TaskState::Queued,
        TaskState::Running => v1::TaskState::Running,
        TaskState::NeedsAttention => v1::TaskState::NeedsAttention,
        TaskState::Completed => v1::TaskState::Completed,
        TaskState::Failed => v1::TaskState::Failed,
        TaskState::Canceled => v1::TaskState::Canceled,
        TaskState::TimedOut => v1::TaskState::TimedOut,
        TaskState::Lost => v1::TaskState::Lost,
    }
}

pub(crate) fn attempt_state(state: AttemptStateKind) -> v1::AttemptState {
    match state {
        AttemptStateKind::Queued => v1::AttemptState::Queued,
        AttemptStateKind::Offered => v1::AttemptState::Offered,
        AttemptStateKind::Accepted => v1::AttemptState::Accepted,
        AttemptStateKind::Starting => v1::AttemptState::Starting,
        AttemptStateKind::Prompted => v1::AttemptState::Prompted,
        AttemptStateKind::Streaming => v1::AttemptState::Streaming,
        AttemptStateKind::ToolRunning => v1::AttemptState::ToolRunning,
        AttemptStateKind::WaitingInput => v1::AttemptState::WaitingInput,
        AttemptStateKind::CleaningUp => v1::AttemptState::CleaningUp,
        AttemptStateKind::Parked => v1::AttemptState::Parked,
        AttemptStateKind::Completed => v1::AttemptState::Completed,
        AttemptStateKind::Failed => v1::AttemptState::Failed,
        AttemptStateKind::Canceled => v1::AttemptState::Canceled,
        AttemptStateKind::TimedOut => v1::AttemptState::TimedOut,
        AttemptStateKind::Lost => v1::AttemptState::Lost,
        AttemptStateKind::Released => v1::AttemptState::Released,
        AttemptStateKind::HandedOff => v1::AttemptState::HandedOff,
    }
}

pub(crate) fn phase(phase: LifecyclePhase) -> v1::LifecyclePhase {
    match phase {
        LifecyclePhase::Accepted => v1::LifecyclePhase::Accepted,
        LifecyclePhase::Queued => v1::LifecyclePhase::Queued,
        LifecyclePhase::Started => v1::LifecyclePhase::Started,
        LifecyclePhase::AgentStarted => v1::LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten => v1::LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen => v1::LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen => v1::LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::Streaming => v1::LifecyclePhase::Streaming,
        LifecyclePhase::ToolStarted => v1::LifecyclePhase::ToolStarted,
        LifecyclePhase::ToolFinished => v1::LifecyclePhase::ToolFinished,
        LifecyclePhase::WaitingInput => v1::LifecyclePhase::WaitingInput,
        LifecyclePhase::InputReceived => v1::LifecyclePhase::InputReceived,
        LifecyclePhase::CleanupStarted => v1::LifecyclePhase::CleanupStarted,
        LifecyclePhase::CleanupFinished => v1::LifecyclePhase::CleanupFinished,
        LifecyclePhase::Heartbeat => v1::LifecyclePhase::Heartbeat,
        LifecyclePhase::RetryScheduled => v1::LifecyclePhase::RetryScheduled,
        LifecyclePhase::Completed => v1::LifecyclePhase::Completed,
        LifecyclePhase::Failed => v1::LifecyclePhase::Failed,
        LifecyclePhase::Canceled => v1::LifecyclePhase::Canceled,
        LifecyclePhase::TimedOut => v1::LifecyclePhase::TimedOut,
        LifecyclePhase::Lost => v1::LifecyclePhase::Lost,
        LifecyclePhase::Blocked => v1::LifecyclePhase::Blocked,
        LifecyclePhase::Checkpointed => v1::LifecyclePhase::Checkpointed,
        LifecyclePhase::Released => v1::LifecyclePhase::Released,
    }
}

pub(crate) fn timer(timer: TimerKind) -> v1::TimerKind {
    match timer {
        TimerKind::Queue => v1::TimerKind::Queue,
        TimerKind::Accept => v1::TimerKind::Accept,
        TimerKind::ProcessStart => v1::TimerKind::ProcessStart,
        TimerKind::PromptWrite => v1::TimerKind::PromptWrite,
        TimerKind::FirstEvent => v1::TimerKind::FirstEvent,
        TimerKind::FirstVisibleEvent => v1::TimerKind::FirstVisibleEvent,
        TimerKind::StreamIdle => v1::TimerKind::StreamIdle,
        TimerKind::ToolIdle => v1::TimerKind::ToolIdle,
        TimerKind::UserInput => v1::TimerKind::UserInput,
        TimerKind::CleanupTerm => v1::TimerKind::CleanupTerm,
        TimerKind::Total => v1::TimerKind::Total,
        TimerKind::Lease => v1::TimerKind::Lease,
    }
}

pub(crate) fn attention_cause(cause: AttentionCause) -> v1::AttentionCause {
    match cause {
        AttentionCause::Blocked => v1::AttentionCause::Blocked,
        AttentionCause::Starved => v1::AttentionCause::Starved,
        AttentionCause::UnsafeLoss => v1::AttentionCause::UnsafeLoss,
        AttentionCause::Poison => v1::AttentionCause::Poison,
        AttentionCause::InputTimeout => v1::AttentionCause::InputTimeout,
        AttentionCause::ReceiptsMissing => v1::AttentionCause::ReceiptsMissing,
    }
}

pub(crate) fn ended_by(by: EndedBy) -> v1::EndedBy {
    match by {
        EndedBy::Daemon => v1::EndedBy::Daemon,
        EndedBy::Relay => v1::EndedBy::Relay,
        EndedBy::Operator => v1::EndedBy::Operator,
        EndedBy::Client => v1::EndedBy::Client,
        EndedBy::Agent => v1::EndedBy::Agent,
    }
}

pub(crate) fn loss_from_wire(sent: v1::LossCause) -> Option<LossReason> {
    match sent {
        v1::LossCause::Unspecified => None,
        v1::LossCause::LeaseEnded => Some(LossReason::LeaseEnded),
        v1::LossCause::DaemonStopped => Some(LossReason::DaemonStopped),
        v1::LossCause::SupervisorDied => Some(LossReason::SupervisorDied),
    }
}

/// An attempt whose processes never ran needs no receipt and is shown as `Unspecified`.
pub(crate) fn termination(receipt: TerminationReceipt) -> v1::Termination {
    match receipt {
        TerminationReceipt::NotNeeded => v1::Termination::Unspecified,
        TerminationReceipt::Confirmed => v1::Termination::Confirmed,
        TerminationReceipt::Unconfirmed => v1::Termination::Unconfirmed,
    }
}

pub(crate) fn workspace_mode(mode: Option<WorkspaceMode>) -> v1::WorkspaceMode {
    match mode {
        None => v1::WorkspaceMode::Unspecified,
        Some(WorkspaceMode::Shared) => v1::WorkspaceMode::Shared,
        Some(WorkspaceMode::Scratch) => v1::WorkspaceMode::Scratch,
        Some(WorkspaceMode::Worktree) => v1::WorkspaceMode::Worktree,
    }
}

pub(crate) fn workspace_mode_from_wire(mode: v1::WorkspaceMode) -> Option<WorkspaceMode> {
    match mode {
        v1::WorkspaceMode::Unspecified => None,
        v1::WorkspaceMode::Shared => Some(WorkspaceMode::Shared),
        v1::WorkspaceMode::Scratch => Some(WorkspaceMode::Scratch),
        v1::WorkspaceMode::Worktree => Some(WorkspaceMode::Worktree),
    }
}

pub(crate) fn turn_kind(kind: TurnKind) -> v1::TurnKind {
    match kind {
        TurnKind::User => v1::TurnKind::User,
        TurnKind::SessionTitle => v1::TurnKind::SessionTitle,
        TurnKind::ContextStats => v1::TurnKind::ContextStats,
        TurnKind::Compact => v1::TurnKind::Compact,
        TurnKind::Control => v1::TurnKind::Control,
    }
}

pub(crate) fn turn_kind_from_wire(kind: v1::TurnKind) -> TurnKind {
    match kind {
        v1::TurnKind::Unspecified | v1::TurnKind::User => TurnKind::User,
        v1::TurnKind::SessionTitle => TurnKind::SessionTitle,
        v1::TurnKind::ContextStats => TurnKind::ContextStats,
        v1::TurnKind::Compact => TurnKind::Compact,
        v1::TurnKind::Control => TurnKind::Control,
    }
}

pub(crate) fn when_unsafe(policy: UnsafeLossPolicy) -> v1::WhenUnsafe {
    match policy {
        UnsafeLossPolicy::Park => v1::WhenUnsafe::Park,
        UnsafeLossPolicy::Retry => v1::WhenUnsafe::Retry,
        UnsafeLossPolicy::Fail => v1::WhenUnsafe::Fail,
    }
}

pub(crate) fn when_unsafe_from_wire(policy: v1::WhenUnsafe) -> UnsafeLossPolicy {
    match policy {
        v1::WhenUnsafe::Unspecified | v1::WhenUnsafe::Park => UnsafeLossPolicy::Park,
        v1::WhenUnsafe::Retry => UnsafeLossPolicy::Retry,
        v1::WhenUnsafe::Fail => UnsafeLossPolicy::Fail,
    }
}

pub(crate) fn on_input_timeout(policy: InputTimeoutPolicy) -> v1::OnInputTimeout {
    match policy {
        InputTimeoutPolicy::Fail => v1::OnInputTimeout::Fail,
        InputTimeoutPolicy::Deny => v1::OnInputTimeout::Deny,
        InputTimeoutPolicy::Park => v1::OnInputTimeout::Park,
    }
}

pub(crate) fn on_input_timeout_from_wire(policy: v1::OnInputTimeout) -> InputTimeoutPolicy {
    match policy {
        v1::OnInputTimeout::Unspecified | v1::OnInputTimeout::Fail => InputTimeoutPolicy::Fail,
        v1::OnInputTimeout::Deny => InputTimeoutPolicy::Deny,
        v1::OnInputTimeout::Park => InputTimeoutPolicy::Park,
    }
}

pub(crate) fn dispatch_policy(policy: DispatchPolicy) -> v1::DispatchPolicy {
    match policy {
        DispatchPolicy::Queue => v1::DispatchPolicy::Queue,
        DispatchPolicy::FailFast => v1::DispatchPolicy::FailFast,
    }
}

pub(crate) fn dispatch_policy_from_wire(policy: v1::DispatchPolicy) -> DispatchPolicy {
    match policy {
        v1::DispatchPolicy::Unspecified | v1::DispatchPolicy::Queue => DispatchPolicy::Queue,
        v1::DispatchPolicy::FailFast => DispatchPolicy::FailFast,
    }
}

pub(crate) fn missing_policy(policy: MissingPolicy) -> v1::MissingPolicy {
    match policy {
        MissingPolicy::Reject => v1::MissingPolicy::Reject,
        MissingPolicy::Fail => v1::MissingPolicy::Fail,
        MissingPolicy::Park => v1::MissingPolicy::Park,
    }
}

pub(crate) fn missing_policy_from_wire(policy: v1::MissingPolicy) -> MissingPolicy {
    match policy {
        v1::MissingPolicy::Unspecified | v1::MissingPolicy::Reject => MissingPolicy::Reject,
        v1::MissingPolicy::Fail => MissingPolicy::Fail,
        v1::MissingPolicy::Park => MissingPolicy::Park,
    }
}

pub(crate) fn outcome(decision: InputDecision) -> v1::InputOutcome {
    match decision {
        InputDecision::Allowed => v1::InputOutcome::Allowed,
        InputDecision::Denied => v1::InputOutcome::Denied,
        InputDecision::Replied => v1::InputOutcome::Answered,
        InputDecision::Expired => v1::InputOutcome::Expired,
    }
}

pub(crate) fn permission_effect(effect: PermissionEffect) -> v1::PermissionEffect {
    match effect {
        PermissionEffect::Allow => v1::PermissionEffect::Allow,
        PermissionEffect::Deny => v1::PermissionEffect::Deny,
        PermissionEffect::Ask => v1::PermissionEffect::Ask,
    }
}

pub(crate) fn permission_effect_from_wire(effect: v1::PermissionEffect) -> PermissionEffect {
    match effect {
        v1::PermissionEffect::Unspecified | v1::PermissionEffect::Ask => PermissionEffect::Ask,
        v1::PermissionEffect::Allow => PermissionEffect::Allow,
        v1::PermissionEffect::Deny => PermissionEffect::Deny,
    }
}

/// A deadline that the daemon watches too. The relay alone decides about the others, so a daemon's
/// report of them is ignored.
pub(crate) fn daemon_timer_from_wire(timer: v1::TimerKind) -> Option<TimerKind> {
    use v1::TimerKind as Wire;
    Some(match timer {
        Wire::ProcessStart => TimerKind::ProcessStart,
        Wire::PromptWrite => TimerKind::PromptWrite,
        Wire::FirstEvent => TimerKind::FirstEvent,
        Wire::FirstVisibleEvent => TimerKind::FirstVisibleEvent,
        Wire::StreamIdle => TimerKind::StreamIdle,
        Wire::ToolIdle => TimerKind::ToolIdle,
        Wire::Total => TimerKind::Total,
        Wire::Unspecified
        | Wire::Queue
        | Wire::Accept
        | Wire::UserInput
        | Wire::CleanupTerm
        | Wire::Lease => return None,
    })
}

#[cfg(test)]
mod tests {
    use baton_proto::ShortName;

    use super::*;

    #[test]
    fn core_and_protocol_use_the_same_names() {
        for kind in TimerKind::ALL {
            assert_eq!(timer(kind).short_name(), kind.as_str());
        }
        for state in [
            TaskState::NeedsAttention,
            TaskState::TimedOut,
            TaskState::Completed,
        ] {
            assert_eq!(task_state(state).short_name(), state.as_str());
        }
        for state in [
            AttemptStateKind::HandedOff,
            AttemptStateKind::CleaningUp,
            AttemptStateKind::Lost,
        ] {
            assert_eq!(attempt_state(state).short_name(), state.as_str());
        }
        for lifecycle_phase in [
            LifecyclePhase::FirstVisibleEventSeen,
            LifecyclePhase::AgentStarted,
            LifecyclePhase::CleanupFinished,
        ] {
            assert_eq!(
                phase(lifecycle_phase).short_name(),
                lifecycle_phase.as_str()
            );
        }
        assert_eq!(
            attention_cause(AttentionCause::UnsafeLoss).short_name(),
            "unsafe_loss"
        );
    }
}
