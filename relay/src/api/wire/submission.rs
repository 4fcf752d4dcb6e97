//! Converts a submission to a `TaskSpec`: checks every field and fills in every default. Only the
//! profile needs a lookup, which the caller makes.
//!
//! Absent, empty and partial profiles stay distinct. A field that this version does not
//! implement is refused instead of being ignored.

use baton_core::attempt::deadline_profile;
use baton_core::config::Config;
use baton_core::ids::DaemonId;
use baton_core::redaction;
use baton_core::task::spec::{
    AgentOptions, CompletionContract, DeadlineProfile, DispatchPolicy, InputTimeoutPolicy,
    PermissionRule, PlacementTarget, RequestedProfile, RequiredArtifact, RetryPolicy, TaskSpec,
    TurnKind, WorkspaceSpec,
};
use baton_proto::{TraceParent, v1};
use baton_validation::limits::MAX_FILE_BYTES;

use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::limits;
use crate::api::request::limits::TextLimit;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::wire::{deadlines_from_wire, enums};
use crate::auth::Principal;

/// A checked submission. The names of the profile and of the daemon still need a lookup.
#[derive(Debug)]
pub(crate) struct SubmissionDraft {
    pub spec: TaskSpec,
    /// The daemon, if it was given by name and not by id.
    pub daemon_name: Option<String>,
}

pub(crate) fn parse_submission(
    principal: &Principal,
    request: v1::SubmitRequest,
    config: &Config,
) -> Result<SubmissionDraft, ApiFault> {
    let sent = validate::present("spec", request.spec)?;
    refuse_unimplemented(&sent)?;
    check_texts(&sent)?;
    check_agent_held(&sent)?;
    let turn_kind = turn_kind(&sent)?;
    let requested = requested_profile(&sent)?;
    let placement = sent.placement.unwrap_or_default();
    let (target, daemon_name) = target(placement)?;
    let idempotency_key = validate::optional(
        "idempotency_key",
        request.idempotency_key,
        limits::IDEMPOTENCY_KEY,
    )?;
    let spec = TaskSpec {
        tenant: principal.tenant.clone(),
        submitted_by: principal.name.to_string(),
        idempotency_key,
        goal: redaction::redact(&sent.goal).into_owned(),
        prompt: sent.prompt,
        agent: sent.agent,
        options: options(sent.options.unwrap_or_default())?,
        argv: argv(sent.command)?,
        cwd: validate::optional("spec.cwd", sent.cwd, limits::PATH)?,
        workspace: sent.workspace.map(workspace).transpose()?,
        env: validate::environment("spec.env", sent.env)?,
        conversation_id: validate::optional(
            "spec.conversation_id",
            sent.conversation_id,
            limits::EXTERNAL_ID,
        )?,
        channel_id: validate::optional("spec.channel_id", sent.channel_id, limits::EXTERNAL_ID)?,
        turn_kind,
        effective_profile: DeadlineProfile::default(),
        requested_profile: requested,
        queue_ms: checked_deadline(
            "spec.queue_ms",
            sent.queue_ms,
            deadline_profile::check_queue,
        )?,
        total_ms: checked_deadline(
            "spec.total_ms",
            sent.total_ms,
            deadline_profile::check_total,
        )?,
        lease_ttl_ms: lease_ttl(sent.lease_ttl_ms, config)?,
        retry: retry(sent.retry.unwrap_or_default())?,
        on_input_timeout: on_input_timeout(sent.on_input_timeout)?,
        permission_rules: permission_rules(sent.permission_rules)?,
        dispatch_policy: dispatch_policy(sent.dispatch_policy)?,
        target,
        priority: priority(sent.priority)?,
        labels: validate::labels("spec.labels", sent.labels)?,
        success_criteria: success_criteria(sent.success_criteria)?,
        contract: sent.contract.map(contract).transpose()?.flatten(),
        agent_scope: validate::optional("spec.agent_scope", sent.agent_scope, limits::NAME)?,
        agent_held: sent.agent_held,
        traceparent: TraceParent::parse(&request.traceparent).map(|parent| parent.to_string()),
        mcp: sent.mcp,
    };
    Ok(SubmissionDraft { spec, daemon_name })
}

