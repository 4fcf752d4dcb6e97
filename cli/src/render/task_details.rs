//! One task in full, for `show` and `inspect`: the submission, each attempt, armed timers, and the next step.

use baton_proto::v1::{
    ArmedTimer, Attempt, AttemptState, DeadlineProfile, DiagnosticCode, EndedBy, InspectResponse,
    LifecyclePhase, OutputView, Task, Termination, TimerKind, Usage, WorkspaceMode,
    WorkspaceReport,
};
use baton_proto::{ShortName, UNKNOWN_DIGEST, short_name_of};

use crate::args::duration;
use crate::args::required_file;
use crate::render::sanitizer::one_line;
use crate::render::style::TextStyle;
use crate::render::task_view;

/// Length of the shown prompt; `baton show --json` has the whole text.
const PROMPT_PREVIEW_CHARS: usize = 200;

/// Details that only operators may see; empty for other users.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorDetails {
    pub timers: Vec<ArmedTimer>,
    pub diagnostics: Vec<String>,
    pub next_action: String,
}

pub(crate) fn task_lines(
    task: &Task,
    details: &OperatorDetails,
    now_ms: u64,
    style: TextStyle,
) -> Vec<String> {
    let mut page = FieldLines::default();
    push_task_fields(&mut page, task, now_ms, style);
    push_limit_fields(&mut page, task);
    for attempt in &task.attempts {
        push_attempt_lines(&mut page, attempt, now_ms);
        push_file_lines(&mut page, task, attempt);
    }
    for timer in &details.timers {
        page.push_field("timer", &timer_text(timer));
    }
    for diagnostic in &details.diagnostics {
        page.push_field("problem", diagnostic);
    }
    page.push_field("next", &details.next_action);
    page.lines
}

/// The task, its newest attempt and the armed timers.
pub(crate) fn status_lines(
    task: &Task,
    found: &InspectResponse,
    now_ms: u64,
    style: TextStyle,
) -> Vec<String> {
    let mut page = FieldLines::default();
    push_task_fields(&mut page, task, now_ms, style);
    if let Some(newest) = task.attempts.last() {
        push_attempt_lines(&mut page, newest, now_ms);
    }
    for timer in &found.timers {
        page.push_field("timer", &timer_text(timer));
    }
    if let Some(left_ms) = found.fence_remaining_ms {
        let left = duration::format_short(left_ms);
        page.push_field(
            "fence",
            &format!("no new lease for {left}, unless the previous processes are confirmed dead"),
        );
    }
    page.lines
}

/// Problems of the task, and the next step.
pub(crate) fn advice_lines(found: &InspectResponse) -> Vec<String> {
    let mut page = FieldLines::default();
    for one in &found.diagnostics {
        let code = short_name_of::<DiagnosticCode>(one.code);
        page.push_field("problem", &format!("{code}: {}", one.message));
    }
    page.push_field("next", &found.next_action_text);
    page.lines
}

/// Lines of `name: value`; empty values are skipped.
#[derive(Default)]
struct FieldLines {
    lines: Vec<String>,
}

impl FieldLines {
    fn push_field(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.lines
                .push(format!("{:<14}{}", format!("{name}:"), one_line(value)));
        }
    }

    fn push_subfield(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.lines
                .push(format!("  {:<11} {}", format!("{name}:"), one_line(value)));
        }
    }
}

fn push_task_fields(page: &mut FieldLines, task: &Task, now_ms: u64, style: TextStyle) {
    page.push_field("task", &task.task_id);
    // Coloured text is not sanitized again: that would remove its colour.
    page.lines.push(format!(
        "{:<14}{}",
        "state:",
        task_view::ending_line(task, style)
    ));
    page.push_field("goal", &task.goal);
    page.push_field(submitted_label(task), &submitted_text(task));
    page.push_field("agent", &task.agent);
    page.push_field("conversation", &task.conversation_id);
    page.push_field("notes", &format_pairs(&task.labels));
    page.push_field("priority", &task.priority.to_string());
    page.push_field(
        "created",
        &timestamp_with_age(task.created_at.as_ref(), now_ms),
    );
    page.push_field("created by", &task.created_by);
    page.push_field(
        "waits for",
        &task_view::wait_text(task, now_ms).unwrap_or_default(),
    );
    if task.paused {
        page.push_field("paused", &task.pause_reason);
    }
    page.push_field("not retried", &task.retry_stop);
    if let Some(attention) = &task.attention {
        page.push_field(
            "parked",
            &timestamp_with_age(attention.since.as_ref(), now_ms),
        );
        page.push_field("hint", &attention.resume_hint);
    }
    if let Some(progress) = &task.progress {
        page.push_field("progress", &progress.summary);
    }
    page.push_field("result", &String::from_utf8_lossy(&task.result));
    page.push_field("trace", &task.traceparent);
}

