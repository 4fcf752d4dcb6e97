//! Tasks and attempts as messages for clients, made from the core's records. The other direction
//! is in `submission.rs`.

use std::sync::Arc;

use baton_core::attempt::deadline_profile;
use baton_core::config::Config;
use baton_core::record::{
    ArtifactEvidence, AttemptEnd, AttemptRecord, AttemptState, CancelRecord, LeaseRecord, OpenTool,
    PausesRecord, PendingEnd, ProcessExitStatus, SchedulerRecord, TaskAttention, TaskRecord,
    TaskState, TerminationReceipt, TimerKind, TokenUsage, WorkspaceReport,
};
use baton_core::redaction;
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use baton_proto::{TraceParent, v1};

use crate::api::wire;
use crate::api::wire::{enums, timestamp};

/// How much of a task a response contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskDetail {
    /// The newest attempt only: for lists and for responses to submissions.
    NewestAttempt,
    /// All attempts.
    AllAttempts,
    /// All attempts and the whole spec with its prompt.
    WithSpec,
}

pub(crate) fn task_message(
    spec: &TaskSpec,
    record: &TaskRecord,
    config: &Config,
    view: TaskDetail,
) -> v1::Task {
    let newest = record.attempts.len().saturating_sub(1);
    let from = if view == TaskDetail::NewestAttempt {
        newest
    } else {
        0
    };
    let attempts = record.attempts.get(from..).unwrap_or_default();
    v1::Task {
        task_id: record.task.to_string(),
        state: enums::task_state(record.state).into(),
        revision: record.revision,
        goal: spec.goal.clone(),
        agent: spec.agent.clone(),
        turn_kind: enums::turn_kind(spec.turn_kind).into(),
        labels: spec.labels.clone(),
        priority: spec.priority.into(),
        conversation_id: spec.conversation_id.clone().unwrap_or_default(),
        channel_id: spec.channel_id.clone().unwrap_or_default(),
        requested_profile: wire::inline_profile(&spec.requested_profile),
        profile_name: wire::profile_name(&spec.requested_profile),
        effective_profile: Some(wire::deadlines(&spec.effective_profile)),
        queue_ms: deadline_profile::queue_ms(spec, config),
        total_ms: deadline_profile::total_ms(spec, config),
        lease_ttl_ms: spec.lease_ttl_ms,
        attempts: attempts
            .iter()
            .map(|attempt| attempt_message(spec, record, attempt))
            .collect(),
        attention: record
            .attention
            .as_ref()
            .map(|attention| attention_message(record, attention)),
        waits_for: waits_for(spec, record).into(),
        retry_at: record.retry.as_ref().map(|retry| timestamp(retry.at)),
        created_at: Some(timestamp(record.created)),
        updated_at: Some(timestamp(record.updated)),
        ended_at: record.ended.map(timestamp),
        progress: None,
        pending_inputs: open_inputs(record),
        traceparent: traceparent(record, record.trace.root_span),
        cancel: record.cancel.as_ref().map(cancel),
        paused: record.paused.is_some(),
        pause_reason: record
            .paused
            .as_ref()
            .map(|p| p.reason.to_string())
            .unwrap_or_default(),
        result: result(record),
        created_by: spec.submitted_by.clone(),
        attempt_count: record.newest_attempt().map_or(0, |newest| newest.number),
        success_criteria: spec.success_criteria.clone(),
        spec: (view == TaskDetail::WithSpec).then(|| wire::spec(spec)),
        retry_stop: record
            .retry_stop_reason
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        tenant: record.tenant.to_string(),
        waits_until: record.retry.as_ref().map(|retry| timestamp(retry.at)),
        about: summary_line(spec),
    }
}

/// Characters of a task's summary in a list.
const SUMMARY_CHARS: usize = 120;

/// The first words of the command or prompt in one line. Only the beginning is read, because a
/// prompt may be long.
fn summary_line(spec: &TaskSpec) -> String {
    let text = match spec.argv.as_slice() {
        [] => spec.prompt.chars().take(4 * SUMMARY_CHARS).collect(),
        argv => argv
            .join(" ")
            .chars()
            .take(4 * SUMMARY_CHARS)
            .collect::<String>(),
    };
    let clean = redaction::redact(&text);
    let line: Vec<&str> = clean.split_whitespace().collect();
    line.join(" ").chars().take(SUMMARY_CHARS).collect()
}