/// Fills in the effective deadlines. `stored` is the tenant's profile with the requested name.
pub(crate) fn resolve_profile(
    spec: &mut TaskSpec,
    stored: Option<DeadlineProfile>,
) -> Result<(), ApiFault> {
    spec.effective_profile = deadline_profile::effective_profile(spec, |_| stored)
        .map_err(|_| ApiFault::NotFound(EntityKind::Profile))?;
    Ok(())
}

/// Refuses fields of the protocol that are not implemented yet.
fn refuse_unimplemented(sent: &v1::TaskSpec) -> Result<(), ApiFault> {
    let retry = sent.retry.unwrap_or_default();
    let differs = |given: Option<f64>, ours: f64| given.is_some_and(|given| given != ours);
    let unimplemented = [
        ("spec.max_output_bytes", sent.max_output_bytes.is_some()),
        (
            "spec.placement.prefer_daemon",
            sent.placement
                .as_ref()
                .is_some_and(|p| !p.prefer_daemon.is_empty()),
        ),
        (
            "spec.retry.backoff_factor",
            differs(retry.backoff_factor, limits::BACKOFF_FACTOR),
        ),
        (
            "spec.retry.backoff_jitter",
            differs(retry.backoff_jitter, limits::BACKOFF_JITTER),
        ),
    ];
    match unimplemented.into_iter().find(|(_, used)| *used) {
        Some((what, _)) => Err(ApiFault::NotImplemented { what }),
        None => Ok(()),
    }
}

fn check_texts(sent: &v1::TaskSpec) -> ValidationResult<()> {
    validate::title("spec.agent", &sent.agent, limits::NAME)?;
    validate::text("spec.goal", &sent.goal, limits::GOAL)?;
    validate::text("spec.prompt", &sent.prompt, limits::PROMPT)?;
    // A command needs no prompt. An agent does, except that a claimed task may have a goal instead.
    let prompt_is_optional =
        sent.command.is_some() || sent.agent_held && !sent.goal.trim().is_empty();
    if !prompt_is_optional && sent.prompt.trim().is_empty() {
        let why = if sent.prompt.is_empty() {
            InvalidReason::Missing
        } else {
            InvalidReason::Blank
        };
        return Err(invalid_field("spec.prompt", why));
    }
    Ok(())
}

/// An agent-held task needs a scope, or no agent could claim it. It cannot be fail_fast, because no
/// daemon can take it.
fn check_agent_held(sent: &v1::TaskSpec) -> ValidationResult<()> {
    if !sent.agent_held {
        return Ok(());
    }
    if sent.agent_scope.is_empty() {
        return Err(invalid_field("spec.agent_scope", InvalidReason::Missing));
    }
    if sent.dispatch_policy() == v1::DispatchPolicy::FailFast {
        let with = "spec.agent_held";
        return Err(invalid_field(
            "spec.dispatch_policy",
            InvalidReason::Conflict { with },
        ));
    }
    Ok(())
}

fn workspace(sent: v1::WorkspaceSpec) -> ValidationResult<WorkspaceSpec> {
    let mode = validate::enumeration("spec.workspace.mode", sent.mode)?;
    Ok(WorkspaceSpec {
        root: validate::optional("spec.workspace.root", sent.root, limits::NAME)?,
        mode: enums::workspace_mode_from_wire(mode),
        keep: sent.keep,
    })
}

fn turn_kind(sent: &v1::TaskSpec) -> ValidationResult<TurnKind> {
    validate::enumeration("spec.turn_kind", sent.turn_kind).map(enums::turn_kind_from_wire)
}

fn on_input_timeout(number: i32) -> ValidationResult<InputTimeoutPolicy> {
    validate::enumeration("spec.on_input_timeout", number).map(enums::on_input_timeout_from_wire)
}

fn dispatch_policy(number: i32) -> ValidationResult<DispatchPolicy> {
    validate::enumeration("spec.dispatch_policy", number).map(enums::dispatch_policy_from_wire)
}

fn requested_profile(sent: &v1::TaskSpec) -> ValidationResult<RequestedProfile> {
    match (&sent.profile, sent.profile_name.as_str()) {
        (None, "") => Ok(RequestedProfile::Absent),
        (Some(profile), "") => {
            let profile = deadlines_from_wire(*profile);
            check_profile("spec.profile", &profile)?;
            Ok(RequestedProfile::Inline(profile))
        }
        (None, name) => {
            validate::name("spec.profile_name", name, limits::PROFILE_NAME)?;
            Ok(RequestedProfile::Named(name.to_owned()))
        }
        (Some(_), _) => {
            let with = "spec.profile";
            Err(invalid_field(
                "spec.profile_name",
                InvalidReason::Conflict { with },
            ))
        }
    }
}

