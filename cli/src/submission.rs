//! From the flags of `submit` to a task's specification: pure, so that what each flag sends is tested without a relay.
//! Absent flags stay absent on the wire; the relay's defaults are the relay's to choose.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::{
    AgentOptions, CommandSpec, ContextRef, DeadlineProfile, DispatchPolicy, Placement, RetryPolicy,
    TaskSpec, TurnKind, WhenUnsafe,
};
use clap::{Args, ValueEnum};

use crate::duration;
use crate::errors::CliError;
use crate::pairs::{self, Deadline, DeadlineName};

/// What the task is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TaskArgs {
    /// Name of the agent that does the work, as daemons have it configured. With a command after `--` the default is
    /// `command`.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// What the task is for, in one sentence, for people and for listings.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub goal: String,

    /// Working directory on the worker. Without it the daemon's workspace is used.
    #[arg(long, value_name = "DIR", default_value = "")]
    pub cwd: String,

    /// Environment variable for the agent, if the daemon's allow-list takes its name. May be repeated.
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub env: Vec<(String, String)>,

    /// Note on the task, for listings. It has no influence on placement; see --require. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub labels: Vec<(String, String)>,

    /// What kind of turn it is, which selects the default deadlines.
    #[arg(long, value_enum, value_name = "KIND")]
    pub turn_kind: Option<TurnKindName>,

    /// Name of the conversation that this turn belongs to. Its turns run one at a time, on the same daemon while that is there.
    #[arg(long, value_name = "ID", default_value = "")]
    pub conversation: String,

    /// Program and arguments for an agent of kind command. It is run directly, without a shell; the prompt is its
    /// standard input.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options that are handed to the agent; one that it cannot take refuses the task.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Agent options")]
pub(crate) struct OptionArgs {
    /// Model, as the agent spells it.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub model: String,

    /// Reasoning effort, for example low, medium or high.
    #[arg(long, value_name = "WORD", default_value = "")]
    pub effort: String,

    /// Permission mode, as the agent spells it.
    #[arg(long, value_name = "MODE", default_value = "")]
    pub permission_mode: String,

    /// File or, with a trailing slash, folder that the agent should look at, by path in its workspace. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub context: Vec<String>,
}

/// Where and when it may run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Only run on daemons with this label and value. May be repeated; all must match.
    #[arg(long = "require", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    pub require: Vec<(String, String)>,

    /// Only run on daemons with this capability. May be repeated; all must match.
    #[arg(long = "capability", value_name = "WORD")]
    pub capabilities: Vec<String>,

    /// Only run on this daemon, given by id or by name.
    #[arg(long, value_name = "DAEMON", default_value = "")]
    pub daemon: String,

    /// From 0 to 100; higher ones are dispatched first. The relay's default is 50.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub priority: Option<u32>,

    /// Refuse the task at once if no daemon can take it now, instead of queueing it.
    #[arg(long)]
    pub fail_fast: bool,
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
    pub deadlines: Vec<Deadline>,

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

/// All flags that shape a task.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SubmissionArgs {
    #[command(flatten)]
    pub task: TaskArgs,
    #[command(flatten)]
    pub options: OptionArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub deadlines: DeadlineArgs,
    #[command(flatten)]
    pub retry: RetryPolicyArgs,
}

impl SubmissionArgs {
    /// `prompt` and `instructions` were read from files or flags by the caller.
    pub(crate) fn spec(self, prompt: String, instructions: String) -> Result<TaskSpec, CliError> {
        let agent = agent_name(self.task.agent, &self.task.command)?;
        let command = self.task.command;
        let profile = self.deadlines.profile();
        Ok(TaskSpec {
            agent,
            prompt,
            goal: self.task.goal,
            options: self.options.options(instructions),
            command: (!command.is_empty()).then_some(CommandSpec { argv: command }),
            cwd: self.task.cwd,
            turn_kind: self
                .task
                .turn_kind
                .map_or(TurnKind::Unspecified, TurnKind::from)
                .into(),
            conversation_id: self.task.conversation,
            labels: map(self.task.labels),
            env: map(self.task.env),
            priority: self.placement.priority,
            dispatch_policy: self.placement.policy().into(),
            placement: self.placement.placement(),
            profile,
            queue_ms: self.deadlines.outside(DeadlineName::Queue),
            total_ms: self.deadlines.outside(DeadlineName::Total),
            profile_name: self.deadlines.profile.unwrap_or_default(),
            lease_ttl_ms: self.deadlines.lease.map(duration::millis),
            retry: self.retry.policy(),
            ..TaskSpec::default()
        })
    }
}