/// Corrects the wait reason of a queued task. Its own record does not show that it is suspended
/// after an import, or that its tenant or the scheduler is paused; the scheduler's records do.
pub(crate) fn fill_wait_reason(
    task: &mut v1::Task,
    record: &TaskRecord,
    scheduler: &SchedulerRecord,
    pauses: &PausesRecord,
    now: WallTime,
) {
    if record.state != TaskState::Queued {
        return;
    }
    let pause = pauses
        .pause_of_tenant(&record.tenant)
        .or(scheduler.paused.as_ref());
    if let Some(pause) = pause {
        task.waits_for = v1::WaitsFor::Pause.into();
        task.paused = true;
        if record.paused.is_none() {
            task.pause_reason = pause.reason.to_string();
        }
    }
    if let Some(suspension) = scheduler.suspension_of(record.task) {
        let left_ms = suspension
            .until_uptime_ms
            .saturating_sub(scheduler.uptime_ms);
        task.waits_for = v1::WaitsFor::Inheritance.into();
        task.waits_until = Some(timestamp(WallTime(now.0.saturating_add(left_ms))));
    }
}

/// The wait reason as far as the record shows it. Only the core (`Inspect`) knows whether the
/// task waits for its conversation or because of another pause.
fn waits_for(spec: &TaskSpec, record: &TaskRecord) -> v1::WaitsFor {
    match record.state {
        TaskState::Pending | TaskState::Queued if record.paused.is_some() => v1::WaitsFor::Pause,
        TaskState::Pending if record.retry.is_some() => v1::WaitsFor::Backoff,
        TaskState::Pending => v1::WaitsFor::Fence,
        TaskState::Queued if spec.agent_held => v1::WaitsFor::Agent,
        TaskState::Queued => v1::WaitsFor::Daemon,
        TaskState::NeedsAttention => v1::WaitsFor::Person,
        TaskState::Running if waits_for_input(record) => v1::WaitsFor::Person,
        TaskState::Running
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Canceled
        | TaskState::TimedOut
        | TaskState::Lost => v1::WaitsFor::Unspecified,
    }
}

/// Whether the attempt is blocked until its input is answered, by the same rule as in the core.
fn waits_for_input(record: &TaskRecord) -> bool {
    let newest = record.newest_attempt();
    newest.is_some_and(|attempt| attempt.state == AttemptState::WaitingInput)
}

fn cancel(cancel: &CancelRecord) -> v1::CancelView {
    v1::CancelView {
        by: cancel.by.to_string(),
        reason: cancel.reason.as_deref().unwrap_or_default().to_owned(),
        attempt_id: cancel.attempt.map(|id| id.to_string()).unwrap_or_default(),
        requested_at: Some(timestamp(cancel.requested)),
        delivered_at: cancel.delivered.map(timestamp),
        confirmed_at: cancel.confirmed.map(timestamp),
    }
}

pub(crate) fn attempt_message(
    spec: &TaskSpec,
    record: &TaskRecord,
    attempt: &AttemptRecord,
) -> v1::Attempt {
    let end = attempt.state.end();
    let (daemon, agent) = (attempt.daemon_holder(), attempt.agent_holder());
    v1::Attempt {
        attempt_id: attempt.id.to_string(),
        attempt_number: attempt.number,
        state: enums::attempt_state(attempt.state.kind()).into(),
        phase: attempt.phase.map_or(0, |phase| enums::phase(phase).into()),
        daemon_id: daemon.map(|d| d.daemon.to_string()).unwrap_or_default(),
        daemon_name: daemon.map(|d| d.name.to_string()).unwrap_or_default(),
        agent_holder: agent.map(|a| a.name.to_string()).unwrap_or_default(),
        failure_code: end.and_then(failure_code).unwrap_or_default(),
        retryable: end.is_some_and(|end| end.retryable),
        retry_safe: attempt.retry_safe,
        message: text_or_empty(end.and_then(|end| end.message.as_deref())),
        user_message: text_or_empty(end.and_then(|end| end.user_message.as_deref())),
        ended_by: end.map_or(0, |end| enums::ended_by(end.ended_by).into()),
        exit_code: exit_code(end),
        signal: exit_signal(end),
        termination: end.map_or(0, |end| enums::termination(end.receipt).into()),
        receipt: end.and_then(|end| receipt(attempt, end)),
        times: Some(times(attempt)),
        usage: Some(usage(&attempt.usage)),
        lease: attempt
            .lease
            .as_ref()
            .map(|record| lease(record, attempt.state.is_leased())),
        output: Some(v1::OutputView {
            bytes: attempt.output_end,
            cut_bytes: 0,
            durable_offset: attempt.output_end,
            final_offset: attempt.final_offset,
            ends_open: false,
        }),
        killed_after_result: end.is_some_and(|end| end.killed_after_result),
        adopted_late: end.is_some_and(|end| end.is_adopted_late),
        late_terminal: attempt.has_late_terminal,
        previous_attempt_id: attempt
            .previous
            .map(|id| id.to_string())
            .unwrap_or_default(),
        successor_attempt_id: attempt
            .successor
            .map(|id| id.to_string())
            .unwrap_or_default(),
        traceparent: traceparent(record, attempt.span_id),
        agent_session_id: text_or_empty(attempt.agent_session_id.as_deref()),
        pid: None,
        open_tools: attempt.open_tools.iter().map(open_tool).collect(),
        open_input_ids: open_input_ids(attempt),
        workspace: attempt.workspace.as_deref().map(workspace),
        ended_by_timer: ended_by_timer(attempt).map_or(0, |timer| enums::timer(timer).into()),
        artifacts: artifacts(spec, attempt),
        resume_fallback: attempt.fresh_conversation,
        handed_off_to: text_or_empty(attempt.handed_off_to.as_deref()),
        stderr_tail: String::new(),
        cause_phase: end
            .and_then(|end| end.cause_phase)
            .map_or(0, |p| enums::phase(p).into()),
    }
}

