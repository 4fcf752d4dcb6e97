//! The reasons for which the core refuses a request or a frame, each with a stable machine code.
//! The relay maps them to gRPC statuses in `api/error/status.rs`.

/// Why a request or frame was refused. A refusal writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rejection {
    /// Unknown, or of another tenant: callers cannot tell the two apart.
    UnknownTask,
    UnknownAttempt,
    UnknownInput,
    UnknownDaemon,
    AmbiguousDaemon,
    UnknownSession,
    /// The daemon has an open stream.
    DaemonConnected,
    /// Processes of its attempts may still run.
    DaemonHolds,
    /// The task's state does not allow it.
    AlreadyFinished,
    NotFinished,
    BeingCanceled,
    QueueFull(ExceededBound),
    TenantQueueFull(ExceededBound),
    IdempotencyConflict,
    /// The task is fail_fast, and no connected daemon can take it now.
    NoDaemon,
    NotPaused,
    /// An agent claimed a task that cannot be dispatched yet.
    NotClaimable,
    /// Another holder has the task.
    AlreadyTaken,
    /// The task has used all its dispatches; no retry is possible.
    DispatchLimit,
    InputClosed,
    AnswerConflict,
    /// The frame's attempt is not the current attempt of its task.
    StaleAttempt,
    /// The frame carries another incarnation than this relay's.
    StaleIncarnation,
    BadProof,
    NotLeased,
    LeaseExpired,
    Superseded,
    TaskTerminal,
    WrongOrder,
    /// An earlier control frame is missing: replay from the expected one.
    Gap,
    TooManyTools,
    TooManyInputs,
    TooManyPauses,
    DuplicateInput,
    DuplicateTool,
    UnknownTool,
    ContractUnmet,
    /// Its attempt is being ended, so it cannot be parked.
    BeingEnded,
    /// The task is parked already.
    AlreadyParked,
    /// The task is not parked.
    NotParked,
    /// The parked attempt was resumed or picked up by another caller.
    HandedOff,
    /// Output before a result is missing: replay it.
    OutputGap,
    /// An operator's command without a reason.
    ReasonMissing,
    /// Ten operator commands on one target within a minute.
    RateLimited,
    /// No daemon or agent holds a lease that could be taken away.
    NotHeld,
    /// The newest attempt has ended.
    NotOpen,
    /// No attempt has been dispatched yet.
    NotBegun,
    /// The last attempt may have had side effects, and the retry does not allow that.
    UnsafeRetry,
    /// The stored record is damaged. It is left as it is, so that it can still be repaired.
    Unreadable,
}

/// Which limit on open tasks is reached: their number, or the bytes of their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExceededBound {
    Tasks,
    Bytes,
}

