//! Why the core would not do something: one stable machine code each. The shell maps them to statuses in one place.

/// A refusal. Nothing was written for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rejection {
    /// Unknown here or another tenant's: the two look alike.
    UnknownTask,
    UnknownAttempt,
    UnknownInput,
    UnknownDaemon,
    AmbiguousDaemon,
    UnknownSession,
    /// The daemon has a stream.
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
    /// fail_fast, and nobody could take it now.
    NoDaemon,
    NotPaused,
    /// An agent asked for a task that waits for something else first.
    NotClaimable,
    /// Somebody was quicker.
    AlreadyTaken,
    /// The attempt budget of the task is spent for good.
    DispatchLimit,
    InputClosed,
    AnswerConflict,
    /// The frame's attempt is not its task's live one.
    StaleAttempt,
    /// The incarnation is not this relay's.
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
    /// The task waits for a person already.
    AlreadyParked,
    /// The task does not wait for a person.
    NotParked,
    /// Somebody else sent it on first.
    HandedOff,
    /// Output before a result is missing: replay it.
    OutputGap,
    /// An operator's verb without a reason.
    ReasonMissing,
    /// Ten of an operator's verbs within a minute, on one target.
    RateLimited,
    /// Nobody holds a lease that could be taken away.
    NotHeld,
    /// The newest attempt has ended.
    NotOpen,
    /// Nobody has worked on it yet.
    NotBegun,
    /// Something may have happened already, and nobody said that this is fine.
    UnsafeRetry,
    /// What is stored of it is damaged, and nothing is written over it.
    Unreadable,
}

/// Which bound on open tasks is met: how many they are, or how long what was said of them is.
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

    /// What is wrong, why, and what to do next: a sentence for people.
    #[expect(clippy::too_many_lines, reason = "one sentence for each refusal")]
    pub fn explain(self) -> &'static str {
        match self {
            Rejection::UnknownTask => "no task with this id; check the id, or list the tasks",
            Rejection::UnknownAttempt => "no attempt with this id is held by this daemon",
            Rejection::UnknownInput => "no input with this id; list the open inputs of the task",
            Rejection::UnknownDaemon => "no daemon with this id; list the daemons",
            Rejection::AmbiguousDaemon => "more than one daemon has this name",
            Rejection::UnknownSession => "this stream is not a session of the relay; connect again",
            Rejection::DaemonConnected => "the daemon is connected; stop it first",
            Rejection::DaemonHolds => {
                "the daemon holds attempts, or may still run ended ones; wait until their leases are over"
            }
            Rejection::AlreadyFinished => "the task has finished and cannot be changed",
            Rejection::NotFinished => {
                "the task has not ended in a state that can be retried; wait or cancel it first"
            }
            Rejection::BeingCanceled => "the task is being canceled",
            Rejection::QueueFull(ExceededBound::Tasks) => {
                "the relay holds as many open tasks as it may; try again later"
            }
            Rejection::TenantQueueFull(ExceededBound::Tasks) => {
                "this tenant has as many open tasks as it may; try again later"
            }
            Rejection::QueueFull(ExceededBound::Bytes) => {
                "the prompts, arguments and words of the relay's open tasks take as many bytes as they may; try again later"
            }
            Rejection::TenantQueueFull(ExceededBound::Bytes) => {
                "the prompts, arguments and words of this tenant's open tasks take as many bytes as they may; try again later"
            }
            Rejection::IdempotencyConflict => {
                "this idempotency key or request id was used for something else; use a new one"
            }
            Rejection::NoDaemon => {
                "no connected daemon can take the task now; start one, or submit without fail_fast"
            }
            Rejection::NotPaused => "it is not paused",
            Rejection::NotClaimable => {
                "the task cannot be claimed now: it is paused, waits for its turn or for a person, or an earlier attempt may still run"
            }
            Rejection::AlreadyTaken => "somebody else holds the task already",
            Rejection::DispatchLimit => "the task was offered as often as it may; submit it again",
            Rejection::InputClosed => "the input is closed: answered, withdrawn or expired",
            Rejection::AnswerConflict => "the input has another answer already",
            Rejection::StaleAttempt => "the attempt is not the task's live one",
            Rejection::StaleIncarnation => {
                "the frame belongs to an earlier life of the relay's data"
            }
            Rejection::BadProof => "the lease token does not match",
            Rejection::NotLeased => "the attempt holds no lease",
            Rejection::LeaseExpired => "the lease has expired",
            Rejection::Superseded => "a newer attempt or session took over",
            Rejection::TaskTerminal => "the task has ended",
            Rejection::WrongOrder => "this frame cannot come in the attempt's present state",
            Rejection::Gap => {
                "an earlier control frame is missing; replay from the expected number"
            }
            Rejection::TooManyTools => "too many open tool calls in one attempt",
            Rejection::TooManyInputs => "too many open inputs in one attempt",
            Rejection::TooManyPauses => {
                "as many tenants are paused as can be; pause the whole scheduler instead"
            }
            Rejection::DuplicateInput => "an input with this id exists already",
            Rejection::DuplicateTool => "a tool call with this id is open already",
            Rejection::UnknownTool => "no tool call with this id is open",
            Rejection::ContractUnmet => {
                "required artifacts are missing; complete again once they exist"
            }
            Rejection::BeingEnded => {
                "the attempt is being ended already; wait for its end, then block the task"
            }
            Rejection::AlreadyParked => "the task waits for a person already",
            Rejection::NotParked => {
                "the task does not wait for a person; only a parked one can be resumed"
            }
            Rejection::HandedOff => "somebody else sent this attempt on already",
            Rejection::OutputGap => {
                "output before the result is missing; replay it from the last acknowledged byte"
            }
            Rejection::ReasonMissing => "operators' verbs need a reason; say why",
            Rejection::RateLimited => {
                "ten operators' verbs within a minute on this target are as many as may be; wait a minute"
            }
            Rejection::NotHeld => "nobody holds the task now, so there is nothing to take away",
            Rejection::NotOpen => "the task's last attempt has ended; retry or cancel the task",
            Rejection::NotBegun => {
                "the task waits and nobody has worked on it; cancel it if it is not needed"
            }
            Rejection::UnsafeRetry => "the last attempt may have had effects",
            Rejection::Unreadable => {
                "what is stored of it is damaged, so nothing is written over it"
            }
        }
    }
}
