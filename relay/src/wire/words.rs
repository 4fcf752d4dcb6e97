//! The core's words in the protocol's spelling, and back. One exhaustive match per enum: a new word cannot be forgotten.

use baton_core::input::Loss;
use baton_core::record::{
    AttemptState, AttentionCause, Decision, EndedBy, Phase, Receipt, TaskState, TimerKind,
};
use baton_core::spec::{
    DispatchPolicy, MissingPolicy, OnInputTimeout, PermissionEffect, TurnKind, WhenUnsafe,
    WorkspaceMode,
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

pub(crate) fn attempt_state(state: AttemptState) -> v1::AttemptState {
    match state {
        AttemptState::Queued => v1::AttemptState::Queued,
        AttemptState::Offered => v1::AttemptState::Offered,
        AttemptState::Accepted => v1::AttemptState::Accepted,
        AttemptState::Starting => v1::AttemptState::Starting,
        AttemptState::Prompted => v1::AttemptState::Prompted,
        AttemptState::Streaming => v1::AttemptState::Streaming,
        AttemptState::ToolRunning => v1::AttemptState::ToolRunning,
        AttemptState::WaitingInput => v1::AttemptState::WaitingInput,
        AttemptState::CleaningUp => v1::AttemptState::CleaningUp,
        AttemptState::Parked => v1::AttemptState::Parked,
        AttemptState::Completed => v1::AttemptState::Completed,
        AttemptState::Failed => v1::AttemptState::Failed,
        AttemptState::Canceled => v1::AttemptState::Canceled,
        AttemptState::TimedOut => v1::AttemptState::TimedOut,
        AttemptState::Lost => v1::AttemptState::Lost,
        AttemptState::Released => v1::AttemptState::Released,
        AttemptState::HandedOff => v1::AttemptState::HandedOff,
    }
}

pub(crate) fn phase(phase: Phase) -> v1::LifecyclePhase {
    match phase {
        Phase::Accepted => v1::LifecyclePhase::Accepted,
        Phase::Queued => v1::LifecyclePhase::Queued,
        Phase::Started => v1::LifecyclePhase::Started,
        Phase::AgentStarted => v1::LifecyclePhase::AgentStarted,
        Phase::PromptWritten => v1::LifecyclePhase::PromptWritten,
        Phase::FirstEventSeen => v1::LifecyclePhase::FirstEventSeen,
        Phase::FirstVisibleEventSeen => v1::LifecyclePhase::FirstVisibleEventSeen,
        Phase::Streaming => v1::LifecyclePhase::Streaming,
        Phase::ToolStarted => v1::LifecyclePhase::ToolStarted,
        Phase::ToolFinished => v1::LifecyclePhase::ToolFinished,
        Phase::WaitingInput => v1::LifecyclePhase::WaitingInput,
        Phase::InputReceived => v1::LifecyclePhase::InputReceived,
        Phase::CleanupStarted => v1::LifecyclePhase::CleanupStarted,
        Phase::CleanupFinished => v1::LifecyclePhase::CleanupFinished,
        Phase::Heartbeat => v1::LifecyclePhase::Heartbeat,
        Phase::RetryScheduled => v1::LifecyclePhase::RetryScheduled,
        Phase::Completed => v1::LifecyclePhase::Completed,
        Phase::Failed => v1::LifecyclePhase::Failed,
        Phase::Canceled => v1::LifecyclePhase::Canceled,
        Phase::TimedOut => v1::LifecyclePhase::TimedOut,
        Phase::Lost => v1::LifecyclePhase::Lost,
        Phase::Blocked => v1::LifecyclePhase::Blocked,
        Phase::Checkpointed => v1::LifecyclePhase::Checkpointed,
        Phase::Released => v1::LifecyclePhase::Released,
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

pub(crate) fn attention(cause: AttentionCause) -> v1::AttentionCause {
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

/// Nothing ever ran: that is as good as confirmed.
pub(crate) fn loss(sent: v1::LossCause) -> Option<Loss> {
    match sent {
        v1::LossCause::Unspecified => None,
        v1::LossCause::LeaseEnded => Some(Loss::LeaseEnded),
        v1::LossCause::DaemonStopped => Some(Loss::DaemonStopped),
        v1::LossCause::SupervisorDied => Some(Loss::SupervisorDied),
    }
}

pub(crate) fn termination(receipt: Receipt) -> v1::Termination {
    match receipt {
        Receipt::NotNeeded => v1::Termination::Unspecified,
        Receipt::Confirmed => v1::Termination::Confirmed,
        Receipt::Unconfirmed => v1::Termination::Unconfirmed,
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

pub(crate) fn asked_workspace_mode(mode: v1::WorkspaceMode) -> Option<WorkspaceMode> {
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

pub(crate) fn asked_turn_kind(kind: v1::TurnKind) -> TurnKind {
    match kind {
        v1::TurnKind::Unspecified | v1::TurnKind::User => TurnKind::User,
        v1::TurnKind::SessionTitle => TurnKind::SessionTitle,
        v1::TurnKind::ContextStats => TurnKind::ContextStats,
        v1::TurnKind::Compact => TurnKind::Compact,
        v1::TurnKind::Control => TurnKind::Control,
    }
}

pub(crate) fn when_unsafe(policy: WhenUnsafe) -> v1::WhenUnsafe {
    match policy {
        WhenUnsafe::Park => v1::WhenUnsafe::Park,
        WhenUnsafe::Retry => v1::WhenUnsafe::Retry,
        WhenUnsafe::Fail => v1::WhenUnsafe::Fail,
    }
}

pub(crate) fn asked_when_unsafe(policy: v1::WhenUnsafe) -> WhenUnsafe {
    match policy {
        v1::WhenUnsafe::Unspecified | v1::WhenUnsafe::Park => WhenUnsafe::Park,
        v1::WhenUnsafe::Retry => WhenUnsafe::Retry,
        v1::WhenUnsafe::Fail => WhenUnsafe::Fail,
    }
}

pub(crate) fn on_input_timeout(policy: OnInputTimeout) -> v1::OnInputTimeout {
    match policy {
        OnInputTimeout::Fail => v1::OnInputTimeout::Fail,
        OnInputTimeout::Deny => v1::OnInputTimeout::Deny,
        OnInputTimeout::Park => v1::OnInputTimeout::Park,
    }
}

pub(crate) fn asked_on_input_timeout(policy: v1::OnInputTimeout) -> OnInputTimeout {
    match policy {
        v1::OnInputTimeout::Unspecified | v1::OnInputTimeout::Fail => OnInputTimeout::Fail,
        v1::OnInputTimeout::Deny => OnInputTimeout::Deny,
        v1::OnInputTimeout::Park => OnInputTimeout::Park,
    }
}

pub(crate) fn dispatch_policy(policy: DispatchPolicy) -> v1::DispatchPolicy {
    match policy {
        DispatchPolicy::Queue => v1::DispatchPolicy::Queue,
        DispatchPolicy::FailFast => v1::DispatchPolicy::FailFast,
    }
}

pub(crate) fn asked_dispatch_policy(policy: v1::DispatchPolicy) -> DispatchPolicy {
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

pub(crate) fn asked_missing_policy(policy: v1::MissingPolicy) -> MissingPolicy {
    match policy {
        v1::MissingPolicy::Unspecified | v1::MissingPolicy::Reject => MissingPolicy::Reject,
        v1::MissingPolicy::Fail => MissingPolicy::Fail,
        v1::MissingPolicy::Park => MissingPolicy::Park,
    }
}

pub(crate) fn outcome(decision: Decision) -> v1::InputOutcome {
    match decision {
        Decision::Allowed => v1::InputOutcome::Allowed,
        Decision::Denied => v1::InputOutcome::Denied,
        Decision::Replied => v1::InputOutcome::Answered,
        Decision::Expired => v1::InputOutcome::Expired,
    }
}

pub(crate) fn permission_effect(effect: PermissionEffect) -> v1::PermissionEffect {
    match effect {
        PermissionEffect::Allow => v1::PermissionEffect::Allow,
        PermissionEffect::Deny => v1::PermissionEffect::Deny,
        PermissionEffect::Ask => v1::PermissionEffect::Ask,
    }
}

pub(crate) fn asked_permission_effect(effect: v1::PermissionEffect) -> PermissionEffect {
    match effect {
        v1::PermissionEffect::Unspecified | v1::PermissionEffect::Ask => PermissionEffect::Ask,
        v1::PermissionEffect::Allow => PermissionEffect::Allow,
        v1::PermissionEffect::Deny => PermissionEffect::Deny,
    }
}

/// A deadline that a daemon watches too. The others are the relay's alone, and no daemon's word counts for them.
pub(crate) fn daemons_deadline(timer: v1::TimerKind) -> Option<TimerKind> {
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
    fn both_sides_use_the_same_words() {
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
            AttemptState::HandedOff,
            AttemptState::CleaningUp,
            AttemptState::Lost,
        ] {
            assert_eq!(attempt_state(state).short_name(), state.as_str());
        }
        for word in [
            Phase::FirstVisibleEventSeen,
            Phase::AgentStarted,
            Phase::CleanupFinished,
        ] {
            assert_eq!(phase(word).short_name(), word.as_str());
        }
        assert_eq!(
            attention(AttentionCause::UnsafeLoss).short_name(),
            "unsafe_loss"
        );
    }
}