fn submitted_label(task: &Task) -> &'static str {
    let spec = task.spec.as_ref();
    match spec.and_then(|spec| spec.command.as_ref()) {
        Some(_) => "command",
        None => "prompt",
    }
}

/// The command with the quotes that a shell needs, or the beginning of the prompt, in one line.
fn submitted_text(task: &Task) -> String {
    let Some(spec) = &task.spec else {
        return String::new();
    };
    let text = match &spec.command {
        Some(command) => quote_command(&command.argv),
        None => spec.prompt.trim().to_owned(),
    };
    let line = text.lines().next().unwrap_or_default();
    let shown: String = line.chars().take(PROMPT_PREVIEW_CHARS).collect();
    let cut = if shown.len() < text.len() { " …" } else { "" };
    format!("{shown}{cut}")
}

/// A command with a zero byte cannot be quoted; no process can be started from it either.
fn quote_command(argv: &[String]) -> String {
    let words = argv.iter().map(String::as_str);
    shlex::try_join(words).unwrap_or_else(|_| argv.join(" "))
}

/// `1200 tokens in, 340 out, 15 turns, $0.0123`.
fn usage_text(usage: &Usage) -> String {
    let cached = usage.cache_read_tokens + usage.cache_write_tokens;
    let (read, written) = (usage.input_tokens, usage.output_tokens);
    let mut parts = Vec::new();
    if read + written + cached > 0 {
        parts.push(format!("{read} tokens in, {written} out, {cached} cached"));
    }
    if usage.turns > 0 {
        parts.push(format!("{} turns", usage.turns));
    }
    if !usage.cost_usd.is_empty() {
        parts.push(format!("${}", usage.cost_usd));
    }
    if !usage.model.is_empty() {
        parts.push(usage.model.clone());
    }
    parts.join(", ")
}

fn push_limit_fields(page: &mut FieldLines, task: &Task) {
    let requested = match (&task.requested_profile, task.profile_name.as_str()) {
        (Some(profile), _) => profile_text(profile),
        (None, "") => "the relay's default".to_owned(),
        (None, name) => format!("named {name}"),
    };
    page.push_field("profile", &requested);
    let effective = task
        .effective_profile
        .as_ref()
        .map(profile_text)
        .unwrap_or_default();
    page.push_field("deadlines", &effective);
    let outside = format!(
        "queue={} total={} lease={}",
        duration::format_short(task.queue_ms),
        duration::format_short(task.total_ms),
        duration::format_short(task.lease_ttl_ms)
    );
    page.push_field("limits", &outside);
}

/// `stream_idle=2m 00s …`. An empty profile was chosen on purpose, so it is shown.
pub(crate) fn profile_text(profile: &DeadlineProfile) -> String {
    let fields = [
        ("process_start", profile.process_start_ms),
        ("prompt_write", profile.prompt_write_ms),
        ("first_event", profile.first_event_ms),
        ("first_visible_event", profile.first_visible_event_ms),
        ("stream_idle", profile.stream_idle_ms),
        ("tool_idle", profile.tool_idle_ms),
        ("user_input", profile.user_input_ms),
        ("cleanup_term", profile.cleanup_term_ms),
    ];
    let set = fields
        .iter()
        .filter_map(|(name, ms)| Some(format!("{name}={}", duration::format_short((*ms)?))));
    let text = set.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "empty: no phase deadline is armed".to_owned()
    } else {
        text
    }
}

