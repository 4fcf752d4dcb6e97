//! Turns the flags of `submit` into a TaskSpec. Pure, so that the effect of each flag is tested without a relay.
//! An absent flag stays absent in the request, because the relay chooses its own defaults.

use std::collections::BTreeMap;

use baton_proto::v1::{
    AgentOptions, CommandSpec, CompletionContract, ContextRef, DeadlineProfile, DispatchPolicy,
    MissingPolicy, OnInputTimeout, Placement, RetryPolicy, TaskSpec, TurnKind, WhenUnsafe,
    WorkspaceMode, WorkspaceSpec,
};

use crate::args::duration;
use crate::args::pairs::DeadlineName;
use crate::args::permission_rule;
use crate::args::task_flags::{
    AgentOptionArgs, ContractArgs, DeadlineArgs, PlacementArgs, RetryPolicyArgs, SubmissionArgs,
    WorkspaceArgs,
};
use crate::error::cli_error::CliError;

impl SubmissionArgs {
    /// `prompt` and `instructions` were read from files or flags by the caller.
    pub(crate) fn into_spec(
        self,
        prompt: String,
        instructions: String,
    ) -> Result<TaskSpec, CliError> {
        let agent = agent_name(self.task.agent, &self.task.command)?;
        let command = self.task.command;
        let profile = self.deadlines.deadline_profile();
        Ok(TaskSpec {
            agent,
            prompt,
            goal: self.task.goal,
            mcp: self.task.mcp,
            options: self.options.into_options(instructions),
            command: (!command.is_empty()).then_some(CommandSpec { argv: command }),
            cwd: self.task.cwd,
            workspace: self.workspace.into_workspace(),
            contract: self.contract.into_contract(),
            turn_kind: self
                .task
                .turn_kind
                .map_or(TurnKind::Unspecified, TurnKind::from)
                .into(),
            conversation_id: self.task.conversation,
            labels: pairs_to_map(self.task.notes),
            env: pairs_to_map(self.task.env),
            priority: self.placement.priority,
            dispatch_policy: self.placement.dispatch_policy().into(),
            agent_scope: self.placement.agent_scope.clone(),
            agent_held: self.placement.agent_held,
            placement: self.placement.into_placement(),
            profile,
            queue_ms: self.deadlines.outside_profile_ms(DeadlineName::Queue),
            total_ms: self.deadlines.outside_profile_ms(DeadlineName::Total),
            profile_name: self.deadlines.profile.unwrap_or_default(),
            lease_ttl_ms: self.deadlines.lease.map(duration::millis),
            retry: self.retry.into_policy(),
            on_input_timeout: self
                .permissions
                .on_input_timeout
                .map_or(OnInputTimeout::Unspecified, OnInputTimeout::from)
                .into(),
            permission_rules: permission_rule::ordered_rules(
                self.permissions.deny,
                self.permissions.ask,
                self.permissions.allow,
            ),
            ..TaskSpec::default()
        })
    }
}

pub(crate) const COMMAND_AGENT: &str = "command";

