//! The flags that shape a task, in the groups that `baton submit --help` shows them in. What they send is decided in
//! `submission.rs`.

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

/// What the task is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TaskContentArgs {
    /// Name of the agent that does the work, as daemons have it configured. With a command after `--` the default is
    /// `command`.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// What the task is for, in one sentence, for people and for listings.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub goal: String,

    /// Hand the agent Baton's own tools, to write down progress and checkpoints, to block and to complete (docs/mcp.md).
    #[arg(long)]
    pub mcp: bool,

    /// Working directory on the worker, inside its workspace. Without it the workspace itself.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    pub cwd: String,

    /// Environment variable for the agent, if its daemon's operator lets tasks set it (task_env). Names that begin with BATON_ are
    /// Baton's own. May be repeated.
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = pairs::variable)]
    pub env: Vec<(String, String)>,

    /// Note on the task, for listings. It has no influence on placement; see --label. May be repeated.
    #[arg(long = "note", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub notes: Vec<(String, String)>,

    /// What kind of turn it is, which selects the default deadlines.
    #[arg(long, value_enum, value_name = "KIND")]
    pub turn_kind: Option<TurnKindName>,

    /// Name of the conversation that this turn belongs to. Its turns run one at a time, on the same daemon while that is there.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub conversation: String,

    /// Program and arguments for an agent of kind command. It is run directly, without a shell; the prompt is its
    /// standard input.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options that are handed to the agent; one that it cannot take refuses the task.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Agent options")]
pub(crate) struct AgentOptionArgs {
    /// Model, as the agent spells it.
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

    /// Permission mode, as the agent spells it.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "",
        hide_default_value = true
    )]
    pub permission_mode: String,

    /// File or, with a trailing slash, folder that the agent should look at, by path in its workspace. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub context: Vec<String>,
}

/// What becomes of what the agent asks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Permissions and questions")]
pub(crate) struct PermissionArgs {
    /// Let the agent use this tool without asking anybody, for example 'Bash:git *'. The pattern is compared with what
    /// says what the tool does; * stands for any characters. May be repeated. --deny is looked at first, then --ask,
    /// then --allow.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub allow: Vec<ToolPattern>,

    /// Refuse this tool without asking anybody. The pattern is compared with every text that it is called with.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub deny: Vec<ToolPattern>,

    /// Ask about this tool, also where --allow would let it through.
    #[arg(long, value_name = "TOOL[:PATTERN]", value_parser = permission_rule::parse)]
    pub ask: Vec<ToolPattern>,

    /// What happens when nobody answers within user_input: the attempt fails, the agent goes on without, or the task
    /// waits for a person. The default is fail.
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub on_input_timeout: Option<OnInputTimeoutName>,
}

/// Where and when it may run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Only run on daemons with this label and value. May be repeated; all must match.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub labels: Vec<(String, String)>,

    /// Only run on daemons with this capability. May be repeated; all must match.
    #[arg(long = "capability", value_name = "WORD")]
    pub capabilities: Vec<String>,

    /// Only run on this daemon, given by id or by name.
    #[arg(
        long,
        value_name = "DAEMON",
        default_value = "",
        hide_default_value = true
    )]
    pub daemon: String,

    /// From 0 to 100; higher ones are dispatched first. The relay's default is 50.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub priority: Option<u32>,

    /// Refuse the task at once if no daemon can take it now, instead of queueing it.
    #[arg(long)]
    pub fail_fast: bool,

    /// Let agents whose token has this scope claim the task, and pick it up when it is stuck.
    #[arg(
        long,
        value_name = "SCOPE",
        default_value = "",
        hide_default_value = true
    )]
    pub agent_scope: String,

    /// Keep the task for an agent of --agent-scope to claim; no daemon is offered it.
    #[arg(long, requires = "agent_scope", conflicts_with = "fail_fast")]
    pub agent_held: bool,
}

/// Which directory of the worker it works in.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Workspace")]
pub(crate) struct WorkspaceArgs {
    /// Name of a root in the daemon's daemon.toml. Only daemons that have it take the task. Without it the task runs in the daemon's
    /// work directory.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub workspace: String,

    /// How the workspace is shared: shared is the directory itself, one attempt at a time; scratch a new directory and worktree a git
    /// worktree with a branch of its own, for each attempt. The default is the root's.
    #[arg(long, value_enum, value_name = "MODE")]
    pub workspace_mode: Option<WorkspaceModeName>,

    /// Whether a directory that was made for an attempt stays after it. The default is the root's policy.
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

/// What it has to leave.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Required files")]
pub(crate) struct ContractArgs {
    /// File that must be there at the end, by its path in the workspace directory; with a least size, or the SHA-256 that it
    /// must have. Without it the task does not complete. May be repeated, up to 64 times.
    #[arg(long, value_name = "PATH[,min=SIZE][,sha256=HEX]", value_parser = required_file::parse)]
    pub require: Vec<RequiredArtifact>,

    /// What becomes of a result without its files: it is refused, and an agent that still runs may complete again; the
    /// attempt fails; or the task waits for a person. The default is reject.
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

/// How long things may take.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Deadlines")]
pub(crate) struct DeadlineArgs {
    /// Deadline by name: process_start, prompt_write, first_event, first_visible_event, stream_idle, tool_idle,
    /// user_input or cleanup_term. Giving one of these replaces the default profile: only those given are armed.
    /// queue and total stand outside the profile. May be repeated.
    #[arg(
        long = "deadline",
        value_name = "NAME=DURATION",
        value_parser = pairs::deadline,
        conflicts_with = "profile"
    )]
    pub deadlines: Vec<NamedDeadline>,

    /// Send an empty profile: none of the eight phase deadlines is armed.
    #[arg(long, conflicts_with = "profile")]
    pub no_deadlines: bool,

    /// Named profile that the relay has stored; see `baton profile`.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,

    /// Lease duration, from 5s to 24h: how long a daemon may be out of reach before its attempt is given up.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub lease: Option<Duration>,
}

/// What happens when an attempt does not succeed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Retries")]
pub(crate) struct RetryPolicyArgs {
    /// How many attempts may end as failed or timed out, from 1 to 10.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub max_attempts: Option<u32>,

    /// How many attempts may end as lost, from 1 to 10.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub max_losses: Option<u32>,

    /// What to do after a loss that may already have had effects: park it for a person, retry it, or fail it.
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

/// All flags that shape a task.
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