const COMMAND_AGENT: &str = "command";

fn agent_name(given: Option<String>, command: &[String]) -> Result<String, CliError> {
    let agent = match given {
        Some(agent) => agent,
        None if !command.is_empty() => COMMAND_AGENT.to_owned(),
        None => {
            return Err(CliError::usage(
                "the task names no agent",
                "name one with --agent NAME, or give a command: baton submit -- echo hello",
            ));
        }
    };
    if agent == COMMAND_AGENT && command.is_empty() {
        return Err(CliError::usage(
            "agent command needs a program to run",
            "put it after two dashes: baton submit --agent command -- echo hello",
        ));
    }
    Ok(agent)
}

impl OptionArgs {
    fn options(self, instructions: String) -> Option<AgentOptions> {
        let options = AgentOptions {
            model: self.model,
            effort: self.effort,
            permission_mode: self.permission_mode,
            instructions,
            context_refs: self.context.into_iter().map(context_ref).collect(),
        };
        (options != AgentOptions::default()).then_some(options)
    }
}

fn context_ref(path: String) -> ContextRef {
    let kind = if path.ends_with('/') {
        "folder"
    } else {
        "file"
    };
    ContextRef {
        kind: kind.to_owned(),
        path,
        ..ContextRef::default()
    }
}

impl PlacementArgs {
    fn policy(&self) -> DispatchPolicy {
        if self.fail_fast {
            DispatchPolicy::FailFast
        } else {
            DispatchPolicy::Unspecified
        }
    }

    fn placement(self) -> Option<Placement> {
        let placement = Placement {
            daemon: self.daemon,
            labels: map(self.require),
            capabilities: self.capabilities,
            ..Placement::default()
        };
        (placement != Placement::default()).then_some(placement)
    }
}

impl DeadlineArgs {
    /// Absent, empty and partial are three different wishes: only a profile deadline or --no-deadlines makes it present.
    fn profile(&self) -> Option<DeadlineProfile> {
        let mut profile = self.no_deadlines.then(DeadlineProfile::default);
        for deadline in &self.deadlines {
            set(
                &mut profile,
                deadline.name,
                duration::millis(deadline.after),
            );
        }
        profile
    }

    fn outside(&self, name: DeadlineName) -> Option<u64> {
        let last = self
            .deadlines
            .iter()
            .rfind(|deadline| deadline.name == name);
        last.map(|deadline| duration::millis(deadline.after))
    }
}

/// Puts one deadline into a profile, which becomes present by that; queue and total are not part of it.
pub(crate) fn set(profile: &mut Option<DeadlineProfile>, name: DeadlineName, ms: u64) {
    if matches!(name, DeadlineName::Queue | DeadlineName::Total) {
        return;
    }
    let profile = profile.get_or_insert_default();
    let field = match name {
        DeadlineName::ProcessStart => &mut profile.process_start_ms,
        DeadlineName::PromptWrite => &mut profile.prompt_write_ms,
        DeadlineName::FirstEvent => &mut profile.first_event_ms,
        DeadlineName::FirstVisibleEvent => &mut profile.first_visible_event_ms,
        DeadlineName::StreamIdle => &mut profile.stream_idle_ms,
        DeadlineName::ToolIdle => &mut profile.tool_idle_ms,
        DeadlineName::UserInput => &mut profile.user_input_ms,
        DeadlineName::CleanupTerm => &mut profile.cleanup_term_ms,
        DeadlineName::Queue | DeadlineName::Total => return,
    };
    *field = Some(ms);
}

impl RetryPolicyArgs {
    fn policy(self) -> Option<RetryPolicy> {
        let policy = RetryPolicy {
            max_attempts: self.max_attempts,
            max_losses: self.max_losses,
            when_unsafe: self
                .when_unsafe
                .map_or(WhenUnsafe::Unspecified, WhenUnsafe::from)
                .into(),
            ..RetryPolicy::default()
        };
        (policy != RetryPolicy::default()).then_some(policy)
    }
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

impl From<WhenUnsafeName> for WhenUnsafe {
    fn from(name: WhenUnsafeName) -> Self {
        match name {
            WhenUnsafeName::Park => WhenUnsafe::Park,
            WhenUnsafeName::Retry => WhenUnsafe::Retry,
            WhenUnsafeName::Fail => WhenUnsafe::Fail,
        }
    }
}

pub(crate) fn map(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        submission: SubmissionArgs,
    }