pub(crate) fn check_profile(field: &str, profile: &DeadlineProfile) -> ValidationResult<()> {
    deadline_profile::check_profile(profile)
        .map_err(|out| out_of_range(&format!("{field}.{}_ms", out.name), out))
}

fn out_of_range(field: &str, out: deadline_profile::DeadlineOutOfRange) -> validate::InvalidField {
    let why = InvalidReason::OutOfRange {
        value: out.ms,
        low: out.min_ms,
        high: out.max_ms,
    };
    invalid_field(field, why)
}

fn checked_deadline(
    field: &str,
    given: Option<u64>,
    check: fn(u64) -> Result<(), deadline_profile::DeadlineOutOfRange>,
) -> ValidationResult<Option<u64>> {
    if let Some(ms) = given {
        check(ms).map_err(|out| out_of_range(field, out))?;
    }
    Ok(given)
}

fn lease_ttl(given: Option<u64>, config: &Config) -> ValidationResult<u64> {
    let ttl = given.unwrap_or(deadline_profile::DEFAULT_LEASE_TTL_MS);
    deadline_profile::check_lease_ttl(ttl, config)
        .map_err(|out| out_of_range("spec.lease_ttl_ms", out))?;
    Ok(ttl)
}

fn options(sent: v1::AgentOptions) -> ValidationResult<AgentOptions> {
    validate::count(
        "spec.options.context_refs",
        sent.context_refs.len(),
        limits::CONTEXT_REFS,
    )?;
    let refs = sent.context_refs.into_iter().map(|reference| {
        validate::not_blank(
            "spec.options.context_refs.path",
            &reference.path,
            limits::PATH,
        )?;
        Ok(reference.path)
    });
    let text =
        |field: &str, value: String, limit: TextLimit| validate::optional(field, value, limit);
    Ok(AgentOptions {
        model: text("spec.options.model", sent.model, limits::NAME)?,
        effort: text("spec.options.effort", sent.effort, limits::NAME)?,
        permission_mode: text(
            "spec.options.permission_mode",
            sent.permission_mode,
            limits::NAME,
        )?,
        instructions: text(
            "spec.options.instructions",
            sent.instructions,
            limits::INSTRUCTIONS,
        )?,
        context_refs: refs.collect::<ValidationResult<_>>()?,
    })
}

fn argv(command: Option<v1::CommandSpec>) -> ValidationResult<Vec<String>> {
    let Some(command) = command else {
        return Ok(Vec::new());
    };
    validate::arguments("spec.command.argv", &command.argv)?;
    Ok(command.argv)
}

fn target(sent: v1::Placement) -> ValidationResult<(PlacementTarget, Option<String>)> {
    validate::text("spec.placement.daemon", &sent.daemon, limits::NAME)?;
    let field = "spec.placement.capabilities";
    validate::count(field, sent.capabilities.len(), limits::CAPABILITIES)?;
    for capability in &sent.capabilities {
        validate::title(field, capability, limits::NAME)?;
    }
    let daemon = sent.daemon.parse::<DaemonId>().ok();
    let daemon_name = (daemon.is_none() && !sent.daemon.is_empty()).then_some(sent.daemon);
    let target = PlacementTarget {
        daemon,
        labels: validate::labels("spec.placement.labels", sent.labels)?,
        capabilities: sent.capabilities,
    };
    Ok((target, daemon_name))
}