fn text_or_empty(text: Option<&str>) -> String {
    text.unwrap_or_default().to_owned()
}

fn workspace(report: &WorkspaceReport) -> v1::WorkspaceReport {
    let text = |value: &Option<Arc<str>>| text_or_empty(value.as_deref());
    v1::WorkspaceReport {
        path: report.path.to_string(),
        mode: enums::workspace_mode(report.mode).into(),
        base_commit: text(&report.base_commit),
        branch: text(&report.branch),
        head_commit: text(&report.head_commit),
        dirty_digest: text(&report.dirty_digest),
        changed_files: report.changed_files,
        kept: report.is_retained,
    }
}

fn failure_code(end: &AttemptEnd) -> Option<String> {
    end.failure_code
        .as_ref()
        .map(|code| code.as_str().to_owned())
}

fn exit_code(end: Option<&AttemptEnd>) -> Option<i32> {
    match end?.exit? {
        ProcessExitStatus::Code(code) => Some(code),
        ProcessExitStatus::Signal(_) => None,
    }
}

fn exit_signal(end: Option<&AttemptEnd>) -> Option<i32> {
    match end?.exit? {
        ProcessExitStatus::Signal(signal) => Some(signal),
        ProcessExitStatus::Code(_) => None,
    }
}

fn receipt(attempt: &AttemptRecord, end: &AttemptEnd) -> Option<v1::TerminationReceipt> {
    (end.receipt == TerminationReceipt::Confirmed).then(|| v1::TerminationReceipt {
        exit_code: exit_code(Some(end)),
        signal: exit_signal(Some(end)),
        group_empty: true,
        prompt_written: attempt.prompt_written,
        process_started: attempt.stage_times.agent_started.is_some(),
        cleanup: end.cleanup.as_deref().unwrap_or_default().to_owned(),
        ..v1::TerminationReceipt::default()
    })
}

/// The timer that ended the attempt: from the failure code, or from the state while the attempt
/// still cleans up.
fn ended_by_timer(attempt: &AttemptRecord) -> Option<TimerKind> {
    use baton_core::record::FailureCode;
    if let AttemptState::CleaningUp {
        pending: Some(PendingEnd::Deadline { timer, .. } | PendingEnd::DaemonDeadline { timer }),
    } = &attempt.state
    {
        return Some(*timer);
    }
    let code = attempt.state.end()?.failure_code.as_ref()?;
    let timers = [
        (FailureCode::NotAccepted, TimerKind::Accept),
        (FailureCode::ProcessStartTimeout, TimerKind::ProcessStart),
        (FailureCode::PromptWriteTimeout, TimerKind::PromptWrite),
        (FailureCode::NoFirstEventTimeout, TimerKind::FirstEvent),
        (
            FailureCode::NoVisibleEventTimeout,
            TimerKind::FirstVisibleEvent,
        ),
        (FailureCode::StreamIdleTimeout, TimerKind::StreamIdle),
        (FailureCode::ToolIdleTimeout, TimerKind::ToolIdle),
        (FailureCode::UserInputTimeout, TimerKind::UserInput),
        (FailureCode::TaskDeadlineExceeded, TimerKind::Total),
        (FailureCode::LeaseExpired, TimerKind::Lease),
    ];
    timers
        .iter()
        .find(|(known, _)| known == code)
        .map(|(_, timer)| *timer)
}