fn push_attempt_lines(page: &mut FieldLines, attempt: &Attempt, now_ms: u64) {
    let state = short_name_of::<AttemptState>(attempt.state);
    page.push_field(&format!("attempt {}", attempt.attempt_number), &state);
    page.push_subfield("id", &attempt.attempt_id);
    if attempt.phase() != LifecyclePhase::Unspecified {
        page.push_subfield("phase", attempt.phase().short_name());
    }
    let holder = [
        &attempt.daemon_name,
        &attempt.agent_holder,
        &attempt.daemon_id,
    ];
    page.push_subfield(
        "holder",
        holder
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or("", |name| name),
    );
    push_attempt_end(page, attempt);
    if let Some(lease) = attempt.lease.as_ref().filter(|lease| lease.live) {
        let left = time_left(lease.expires_at.as_ref(), now_ms);
        let left = if left.is_empty() {
            left
        } else {
            format!("{left} left, ")
        };
        page.push_subfield("lease", &format!("{left}{} renewals", lease.renewals));
    }
    for tool in &attempt.open_tools {
        // The start time of an open tool call is not always known.
        let since = match timestamp_with_age(tool.started_at.as_ref(), now_ms) {
            since if since.is_empty() => since,
            since => format!(" since {since}"),
        };
        page.push_subfield("tool", &format!("{}{since}", tool.tool_name));
    }
    if let Some(workspace) = &attempt.workspace {
        push_workspace_lines(page, workspace);
    }
    page.push_subfield(
        "used",
        &attempt.usage.as_ref().map(usage_text).unwrap_or_default(),
    );
    page.push_subfield(
        "output",
        &attempt.output.as_ref().map(output_text).unwrap_or_default(),
    );
}

/// The required files that were found, and those that are missing or wrong.
fn push_file_lines(page: &mut FieldLines, task: &Task, attempt: &Attempt) {
    let contract = task.spec.as_ref().and_then(|spec| spec.contract.as_ref());
    let checked = contract.filter(|_| !attempt.artifacts.is_empty());
    let unmet = checked.map_or_else(Vec::new, |contract| {
        required_file::unmet_contract_files(contract, &attempt.artifacts)
    });
    for found in &attempt.artifacts {
        if unmet.iter().all(|unmet| unmet.path != found.path) {
            let (path, size) = (&found.path, found.size);
            let location = match found.resolved_path.as_str() {
                resolved if resolved.is_empty() || resolved == path => String::new(),
                resolved => format!(", at {resolved}"),
            };
            let hash = match found.sha256.as_str() {
                "" => String::new(),
                hash => format!(", sha256 {hash}"),
            };
            page.push_subfield("file", &format!("{path}: {size} bytes{location}{hash}"));
        }
    }
    for unmet in unmet {
        page.push_subfield("missing", &unmet.to_string());
    }
}

/// Where the work of an attempt is, so that the work of a lost attempt can be found.
fn push_workspace_lines(page: &mut FieldLines, workspace: &WorkspaceReport) {
    let mode = match workspace.mode() {
        WorkspaceMode::Unspecified => String::new(),
        mode => format!(", {}", mode.short_name()),
    };
    let gone = if workspace.kept { "" } else { ", removed" };
    page.push_subfield("workspace", &format!("{}{mode}{gone}", workspace.path));
    page.push_subfield("branch", &workspace.branch);
    let commits = match (&*workspace.base_commit, &*workspace.head_commit) {
        (base, head) if base == head || head.is_empty() => base.to_owned(),
        ("", head) => head.to_owned(),
        (base, head) => format!("{base} to {head}"),
    };
    page.push_subfield("commits", &commits);
    if workspace.dirty_digest == UNKNOWN_DIGEST {
        page.push_subfield(
            "uncommitted",
            "unknown: the daemon could not check the worktree",
        );
    } else if workspace.changed_files > 0 {
        let files = workspace.changed_files;
        let digest = match &*workspace.dirty_digest {
            "" => String::new(),
            digest => format!(", {digest}"),
        };
        let noun = if files == 1 { "file" } else { "files" };
        page.push_subfield("uncommitted", &format!("{files} {noun}{digest}"));
    }
}