fn retry(sent: v1::RetryPolicy) -> ValidationResult<RetryPolicy> {
    let tries = |field: &str, given: Option<u32>| -> ValidationResult<u32> {
        let given = given.unwrap_or(limits::DEFAULT_MAX_ATTEMPTS);
        validate::in_range(field, given.into(), &limits::ATTEMPTS_RANGE).map(|_| given)
    };
    let wait = |field: &str, given: Option<u64>, default: u64| {
        validate::in_range(field, given.unwrap_or(default), &limits::BACKOFF_MS)
    };
    let initial = wait(
        "spec.retry.backoff_initial_ms",
        sent.backoff_initial_ms,
        limits::DEFAULT_BACKOFF_INITIAL_MS,
    )?;
    let max = wait(
        "spec.retry.backoff_max_ms",
        sent.backoff_max_ms,
        limits::DEFAULT_BACKOFF_MAX_MS,
    )?;
    let when_unsafe: v1::WhenUnsafe =
        validate::enumeration("spec.retry.when_unsafe", sent.when_unsafe)?;
    Ok(RetryPolicy {
        max_attempts: tries("spec.retry.max_attempts", sent.max_attempts)?,
        max_losses: tries("spec.retry.max_losses", sent.max_losses)?,
        when_unsafe: enums::when_unsafe_from_wire(when_unsafe),
        backoff_initial_ms: initial,
        backoff_max_ms: max.max(initial),
    })
}

fn priority(given: Option<u32>) -> ValidationResult<u8> {
    let given = given.map_or(limits::DEFAULT_PRIORITY.into(), u64::from);
    let priority = validate::in_range("spec.priority", given, &limits::PRIORITY)?;
    Ok(u8::try_from(priority).expect("the range ends at 100"))
}

fn permission_rules(given: Vec<v1::PermissionRule>) -> ValidationResult<Vec<PermissionRule>> {
    validate::count(
        "spec.permission_rules",
        given.len(),
        limits::PERMISSION_RULES,
    )?;
    let rules = given.into_iter().map(|rule| {
        let effect = validate::enumeration("spec.permission_rules.effect", rule.effect)?;
        validate::title("spec.permission_rules.tool", &rule.tool, limits::RULE_TOOL)?;
        validate::text(
            "spec.permission_rules.pattern",
            &rule.pattern,
            limits::RULE_PATTERN,
        )?;
        Ok(PermissionRule {
            effect: enums::permission_effect_from_wire(effect),
            tool: rule.tool,
            pattern: rule.pattern,
        })
    });
    rules.collect()
}

fn success_criteria(given: Vec<String>) -> ValidationResult<Vec<String>> {
    let field = "spec.success_criteria";
    validate::count(field, given.len(), limits::MAX_SUCCESS_CRITERIA)?;
    for criterion in &given {
        validate::not_blank(field, criterion, limits::SUCCESS_CRITERION)?;
    }
    let clean = |criterion: &String| redaction::redact(criterion).into_owned();
    Ok(given.iter().map(clean).collect())
}

/// A contract without files counts as none. A file listed twice with the same conditions is one
/// file; with different conditions it is refused, because the conditions would be ambiguous.
fn contract(sent: v1::CompletionContract) -> ValidationResult<Option<CompletionContract>> {
    let field = "spec.contract.required_artifacts";
    validate::count(field, sent.required_artifacts.len(), limits::ARTIFACTS)?;
    let policy: v1::MissingPolicy =
        validate::enumeration("spec.contract.missing_policy", sent.missing_policy)?;
    let mut artifacts: Vec<RequiredArtifact> = Vec::new();
    for artifact in sent.required_artifacts {
        let artifact = required_artifact(artifact)?;
        match artifacts.iter().find(|known| known.path == artifact.path) {
            None => artifacts.push(artifact),
            Some(known) if *known == artifact => {}
            Some(_) => return Err(invalid_field(field, InvalidReason::Duplicate)),
        }
    }
    Ok((!artifacts.is_empty()).then(|| CompletionContract {
        artifacts,
        missing_policy: enums::missing_policy_from_wire(policy),
    }))
}

fn required_artifact(sent: v1::RequiredArtifact) -> ValidationResult<RequiredArtifact> {
    validate::artifact_path("spec.contract.required_artifacts.path", &sent.path)?;
    if !sent.sha256.is_empty() {
        validate::sha256_hex("spec.contract.required_artifacts.sha256", &sent.sha256)?;
    }
    let field = "spec.contract.required_artifacts.min_size";
    let min_size = sent.min_size.unwrap_or(0);
    validate::in_range(field, min_size, &(0..=MAX_FILE_BYTES))?;
    Ok(RequiredArtifact {
        path: sent.path,
        min_size: sent.min_size,
        sha256: (!sent.sha256.is_empty()).then_some(sent.sha256),
    })
}
