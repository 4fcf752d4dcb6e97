//! Failure codes of attempts: stable words, never renamed. PROTOCOL.md says what each means.
//!
//! The relay's core decides what follows from a code; this file only spells them, for whoever writes frames.

pub const DELIVERY_FAILED: &str = "delivery_failed";
pub const NOT_ACCEPTED: &str = "not_accepted";
pub const DAEMON_LOST_ATTEMPT: &str = "daemon_lost_attempt";
pub const RELAY_UNREACHABLE: &str = "relay_unreachable";
pub const LEASE_EXPIRED: &str = "lease_expired";
pub const PROCESS_START_TIMEOUT: &str = "process_start_timeout";
pub const PROMPT_WRITE_TIMEOUT: &str = "prompt_write_timeout";
pub const NO_FIRST_EVENT_TIMEOUT: &str = "no_first_event_timeout";
pub const NO_VISIBLE_EVENT_TIMEOUT: &str = "no_visible_event_timeout";
pub const STREAM_IDLE_TIMEOUT: &str = "stream_idle_timeout";
pub const TOOL_IDLE_TIMEOUT: &str = "tool_idle_timeout";
pub const USER_INPUT_TIMEOUT: &str = "user_input_timeout";
pub const TASK_DEADLINE_EXCEEDED: &str = "task_deadline_exceeded";
pub const SPAWN_FAILED: &str = "spawn_failed";
pub const PROVIDER_MISSING: &str = "provider_missing";
pub const BAD_CWD: &str = "bad_cwd";
pub const UNSUPPORTED_OPTION: &str = "unsupported_option";
pub const AGENT_EXIT: &str = "agent_exit";
pub const NO_RESULT: &str = "no_result";
pub const PROVIDER_ERROR: &str = "provider_error";
pub const PROVIDER_AUTH: &str = "provider_auth";
pub const PROVIDER_QUOTA: &str = "provider_quota";
pub const PROVIDER_OVERLOADED: &str = "provider_overloaded";
pub const CONTEXT_OVERFLOW: &str = "context_overflow";
pub const REFUSAL: &str = "refusal";
pub const RESUME_FAILED: &str = "resume_failed";
pub const OUTPUT_INVALID: &str = "output_invalid";
pub const RECEIPTS_MISSING: &str = "receipts_missing";
pub const WORKER_DISK_FULL: &str = "worker_disk_full";
pub const AGENT_REPORTED: &str = "agent_reported";
pub const CANCELED_BY_USER: &str = "canceled_by_user";
pub const CANCELED_BY_OPERATOR: &str = "canceled_by_operator";
pub const OPERATOR_FORCED: &str = "operator_forced";
pub const DISPATCH_LIMIT: &str = "dispatch_limit";

/// Longest code, and longest result of an attempt.
pub const MAX_CODE_BYTES: usize = 64;
pub const MAX_RESULT_BYTES: usize = 64 * 1024;

/// What relay, daemon or operator say of an attempt. An agent may use any other word of its own failure.
const RESERVED_CODES: [&str; 23] = [
    RELAY_UNREACHABLE,
    DELIVERY_FAILED,
    NOT_ACCEPTED,
    DAEMON_LOST_ATTEMPT,
    LEASE_EXPIRED,
    PROCESS_START_TIMEOUT,
    PROMPT_WRITE_TIMEOUT,
    NO_FIRST_EVENT_TIMEOUT,
    NO_VISIBLE_EVENT_TIMEOUT,
    STREAM_IDLE_TIMEOUT,
    TOOL_IDLE_TIMEOUT,
    USER_INPUT_TIMEOUT,
    TASK_DEADLINE_EXCEEDED,
    SPAWN_FAILED,
    PROVIDER_MISSING,
    BAD_CWD,
    RESUME_FAILED,
    RECEIPTS_MISSING,
    WORKER_DISK_FULL,
    CANCELED_BY_USER,
    CANCELED_BY_OPERATOR,
    OPERATOR_FORCED,
    DISPATCH_LIMIT,
];

/// Whether an agent may say this of itself; `lease_expired` from its mouth would park a task as lost.
pub fn is_allowed_from_agent(code: &str) -> bool {
    !RESERVED_CODES.contains(&code)
}

/// Machine codes of `FrameRejected` and `CommandResult` that a daemon acts on; every other one it only logs.
pub mod refusals {
    /// An earlier control frame is missing: replay from `expected_control_seq`.
    pub const GAP: &str = "gap";
    /// Output continues elsewhere: replay from the last acknowledged byte.
    pub const OUTPUT_GAP: &str = "output_gap";
    /// The relay knows no such attempt of this daemon.
    pub const UNKNOWN_ATTEMPT: &str = "unknown_attempt";
    /// The relay speaks no common protocol version; it ends the stream with this status, and dialing again is of no use.
    pub const VERSION_UNSUPPORTED: &str = "version_unsupported";
    /// Required artifacts are missing; the attempt is still leased.
    pub const CONTRACT_UNMET: &str = "contract_unmet";
}

/// Optional parts of the protocol, as Hello and Welcome name them. A side uses a part only when both name it.
pub mod features {
    /// Frames survive the daemon, on disk.
    pub const OUTBOX: &str = "outbox";
    /// Processes survive the daemon.
    pub const SHIM: &str = "shim";
    /// A daemon that restarts on purpose asks for more time.
    pub const LEASE_EXTENSION: &str = "hold";
    /// What this version speaks.
    pub const ALL: [&str; 3] = [OUTBOX, SHIM, LEASE_EXTENSION];
}
