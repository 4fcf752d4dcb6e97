//! What a client asks for: the immutable half of a task, written once and never changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{DaemonId, TenantId};

/// Everything a submission fixed. Written once under the task's `spec` key; retries read it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    pub tenant: TenantId,
    /// Name of the credential that submitted it, for display and audit.
    pub submitted_by: String,
    pub idempotency_key: Option<String>,
    pub goal: String,
    pub prompt: String,
    pub agent: String,
    pub options: AgentOptions,
    /// For kind `command` only; empty otherwise.
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    /// None: as the daemon runs tasks that ask for nothing.
    pub workspace: Option<WorkspaceSpec>,
    pub env: BTreeMap<String, String>,
    pub conversation_id: Option<String>,
    pub channel_id: Option<String>,
    pub turn_kind: TurnKind,
    /// As sent: absent, empty and partial are three different things (see `Profile`).
    pub requested_profile: RequestedProfile,
    /// What the relay enforces, resolved once at submit.
    pub effective_profile: DeadlineProfile,
    pub queue_ms: Option<u64>,
    pub total_ms: Option<u64>,
    /// Time between renewals that a holder may need; 5 s to 24 h.
    pub lease_ttl_ms: u64,
    pub retry: RetryPolicy,
    pub on_input_timeout: InputTimeoutPolicy,
    /// Answer permissions by themselves; the first that matches does. See `rules`.
    pub permission_rules: Vec<PermissionRule>,
    pub dispatch_policy: DispatchPolicy,
    pub target: PlacementTarget,
    /// 0 (lowest) to 100; default 50.
    pub priority: u8,
    /// The client's own key-value notes; not used for placement.
    pub labels: BTreeMap<String, String>,
    pub success_criteria: Vec<String>,
    pub contract: Option<CompletionContract>,
    /// Agents whose credential has this scope may claim it and pick it up; none: no agent may.
    pub agent_scope: Option<String>,
    /// Waits for an agent to claim it, and no daemon is offered it.
    pub agent_held: bool,
    /// The caller's W3C trace context, if it sent a valid one.
    pub traceparent: Option<String>,
    /// The agent is handed Baton's own tools.
    pub mcp: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOptions {
    pub model: Option<String>,
    pub effort: Option<String>,
    pub permission_mode: Option<String>,
    pub instructions: Option<String>,
    pub context_refs: Vec<String>,
}

/// Where on the worker it wants to run. Only the root's name concerns the relay; the rest is the daemon's to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSpec {
    /// Name of a root in a daemon's configuration.
    pub root: Option<String>,
    pub mode: Option<WorkspaceMode>,
    /// Whether a directory that was made for the attempt stays.
    pub keep: Option<bool>,
}

/// How a workspace directory is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkspaceMode {
    Shared,
    Scratch,
    Worktree,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TurnKind {
    #[default]
    User,
    SessionTitle,
    ContextStats,
    Compact,
    Control,
}

/// The caller's wish about deadlines. `Inline(Profile::default())` opts out of every phase timer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestedProfile {
    #[default]
    Absent,
    Named(String),
    Inline(DeadlineProfile),
}

/// The eight phase deadlines. A field that is absent is not armed; zero round-trips as sent and is not armed either.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineProfile {
    pub process_start_ms: Option<u64>,
    pub prompt_write_ms: Option<u64>,
    pub first_event_ms: Option<u64>,
    pub first_visible_event_ms: Option<u64>,
    pub stream_idle_ms: Option<u64>,
    pub tool_idle_ms: Option<u64>,
    pub user_input_ms: Option<u64>,
    pub cleanup_term_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How many attempts may end failed or timed_out (1..=10).
    pub max_attempts: u32,
    /// How many attempts may end lost (1..=10).
    pub max_losses: u32,
    pub when_unsafe: UnsafeLossPolicy,
    pub backoff_initial_ms: u64,
    pub backoff_max_ms: u64,
}

/// What to do after a *loss* whose side effects are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnsafeLossPolicy {
    #[default]
    Park,
    Retry,
    Fail,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputTimeoutPolicy {
    #[default]
    Fail,
    Deny,
    Park,
}

/// What the task says about permissions before any is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    pub effect: PermissionEffect,
    /// A tool's name; `*` stands for any characters.
    pub tool: String,
    /// What the tool is called with; `*` stands for any characters. Empty: whatever it is.
    pub pattern: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermissionEffect {
    Allow,
    Deny,
    #[default]
    Ask,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DispatchPolicy {
    #[default]
    Queue,
    /// Refuse at once (UNAVAILABLE) when no daemon could take it now.
    FailFast,
}

/// Which daemons may take it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementTarget {
    pub daemon: Option<DaemonId>,
    /// Every pair must be among the daemon's labels.
    pub labels: BTreeMap<String, String>,
    /// Every one must be among the daemon's capabilities.
    pub capabilities: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionContract {
    pub artifacts: Vec<RequiredArtifact>,
    pub missing_policy: MissingPolicy,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequiredArtifact {
    pub path: String,
    pub min_size: Option<u64>,
    pub sha256: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MissingPolicy {
    #[default]
    Reject,
    Fail,
    Park,
}
