//! The flags that describe a task, in the groups that `baton submit --help` shows. `task_spec.rs` turns them into a
//! TaskSpec.

use std::time::Duration;

use baton_proto::v1::{
    MissingPolicy, OnInputTimeout, RequiredArtifact, TurnKind, WhenUnsafe, WorkspaceMode,
};
use clap::{Args, ValueEnum};

use crate::args::duration;
use crate::args::pairs;
use crate::args::pairs::NamedDeadline;
use crate::args::permission_rule;
use crate::args::permission_rule::ToolPattern;
use crate::args::required_file;

/// The content of the task.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TaskContentArgs {
    /// Name of the agent, as configured on the daemons. With a command after `--` the default is `command`.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// The purpose of the task in one sentence, for people and for listings.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub goal: String,

    /// Give the agent Baton's own tools to report progress and checkpoints, to block and to complete (docs/mcp.md).
    #[arg(long)]
    pub mcp: bool,

    /// Working directory on the worker, inside its workspace. The default is the workspace itself.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    pub cwd: String,

    /// Environment variable for the agent, if the daemon's configuration lets tasks set it (task_env). Names that begin
    /// with BATON_ are reserved. May be repeated.
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = pairs::variable)]
    pub env: Vec<(String, String)>,

    /// Note on the task, for listings. It has no influence on placement; see --label. May be repeated.
    #[arg(long = "note", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub notes: Vec<(String, String)>,

    /// Kind of the turn; it selects the default deadlines.
    #[arg(long, value_enum, value_name = "KIND")]
    pub turn_kind: Option<TurnKindName>,

    /// Name of the conversation that this turn belongs to. Its turns run one at a time, on the same daemon if that is
    /// available.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub conversation: String,

    /// Program and arguments for an agent of kind command. It runs without a shell (use `sh -c '...'` for shell syntax);
    /// the prompt is its standard input.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options for the agent. The task is refused if the agent does not support one of them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Agent options")]
pub(crate) struct AgentOptionArgs {
    /// Model, as the agent names it.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub model: String,

    /// Reasoning effort, for example low, medium or high.
    #[arg(
        long,
        value_name = "WORD",
        default_value = "",
        hide_default_value = true
    )]
    pub effort: String,

    /// Permission mode, as the agent names it.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "",
        hide_default_value = true
    )]
    pub permission_mode: String,

    /// File or, with a trailing slash, folder in the workspace that the agent should read. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub context: Vec<String>,
}

/// How permission requests and questions of the agent are handled.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Permissions and questions")]
pub(crate) struct PermissionArgs {
    /// Let the agent use this tool without asking, for example 'Bash:git *'. The pattern is compared with the argument
    /// that describes what the tool does; * matches any characters. May be repeated. --deny is checked first, then --ask,
    /// then --allow.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub allow: Vec<ToolPattern>,

    /// Deny this tool without asking. The pattern is compared with every text argument of the call. May be repeated.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub deny: Vec<ToolPattern>,

    /// Ask a person about this tool, even if --allow matches. May be repeated.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub ask: Vec<ToolPattern>,

    /// What happens without an answer within user_input: fail the attempt, deny the request and let the agent continue, or
    /// park the task for a person. The default is fail.
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub on_input_timeout: Option<OnInputTimeoutName>,
}

/// Where and when the task may run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Only run on daemons with this label and value. May be repeated; all must match.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub labels: Vec<(String, String)>,

    /// Only run on daemons with this capability. May be repeated; all must match.
    #[arg(long = "capability", value_name = "WORD")]
    pub capabilities: Vec<String>,

    /// Only run on this daemon, by id or name.
    #[arg(
        long,
        value_name = "DAEMON",
        default_value = "",
        hide_default_value = true
    )]
    pub daemon: String,

    /// Priority from 0 to 100; higher ones are dispatched first. The relay's default is 50.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub priority: Option<u32>,

    /// Refuse the task if no daemon can take it now, instead of queueing it.
    #[arg(long)]
    pub fail_fast: bool,

    /// Let agents whose token has this scope claim the task, and pick it up when it is parked.
    #[arg(
        long,
        value_name = "SCOPE",
        default_value = "",
        hide_default_value = true
    )]
    pub agent_scope: String,

    /// Reserve the task for an agent of --agent-scope; it is not offered to daemons.
    #[arg(long, requires = "agent_scope", conflicts_with = "fail_fast")]
    pub agent_held: bool,
}

/// The directory on the worker that the task works in.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Workspace")]
pub(crate) struct WorkspaceArgs {
    /// Name of a workspace root in daemon.toml. Only daemons with this root take the task. The default is the daemon's work
    /// directory.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub workspace: String,

    /// shared uses the root itself, one attempt at a time; scratch makes a new directory for each attempt; worktree makes a
    /// git worktree with its own branch for each attempt. The default is configured at the root.
    #[arg(long, value_enum, value_name = "MODE")]
    pub workspace_mode: Option<WorkspaceModeName>,

