//! Failure codes of attempts. They are stable and never renamed. PROTOCOL.md explains each one.
//!
//! This file only defines the strings, for the code that writes frames. The relay's core
//! decides what follows from a code.

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

/// Longest code, and longest result of an attempt, in bytes.
pub const MAX_CODE_BYTES: usize = 64;
pub const MAX_RESULT_BYTES: usize = 64 * 1024;

/// Codes that only relay, daemon or operator may set. An agent may report any other code for
/// its own failure.
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

/// Whether an agent may report this code. An agent that reported `lease_expired` would park its
/// task as lost.
pub fn is_allowed_from_agent(code: &str) -> bool {
    !RESERVED_CODES.contains(&code)
}

/// Machine codes of `FrameRejected` and `CommandResult` that a daemon acts on. It only logs all
/// others.
pub mod refusals {
    /// An earlier control frame is missing: replay from `expected_control_seq`.
    pub const GAP: &str = "gap";
    /// Output does not continue at the acknowledged byte: replay from there.
    pub const OUTPUT_GAP: &str = "output_gap";
    /// The relay has no such attempt for this daemon.
    pub const UNKNOWN_ATTEMPT: &str = "unknown_attempt";
    /// Relay and daemon have no protocol version in common. The relay ends the stream with this
    /// status, and reconnecting does not help.
    pub const VERSION_UNSUPPORTED: &str = "version_unsupported";
    /// Required files are missing. The attempt keeps its lease.
    pub const CONTRACT_UNMET: &str = "contract_unmet";
}

/// Optional parts of the protocol, as Hello and Welcome list them. A side uses a part only if
/// both list it.
pub mod features {
    /// The daemon stores frames on disk, so they survive its restart.
    pub const OUTBOX: &str = "outbox";
    /// Agent processes survive a restart of the daemon.
    pub const SHIM: &str = "shim";
    /// The daemon asks for a lease extension before a planned restart.
    pub const LEASE_EXTENSION: &str = "hold";
    /// All parts that this version implements.
    pub const ALL: [&str; 3] = [OUTBOX, SHIM, LEASE_EXTENSION];
}