impl Rejection {
    pub fn as_str(self) -> &'static str {
        match self {
            Rejection::UnknownTask => "unknown_task",
            Rejection::UnknownAttempt => "unknown_attempt",
            Rejection::UnknownInput => "unknown_input",
            Rejection::UnknownDaemon => "unknown_daemon",
            Rejection::AmbiguousDaemon => "ambiguous_daemon",
            Rejection::UnknownSession => "unknown_session",
            Rejection::DaemonConnected => "daemon_connected",
            Rejection::DaemonHolds => "daemon_holds",
            Rejection::AlreadyFinished => "already_finished",
            Rejection::NotFinished => "not_finished",
            Rejection::BeingCanceled => "being_canceled",
            Rejection::QueueFull(_) => "queue_full",
            Rejection::TenantQueueFull(_) => "tenant_queue_full",
            Rejection::IdempotencyConflict => "idempotency_conflict",
            Rejection::NoDaemon => "no_daemon",
            Rejection::NotPaused => "not_paused",
            Rejection::NotClaimable => "not_claimable",
            Rejection::AlreadyTaken => "already_taken",
            Rejection::DispatchLimit => "dispatch_limit",
            Rejection::InputClosed => "input_closed",
            Rejection::AnswerConflict => "answer_conflict",
            Rejection::StaleAttempt => "stale_attempt",
            Rejection::StaleIncarnation => "stale_incarnation",
            Rejection::BadProof => "bad_proof",
            Rejection::NotLeased => "not_leased",
            Rejection::LeaseExpired => "lease_expired",
            Rejection::Superseded => "superseded",
            Rejection::TaskTerminal => "task_terminal",
            Rejection::WrongOrder => "wrong_order",
            Rejection::Gap => "gap",
            Rejection::TooManyTools => "too_many_tools",
            Rejection::TooManyInputs => "too_many_inputs",
            Rejection::TooManyPauses => "too_many_pauses",
            Rejection::DuplicateInput => "duplicate_input",
            Rejection::DuplicateTool => "duplicate_tool",
            Rejection::UnknownTool => "unknown_tool",
            Rejection::ContractUnmet => "contract_unmet",
            Rejection::BeingEnded => "being_ended",
            Rejection::AlreadyParked => "already_parked",
            Rejection::NotParked => "not_parked",
            Rejection::HandedOff => "handed_off",
            Rejection::OutputGap => "output_gap",
            Rejection::ReasonMissing => "reason_missing",
            Rejection::RateLimited => "rate_limited",
            Rejection::NotHeld => "not_held",
            Rejection::NotOpen => "not_open",
            Rejection::NotBegun => "not_begun",
            Rejection::UnsafeRetry => "unsafe_retry",
            Rejection::Unreadable => "unreadable_record",
        }
    }

    /// The message for people: what is wrong, why, and what to do next.
    #[expect(clippy::too_many_lines, reason = "one sentence for each refusal")]
    pub fn explain(self) -> &'static str {
        match self {
            Rejection::UnknownTask => "no task with this id; check the id or list the tasks",
            Rejection::UnknownAttempt => "this daemon holds no attempt with this id",
            Rejection::UnknownInput => "no input with this id; list the open inputs of the task",
            Rejection::UnknownDaemon => "no daemon with this id; list the daemons",
            Rejection::AmbiguousDaemon => "more than one daemon has this name",
            Rejection::UnknownSession => "unknown session; connect again",
            Rejection::DaemonConnected => "the daemon is connected; stop it first",
            Rejection::DaemonHolds => {
                "the daemon holds leases, or its processes may still run; wait until the leases have expired"
            }
            Rejection::AlreadyFinished => "the task has finished and cannot be changed",
            Rejection::NotFinished => {
                "the task is still open; wait for its end or cancel it before a retry"
            }
            Rejection::BeingCanceled => "the task is being canceled",
            Rejection::QueueFull(ExceededBound::Tasks) => {
                "the relay has reached its limit of open tasks; try again later"
            }
            Rejection::TenantQueueFull(ExceededBound::Tasks) => {
                "this tenant has reached its limit of open tasks; try again later"
            }
            Rejection::QueueFull(ExceededBound::Bytes) => {
                "the relay has reached its byte limit for the texts of open tasks; try again later"
            }
            Rejection::TenantQueueFull(ExceededBound::Bytes) => {
                "this tenant has reached its byte limit for the texts of open tasks; try again later"
            }
            Rejection::IdempotencyConflict => {
                "this idempotency key or request id was used with different content; use a new one"
            }
            Rejection::NoDaemon => {
                "no connected daemon can take the task now; start one, or submit without fail_fast"
            }
            Rejection::NotPaused => "the task, tenant or scheduler is not paused",
            Rejection::NotClaimable => {
                "the task cannot be claimed now: it is paused, waits for its turn or for a person, or an earlier \
                 attempt may still run"
            }
            Rejection::AlreadyTaken => "another daemon or agent already holds the task",
            Rejection::DispatchLimit => "the task has reached its dispatch limit; submit it again",
            Rejection::InputClosed => "the input is closed: answered, withdrawn or expired",
            Rejection::AnswerConflict => "the input already has a different answer",
            Rejection::StaleAttempt => "the attempt is not the current attempt of its task",
            Rejection::StaleIncarnation => {
                "the frame belongs to an earlier incarnation of the relay"
            }
            Rejection::BadProof => "the lease token does not match",
            Rejection::NotLeased => "the attempt has no lease",
            Rejection::LeaseExpired => "the lease has expired",
            Rejection::Superseded => "a newer attempt or session has replaced this one",
            Rejection::TaskTerminal => "the task has ended",
            Rejection::WrongOrder => "this frame is not allowed in the attempt's current state",
            Rejection::Gap => {
                "an earlier control frame is missing; replay from the expected number"
            }
            Rejection::TooManyTools => "too many open tool calls in one attempt",
            Rejection::TooManyInputs => "too many open inputs in one attempt",
            Rejection::TooManyPauses => {
                "the limit of paused tenants is reached; pause the whole scheduler instead"
            }
            Rejection::DuplicateInput => "an input with this id exists already",
            Rejection::DuplicateTool => "a tool call with this id is open already",
            Rejection::UnknownTool => "no tool call with this id is open",
            Rejection::ContractUnmet => {
                "required artifacts are missing; complete again once they exist"
            }
            Rejection::BeingEnded => {
                "the attempt is already being ended; wait for its end, then block the task"
            }
            Rejection::AlreadyParked => "the task is already parked",
            Rejection::NotParked => "the task is not parked; only a parked task can be resumed",
            Rejection::HandedOff => {
                "the attempt was already resumed or picked up by another caller"
            }
            Rejection::OutputGap => {
                "output before the result is missing; replay it from the last acknowledged byte"
            }
            Rejection::ReasonMissing => "a reason is required",
            Rejection::RateLimited => {
                "too many operator commands for this target (limit: 10 per minute); wait a minute"
            }
            Rejection::NotHeld => {
                "no daemon or agent holds the task, so there is no lease to take away"
            }
            Rejection::NotOpen => "the task's last attempt has ended; retry or cancel the task",
            Rejection::NotBegun => {
                "no attempt of the task has started yet; cancel the task if it is not needed"
            }
            Rejection::UnsafeRetry => "the last attempt may have had side effects",
            Rejection::Unreadable => "the stored record is damaged and was left unchanged",
        }
    }
}
