//! The spec of a task as a message: for clients that request it, and in parts for the daemon
//! that runs it.

use baton_core::task::spec::{
    AgentOptions, CompletionContract, DeadlineProfile, PermissionRule, PlacementTarget,
    RequestedProfile, RetryPolicy, TaskSpec, WorkspaceSpec,
};
use baton_proto::v1;

use super::enums;

/// The whole spec with defaults filled in, except for the profile, which is as it was submitted.
pub(crate) fn spec(spec: &TaskSpec) -> v1::TaskSpec {
    v1::TaskSpec {
        goal: spec.goal.clone(),
        prompt: spec.prompt.clone(),
        agent: spec.agent.clone(),
        options: Some(options(&spec.options)),
        command: (!spec.argv.is_empty()).then(|| v1::CommandSpec {
            argv: spec.argv.clone(),
        }),
        cwd: spec.cwd.clone().unwrap_or_default(),
        workspace: spec.workspace.as_ref().map(workspace),
        turn_kind: enums::turn_kind(spec.turn_kind).into(),
        conversation_id: spec.conversation_id.clone().unwrap_or_default(),
        channel_id: spec.channel_id.clone().unwrap_or_default(),
        labels: spec.labels.clone(),
        placement: Some(placement(&spec.target)),
        priority: Some(spec.priority.into()),
        dispatch_policy: enums::dispatch_policy(spec.dispatch_policy).into(),
        profile: inline_profile(&spec.requested_profile),
        profile_name: profile_name(&spec.requested_profile),
        queue_ms: spec.queue_ms,
        total_ms: spec.total_ms,
        lease_ttl_ms: Some(spec.lease_ttl_ms),
        retry: Some(retry(&spec.retry)),
        contract: spec.contract.as_ref().map(contract),
        on_input_timeout: enums::on_input_timeout(spec.on_input_timeout).into(),
        permission_rules: spec.permission_rules.iter().map(permission_rule).collect(),
        success_criteria: spec.success_criteria.clone(),
        env: spec.env.clone(),
        agent_scope: spec.agent_scope.clone().unwrap_or_default(),
        agent_held: spec.agent_held,
        mcp: spec.mcp,
        ..v1::TaskSpec::default()
    }
}

pub(crate) fn permission_rule(rule: &PermissionRule) -> v1::PermissionRule {
    v1::PermissionRule {
        effect: enums::permission_effect(rule.effect).into(),
        tool: rule.tool.clone(),
        pattern: rule.pattern.clone(),
    }
}

pub(crate) fn workspace(workspace: &WorkspaceSpec) -> v1::WorkspaceSpec {
    v1::WorkspaceSpec {
        root: workspace.root.clone().unwrap_or_default(),
        mode: enums::workspace_mode(workspace.mode).into(),
        keep: workspace.keep,
    }
}

pub(crate) fn options(options: &AgentOptions) -> v1::AgentOptions {
    let refs = options.context_refs.iter().map(|path| v1::ContextRef {
        path: path.clone(),
        ..v1::ContextRef::default()
    });
    v1::AgentOptions {
        model: options.model.clone().unwrap_or_default(),
        effort: options.effort.clone().unwrap_or_default(),
        permission_mode: options.permission_mode.clone().unwrap_or_default(),
        instructions: options.instructions.clone().unwrap_or_default(),
        context_refs: refs.collect(),
    }
}

fn placement(target: &PlacementTarget) -> v1::Placement {
    v1::Placement {
        daemon: target
            .daemon
            .map(|daemon| daemon.to_string())
            .unwrap_or_default(),
        labels: target.labels.clone(),
        capabilities: target.capabilities.clone(),
        prefer_daemon: String::new(),
    }
}

fn retry(retry: &RetryPolicy) -> v1::RetryPolicy {
    v1::RetryPolicy {
        max_attempts: Some(retry.max_attempts),
        max_losses: Some(retry.max_losses),
        when_unsafe: enums::when_unsafe(retry.when_unsafe).into(),
        backoff_initial_ms: Some(retry.backoff_initial_ms),
        backoff_max_ms: Some(retry.backoff_max_ms),
        backoff_factor: None,
        backoff_jitter: None,
    }
}

pub(crate) fn contract(contract: &CompletionContract) -> v1::CompletionContract {
    let required = contract
        .artifacts
        .iter()
        .map(|artifact| v1::RequiredArtifact {
            path: artifact.path.clone(),
            min_size: artifact.min_size,
            sha256: artifact.sha256.clone().unwrap_or_default(),
        });
    v1::CompletionContract {
        required_artifacts: required.collect(),
        missing_policy: enums::missing_policy(contract.missing_policy).into(),
    }
}

/// An absent profile stays absent; an empty profile stays present and empty.
pub(crate) fn inline_profile(requested: &RequestedProfile) -> Option<v1::DeadlineProfile> {
    match requested {
        RequestedProfile::Inline(profile) => Some(deadlines(profile)),
        RequestedProfile::Absent | RequestedProfile::Named(_) => None,
    }
}

pub(crate) fn profile_name(requested: &RequestedProfile) -> String {
    match requested {
        RequestedProfile::Named(name) => name.clone(),
        RequestedProfile::Absent | RequestedProfile::Inline(_) => String::new(),
    }
}

pub(crate) fn deadlines(profile: &DeadlineProfile) -> v1::DeadlineProfile {
    let DeadlineProfile {
        process_start_ms,
        prompt_write_ms,
        first_event_ms,
        first_visible_event_ms,
        stream_idle_ms,
        tool_idle_ms,
        user_input_ms,
        cleanup_term_ms,
    } = *profile;
    v1::DeadlineProfile {
        process_start_ms,
        prompt_write_ms,
        first_event_ms,
        first_visible_event_ms,
        stream_idle_ms,
        tool_idle_ms,
        user_input_ms,
        cleanup_term_ms,
    }
}

/// Copies field by field: no default is filled in, and zero stays zero.
pub(crate) fn deadlines_from_wire(profile: v1::DeadlineProfile) -> DeadlineProfile {
    let v1::DeadlineProfile {
        process_start_ms,
        prompt_write_ms,
        first_event_ms,
        first_visible_event_ms,
        stream_idle_ms,
        tool_idle_ms,
        user_input_ms,
        cleanup_term_ms,
    } = profile;
    DeadlineProfile {
        process_start_ms,
        prompt_write_ms,
        first_event_ms,
        first_visible_event_ms,
        stream_idle_ms,
        tool_idle_ms,
        user_input_ms,
        cleanup_term_ms,
    }
}