fn times(attempt: &AttemptRecord) -> v1::AttemptTimes {
    let times = &attempt.stage_times;
    let at = |wall: Option<WallTime>| wall.map(timestamp);
    let parked_at = if let AttemptState::Parked(parked) = &attempt.state {
        Some(timestamp(parked.since))
    } else {
        None
    };
    v1::AttemptTimes {
        queued_at: at(times.queued),
        offered_at: at(times.offered),
        accepted_at: at(times.accepted),
        started_at: at(times.started),
        agent_started_at: at(times.agent_started),
        prompt_written_at: at(times.prompt_written),
        first_event_at: at(times.first_event),
        first_visible_event_at: at(times.first_visible_event),
        cleanup_started_at: at(times.cleanup_started),
        cleanup_finished_at: at(times.cleanup_finished),
        parked_at,
        ended_at: at(times.ended),
    }
}

fn lease(lease: &LeaseRecord, live: bool) -> v1::LeaseView {
    let prefix = lease.token_hash.iter().take(4);
    v1::LeaseView {
        granted_ms: lease.ttl_ms,
        expires_at: None,
        renewals: lease.renewals,
        token_hash_prefix: prefix.map(|byte| format!("{byte:02x}")).collect(),
        largest_grant_ms: lease.granted_ms,
        live,
    }
}

fn usage(usage: &TokenUsage) -> v1::Usage {
    v1::Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        cost_usd: usage.cost_usd.as_deref().unwrap_or_default().to_owned(),
        ..v1::Usage::default()
    }
}

fn open_tool(tool: &OpenTool) -> v1::OpenTool {
    v1::OpenTool {
        tool_call_id: tool.id.to_string(),
        tool_name: tool.name.to_string(),
        started_at: None,
    }
}

fn artifacts(spec: &TaskSpec, attempt: &AttemptRecord) -> Vec<v1::ArtifactReceipt> {
    let evidence = attempt.artifacts.iter();
    evidence.map(|one| artifact(spec, one)).collect()
}

fn artifact(spec: &TaskSpec, evidence: &ArtifactEvidence) -> v1::ArtifactReceipt {
    let text = |value: &Option<Arc<str>>| text_or_empty(value.as_deref());
    let contract = spec.contract.as_ref();
    let required = contract.and_then(|c| c.artifacts.get(usize::from(evidence.contract_index)));
    let path = required.map_or("", |required| &required.path);
    let resolved = evidence.resolved.as_deref().unwrap_or(path);
    v1::ArtifactReceipt {
        path: path.to_owned(),
        exists: evidence.exists,
        is_file: evidence.is_file,
        size: evidence.size,
        sha256: text(&evidence.sha256),
        modified_at: evidence.modified.map(timestamp),
        resolved_path: if evidence.is_file { resolved } else { "" }.to_owned(),
        problem: text(&evidence.problem),
    }
}

pub(crate) fn attention_message(record: &TaskRecord, attention: &TaskAttention) -> v1::Attention {
    v1::Attention {
        cause: enums::attention_cause(attention.cause).into(),
        reason: attention.reason.to_string(),
        resume_hint: attention.hint.as_deref().unwrap_or_default().to_owned(),
        since: Some(timestamp(attention.since)),
        attempt_id: record
            .newest_attempt()
            .map(|attempt| attempt.id.to_string())
            .unwrap_or_default(),
        checkpoint_id: attention
            .checkpoint
            .map(|id| id.to_string())
            .unwrap_or_default(),
    }
}

fn open_input_ids(attempt: &AttemptRecord) -> Vec<String> {
    use baton_core::record::InputState;
    let open = attempt
        .inputs
        .iter()
        .filter(|input| input.state == InputState::Open);
    open.map(|input| input.id.to_string()).collect()
}

fn open_inputs(record: &TaskRecord) -> u32 {
    let open = record
        .newest_attempt()
        .map_or(0, |attempt| open_input_ids(attempt).len());
    u32::try_from(open).unwrap_or(u32::MAX)
}

fn result(record: &TaskRecord) -> bytes::Bytes {
    let newest = record
        .attempts
        .iter()
        .rev()
        .find_map(|attempt| attempt.result.as_ref());
    newest
        .map(|result| bytes::Bytes::copy_from_slice(result))
        .unwrap_or_default()
}

fn traceparent(record: &TaskRecord, span: [u8; 8]) -> String {
    TraceParent::new(record.trace.trace_id, span, record.trace.sampled)
        .map(|parent| parent.to_string())
        .unwrap_or_default()
}