    fn spec(args: &[&str]) -> TaskSpec {
        let line = Line::try_parse_from([&["submit"], args].concat()).expect("parses");
        line.submission
            .spec(String::new(), String::new())
            .expect("a whole task")
    }

    #[test]
    fn a_bare_command_leaves_every_choice_to_the_relay() {
        let spec = spec(&["--", "sh", "-c", "echo hi"]);
        let argv = ["sh", "-c", "echo hi"].map(str::to_owned).to_vec();
        let expected = TaskSpec {
            agent: "command".to_owned(),
            command: Some(CommandSpec { argv }),
            ..TaskSpec::default()
        };
        assert_eq!(spec, expected);
    }

    #[test]
    fn absent_empty_and_partial_profiles_differ() {
        assert_eq!(spec(&["--", "true"]).profile, None);
        assert_eq!(
            spec(&["--no-deadlines", "--", "true"]).profile,
            Some(DeadlineProfile::default())
        );
        let partial = spec(&[
            "--deadline",
            "stream_idle=90s",
            "--deadline",
            "tool_idle=0s",
            "--",
            "true",
        ]);
        let expected = DeadlineProfile {
            stream_idle_ms: Some(90_000),
            tool_idle_ms: Some(0),
            ..DeadlineProfile::default()
        };
        assert_eq!(partial.profile, Some(expected));
    }

    #[test]
    fn queue_and_total_do_not_make_a_profile_present() {
        let spec = spec(&[
            "--deadline",
            "queue=5s",
            "--deadline",
            "total=1h",
            "--",
            "true",
        ]);
        assert_eq!(
            (spec.profile, spec.queue_ms, spec.total_ms),
            (None, Some(5_000), Some(3_600_000))
        );
    }

    #[test]
    fn flags_of_the_task_and_the_agent_reach_their_fields() {
        let line = "--agent claude --goal g --cwd /w --env A=b --label team=core --turn-kind session_title \
                    --conversation c1 --model m --effort high --permission-mode plan --context src/ --context a.rs";
        let spec = spec(&line.split_whitespace().collect::<Vec<_>>());
        let options = spec.options.expect("options");
        let texts = [spec.agent, spec.goal, spec.cwd, spec.conversation_id];
        assert_eq!(texts, ["claude", "g", "/w", "c1"]);
        assert_eq!(
            (spec.env["A"].as_str(), spec.labels["team"].as_str()),
            ("b", "core")
        );
        assert_eq!(spec.turn_kind, i32::from(TurnKind::SessionTitle));
        let texts = [options.model, options.effort, options.permission_mode];
        assert_eq!(texts, ["m", "high", "plan"]);
        let kinds: Vec<&str> = options
            .context_refs
            .iter()
            .map(|c| c.kind.as_str())
            .collect();
        assert_eq!(kinds, ["folder", "file"]);
    }

    #[test]
    fn flags_of_placement_limits_and_retries_reach_their_fields() {
        let line = "--agent a --require zone=eu --capability gpu --daemon d1 --priority 70 --fail-fast --profile long \
                    --lease 1m --max-attempts 2 --max-losses 4 --when-unsafe retry";
        let spec = spec(&line.split_whitespace().collect::<Vec<_>>());
        let placement = spec.placement.expect("placement");
        let retry = spec.retry.expect("retry");
        assert!(spec.labels.is_empty(), "placement is not a note");
        assert_eq!(placement.labels["zone"], "eu");
        assert_eq!(
            (placement.capabilities, placement.daemon.as_str()),
            (vec!["gpu".to_owned()], "d1")
        );
        assert_eq!((spec.priority, spec.lease_ttl_ms), (Some(70), Some(60_000)));
        assert_eq!(spec.dispatch_policy, i32::from(DispatchPolicy::FailFast));
        assert_eq!((spec.profile, spec.profile_name.as_str()), (None, "long"));
        assert_eq!((retry.max_attempts, retry.max_losses), (Some(2), Some(4)));
        assert_eq!(retry.when_unsafe, i32::from(WhenUnsafe::Retry));
    }
}