    /// Whether a directory that was made for an attempt is kept afterwards. The default is configured at the root.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub workspace_keep: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkspaceModeName {
    Shared,
    Scratch,
    Worktree,
}

impl From<WorkspaceModeName> for WorkspaceMode {
    fn from(name: WorkspaceModeName) -> Self {
        match name {
            WorkspaceModeName::Shared => WorkspaceMode::Shared,
            WorkspaceModeName::Scratch => WorkspaceMode::Scratch,
            WorkspaceModeName::Worktree => WorkspaceMode::Worktree,
        }
    }
}

/// Files that the task has to leave.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Required files")]
pub(crate) struct ContractArgs {
    /// File that must exist in the workspace at the end, optionally with a minimum size or a SHA-256. Without it the task
    /// does not complete. May be repeated up to 64 times.
    #[arg(long, value_name = "PATH[,min=SIZE][,sha256=HEX]", value_parser = required_file::parse)]
    pub require: Vec<RequiredArtifact>,

    /// What happens to a result with missing files: reject it, so that an agent that still runs can complete again; fail
    /// the attempt; or park the task for a person. The default is reject.
    #[arg(long, value_enum, value_name = "CHOICE", requires = "require")]
    pub if_missing: Option<MissingPolicyName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingPolicyName {
    Reject,
    Fail,
    Park,
}

impl From<MissingPolicyName> for MissingPolicy {
    fn from(name: MissingPolicyName) -> Self {
        match name {
            MissingPolicyName::Reject => MissingPolicy::Reject,
            MissingPolicyName::Fail => MissingPolicy::Fail,
            MissingPolicyName::Park => MissingPolicy::Park,
        }
    }
}

/// Time limits of the task.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Deadlines")]
pub(crate) struct DeadlineArgs {
    /// Deadline by name: process_start, prompt_write, first_event, first_visible_event, stream_idle, tool_idle,
    /// user_input or cleanup_term. Any of these replaces the default profile: only the given ones are armed.
    /// queue and total do not belong to the profile and can be combined with it. May be repeated.
    #[arg(
        long = "deadline",
        value_name = "NAME=DURATION",
        value_parser = pairs::deadline,
        conflicts_with = "profile"
    )]
    pub deadlines: Vec<NamedDeadline>,

    /// Use an empty profile: none of the eight phase deadlines is armed.
    #[arg(long, conflicts_with = "profile")]
    pub no_deadlines: bool,

    /// Named profile that is stored in the relay; see `baton profile`.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,

    /// Lease duration from 5s to 24h: how long relay and daemon may be disconnected before the attempt is ended.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub lease: Option<Duration>,
}

/// What happens after an attempt that did not succeed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Retries")]
pub(crate) struct RetryPolicyArgs {
    /// Number of attempts that may end as failed or timed out, from 1 to 10.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub max_attempts: Option<u32>,

    /// Number of attempts that may end as lost, from 1 to 10.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub max_losses: Option<u32>,

    /// What to do after a lost attempt that may have had effects: park the task for a person, retry it, or fail it. It does
    /// not apply to attempts that fail.
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub when_unsafe: Option<WhenUnsafeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum TurnKindName {
    User,
    SessionTitle,
    ContextStats,
    Compact,
    Control,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenUnsafeName {
    Park,
    Retry,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnInputTimeoutName {
    Fail,
    Deny,
    Park,
}

/// All flags that describe a task.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SubmissionArgs {
    #[command(flatten)]
    pub task: TaskContentArgs,
    #[command(flatten)]
    pub options: AgentOptionArgs,
    #[command(flatten)]
    pub permissions: PermissionArgs,
    #[command(flatten)]
    pub workspace: WorkspaceArgs,
    #[command(flatten)]
    pub contract: ContractArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub deadlines: DeadlineArgs,
    #[command(flatten)]
    pub retry: RetryPolicyArgs,
}

impl From<TurnKindName> for TurnKind {
    fn from(name: TurnKindName) -> Self {
        match name {
            TurnKindName::User => TurnKind::User,
            TurnKindName::SessionTitle => TurnKind::SessionTitle,
            TurnKindName::ContextStats => TurnKind::ContextStats,
            TurnKindName::Compact => TurnKind::Compact,
            TurnKindName::Control => TurnKind::Control,
        }
    }
}

impl From<OnInputTimeoutName> for OnInputTimeout {
    fn from(name: OnInputTimeoutName) -> Self {
        match name {
            OnInputTimeoutName::Fail => OnInputTimeout::Fail,
            OnInputTimeoutName::Deny => OnInputTimeout::Deny,
            OnInputTimeoutName::Park => OnInputTimeout::Park,
        }
    }
}

impl From<WhenUnsafeName> for WhenUnsafe {
    fn from(name: WhenUnsafeName) -> Self {
        match name {
            WhenUnsafeName::Park => WhenUnsafe::Park,
            WhenUnsafeName::Retry => WhenUnsafe::Retry,
            WhenUnsafeName::Fail => WhenUnsafe::Fail,
        }
    }
}