fn push_attempt_end(page: &mut FieldLines, attempt: &Attempt) {
    if attempt.ended_by() == EndedBy::Unspecified {
        return;
    }
    page.push_subfield("ended by", attempt.ended_by().short_name());
    page.push_subfield("failure", &attempt.failure_code);
    page.push_subfield("message", &attempt.message);
    if attempt.user_message != attempt.message {
        page.push_subfield("for users", &attempt.user_message);
    }
    let exit = attempt.exit_code.map(|code| format!("code {code}"));
    let signal = attempt.signal.map(|signal| format!("signal {signal}"));
    page.push_subfield("exit", &exit.or(signal).unwrap_or_default());
    if attempt.termination() != Termination::Unspecified {
        page.push_subfield("processes", termination_text(attempt.termination()));
    }
    if attempt.failure_code.is_empty() {
        return;
    }
    let safe = if attempt.retry_safe {
        "safe"
    } else {
        "effects are possible"
    };
    let retryable = if attempt.retryable { "yes" } else { "no" };
    page.push_subfield("retryable", &format!("{retryable}, {safe}"));
}

fn termination_text(termination: Termination) -> &'static str {
    match termination {
        Termination::Unspecified => "",
        Termination::Confirmed => "confirmed dead",
        Termination::Unconfirmed => {
            "not confirmed dead; the next attempt waits until the lease ends"
        }
        Termination::NotNeeded => "none were started",
    }
}

fn output_text(output: &OutputView) -> String {
    let cut = match output.cut_bytes {
        0 => String::new(),
        cut => format!(", of which {cut} were cut"),
    };
    let open = if output.ends_open {
        "; more may have been written, length unknown"
    } else {
        ""
    };
    format!("{} bytes{cut}{open}", output.bytes)
}

fn timer_text(timer: &ArmedTimer) -> String {
    let name = short_name_of::<TimerKind>(timer.kind);
    let left = duration::format_short(timer.remaining_ms);
    // Every timer has its remaining time; the limit is zero if the relay does not know it.
    let limit = match timer.limit_ms {
        0 => String::new(),
        // A lease that was extended for a planned restart has more time left than its limit.
        limit if limit < timer.remaining_ms => String::new(),
        limit => format!(" of {}", duration::format_short(limit)),
    };
    let paused = if timer.paused { ", paused" } else { "" };
    format!("{name} has {left}{limit} left{paused}")
}

fn timestamp_with_age(at: Option<&prost_types::Timestamp>, now_ms: u64) -> String {
    at.map(|at| format!("{at} ({} ago)", task_view::age(Some(at), now_ms)))
        .unwrap_or_default()
}

fn time_left(at: Option<&prost_types::Timestamp>, now_ms: u64) -> String {
    at.map(|at| duration::format_short(task_view::unix_ms(at).saturating_sub(now_ms)))
        .unwrap_or_default()
}

pub(crate) fn format_pairs(map: &std::collections::BTreeMap<String, String>) -> String {
    map.iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::OpenTool;

    use super::*;

    #[test]
    fn unknown_values_are_named_or_left_out() {
        let open = OutputView {
            bytes: 6,
            ends_open: true,
            ..OutputView::default()
        };
        let expected = "6 bytes; more may have been written, length unknown";
        assert_eq!(output_text(&open), expected);
        let cut = OutputView {
            bytes: 9,
            cut_bytes: 2,
            ..OutputView::default()
        };
        assert_eq!(output_text(&cut), "9 bytes, of which 2 were cut");
        let tool = OpenTool {
            tool_name: "edit".to_owned(),
            ..OpenTool::default()
        };
        let attempt = Attempt {
            open_tools: vec![tool],
            workspace: Some(WorkspaceReport {
                changed_files: 1,
                ..WorkspaceReport::default()
            }),
            ..Attempt::default()
        };
        let extended = ArmedTimer {
            kind: TimerKind::Lease.into(),
            limit_ms: 30_000,
            remaining_ms: 60_000,
            ..ArmedTimer::default()
        };
        assert_eq!(timer_text(&extended), "lease has 1m 00s left");
        let mut page = FieldLines::default();
        push_attempt_lines(&mut page, &attempt, 0);
        assert!(
            page.lines.contains(&"  tool:       edit".to_owned()),
            "{:?}",
            page.lines
        );
        assert!(
            page.lines.contains(&"  uncommitted: 1 file".to_owned()),
            "{:?}",
            page.lines
        );
    }
}