fn agent_name(given: Option<String>, command: &[String]) -> Result<String, CliError> {
    let agent = match given {
        Some(agent) => agent,
        None if !command.is_empty() => COMMAND_AGENT.to_owned(),
        None => {
            return Err(CliError::usage(
                "the agent is missing",
                "choose one with --agent NAME, or pass a command: baton submit -- echo hello",
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

impl AgentOptionArgs {
    fn into_options(self, instructions: String) -> Option<AgentOptions> {
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

impl WorkspaceArgs {
    fn into_workspace(self) -> Option<WorkspaceSpec> {
        let mode = self.workspace_mode.map(WorkspaceMode::from);
        let wanted = WorkspaceSpec {
            root: self.workspace,
            mode: mode.unwrap_or(WorkspaceMode::Unspecified).into(),
            keep: self.workspace_keep,
        };
        (wanted != WorkspaceSpec::default()).then_some(wanted)
    }
}

impl ContractArgs {
    fn into_contract(self) -> Option<CompletionContract> {
        let policy = self.if_missing.map(MissingPolicy::from);
        (!self.require.is_empty()).then(|| CompletionContract {
            required_artifacts: self.require,
            missing_policy: policy.unwrap_or(MissingPolicy::Unspecified).into(),
        })
    }
}

impl PlacementArgs {
    fn dispatch_policy(&self) -> DispatchPolicy {
        if self.fail_fast {
            DispatchPolicy::FailFast
        } else {
            DispatchPolicy::Unspecified
        }
    }

    fn into_placement(self) -> Option<Placement> {
        let placement = Placement {
            daemon: self.daemon,
            labels: pairs_to_map(self.labels),
            capabilities: self.capabilities,
            ..Placement::default()
        };
        (placement != Placement::default()).then_some(placement)
    }
}

impl DeadlineArgs {
    /// Absent, empty and partial profiles have different effects. Only a profile deadline or --no-deadlines makes the
    /// profile present.
    fn deadline_profile(&self) -> Option<DeadlineProfile> {
        let mut profile = self.no_deadlines.then(DeadlineProfile::default);
        for deadline in &self.deadlines {
            set_deadline(
                &mut profile,
                deadline.name,
                duration::millis(deadline.after),
            );
        }
        profile
    }

    fn outside_profile_ms(&self, name: DeadlineName) -> Option<u64> {
        let last = self
            .deadlines
            .iter()
            .rfind(|deadline| deadline.name == name);
        last.map(|deadline| duration::millis(deadline.after))
    }
}

/// Sets one deadline in a profile, which makes the profile present. queue and total are not part of it.
pub(crate) fn set_deadline(profile: &mut Option<DeadlineProfile>, name: DeadlineName, ms: u64) {
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
    fn into_policy(self) -> Option<RetryPolicy> {
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

pub(crate) fn pairs_to_map(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::PermissionEffect;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestSubmitLine {
        #[command(flatten)]
        submission: SubmissionArgs,
    }

    fn spec(args: &[&str]) -> TaskSpec {
        let line = TestSubmitLine::try_parse_from([&["submit"], args].concat()).expect("parses");
        line.submission
            .into_spec(String::new(), String::new())
            .expect("a whole task")
    }

    #[test]
    fn a_command_without_flags_sends_no_optional_field() {
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
    fn task_and_agent_flags_set_their_fields() {
        let line = "--agent claude --goal g --cwd /w --env A=b --note team=core --turn-kind session_title \
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
    fn only_required_files_make_a_contract() {
        assert_eq!(spec(&["--", "true"]).contract, None);
        let line = "--require out/a --require b,min=1KiB --if-missing park -- true";
        let contract = spec(&line.split_whitespace().collect::<Vec<_>>()).contract;
        let contract = contract.expect("a contract");
        assert_eq!(contract.missing_policy(), MissingPolicy::Park);
        let files = contract.required_artifacts.iter();
        let files: Vec<_> = files.map(|file| (&*file.path, file.min_size)).collect();
        assert_eq!(files, [("out/a", None), ("b", Some(1024))]);
    }

    #[test]
    fn the_most_restrictive_rules_come_first_in_any_flag_order() {
        let spec = spec(&[
            "--agent",
            "a",
            "--allow",
            "Bash:git *",
            "--ask",
            "Bash:git push*",
            "--deny",
            "Bash:*rm *",
            "--allow",
            "Read",
            "--on-input-timeout",
            "park",
        ]);
        let rules = spec.permission_rules.iter();
        let rules = rules.map(|rule| (rule.effect(), rule.tool.as_str(), rule.pattern.as_str()));
        let expected = [
            (PermissionEffect::Deny, "Bash", "*rm *"),
            (PermissionEffect::Ask, "Bash", "git push*"),
            (PermissionEffect::Allow, "Bash", "git *"),
            (PermissionEffect::Allow, "Read", ""),
        ];
        assert_eq!(rules.collect::<Vec<_>>(), expected);
        assert_eq!(spec.on_input_timeout, i32::from(OnInputTimeout::Park));
    }

    #[test]
    fn placement_limit_and_retry_flags_set_their_fields() {
        let line = "--agent a --label zone=eu --capability gpu --daemon d1 --priority 70 --fail-fast --profile long \
                    --lease 1m --max-attempts 2 --max-losses 4 --when-unsafe retry";
        let spec = spec(&line.split_whitespace().collect::<Vec<_>>());
        let placement = spec.placement.expect("placement");
        let retry = spec.retry.expect("retry");
        assert!(spec.labels.is_empty(), "a placement label is not a note");
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
