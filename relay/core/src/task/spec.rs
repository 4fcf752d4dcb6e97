//! The specification of a task: its immutable part, written once at submit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{DaemonId, TenantId};

/// Everything that a submission fixes. Written once under the task's `spec` key; retries read
/// it again.
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
    /// Set for agents of kind `command` only; empty otherwise.
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    /// Absent: the daemon's default workspace.
    pub workspace: Option<WorkspaceSpec>,
    pub env: BTreeMap<String, String>,
    pub conversation_id: Option<String>,
    pub channel_id: Option<String>,
    pub turn_kind: TurnKind,
    /// The profile as sent. Absent, empty and partial differ (see `DeadlineProfile`).
    pub requested_profile: RequestedProfile,
    /// The profile that the relay enforces, resolved once at submit.
    pub effective_profile: DeadlineProfile,
    pub queue_ms: Option<u64>,
    pub total_ms: Option<u64>,
    /// Lease ttl: the longest time between renewals; 5 s to 24 h.
    pub lease_ttl_ms: u64,
    pub retry: RetryPolicy,
    pub on_input_timeout: InputTimeoutPolicy,
    /// Rules that answer permission requests automatically. The first rule that matches
    /// decides.
    pub permission_rules: Vec<PermissionRule>,
    pub dispatch_policy: DispatchPolicy,
    pub target: PlacementTarget,
    /// 0 (lowest) to 100; default 50.
    pub priority: u8,
    /// Labels of the client; not used for placement.
    pub labels: BTreeMap<String, String>,
    pub success_criteria: Vec<String>,
    pub contract: Option<CompletionContract>,
    /// Agents whose credential has this scope may claim the task and pick it up. Absent: no
    /// agent may.
    pub agent_scope: Option<String>,
    /// The task waits for an agent to claim it and is never offered to a daemon.
    pub agent_held: bool,
    /// The caller's W3C trace context, if it sent a valid one.
    pub traceparent: Option<String>,
    /// The agent gets Baton's own tools through MCP.
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

/// The workspace that a task requests. The relay uses only the root's name, for placement; the
/// daemon does the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSpec {
    /// Name of a root in a daemon's configuration.
    pub root: Option<String>,
    pub mode: Option<WorkspaceMode>,
    /// Whether a directory created for the attempt is retained.
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

/// The deadlines that a caller requests. `Inline(DeadlineProfile::default())` opts out of every
/// phase timer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestedProfile {
    #[default]
    Absent,
    Named(String),
    Inline(DeadlineProfile),
}

/// The eight phase deadlines. An absent field is not armed. Zero is not armed either, but is
/// stored and returned as sent.
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

/// The reaction to a *loss* whose side effects are unknown.
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

/// A rule of the task that answers permission requests in advance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    pub effect: PermissionEffect,
    /// The name of a tool; `*` matches any characters.
    pub tool: String,
    /// The argument of the tool call; `*` matches any characters. Empty matches every argument.
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
    /// Refuse at once (UNAVAILABLE) when no daemon could take the task now.
    FailFast,
}

/// The daemons that may take a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementTarget {
    pub daemon: Option<DaemonId>,
    /// The daemon must have every one of these labels.
    pub labels: BTreeMap<String, String>,
    /// The daemon must have every one of these capabilities.
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
