//! `Inspect`: one task in full for an operator, with armed timers, diagnoses and the next action.

use baton_core::commands::InspectTask;
use baton_core::ids::TaskId;
use baton_core::io::effects::{DeadlineView, PauseLevel, TaskView, WaitReason};
use baton_core::record::{AttentionCause, RejectCode, TaskRecord, TaskState};
use baton_core::task::diagnosis;
use baton_core::task::diagnosis::{DiagnosisFacts, TaskDiagnosis, TaskProblem};
use baton_core::time::WallTime;
use baton_proto::v1;

use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::inputs::view;
use crate::api::request::validate;
use crate::api::wire::event;
use crate::api::wire::task;
use crate::api::wire::task::TaskDetail;
use crate::api::wire::{enums, timestamp};
use crate::auth::Principal;
use crate::dispatcher::RequestRefusal;

/// Newest events in the response.
const RECENT_EVENTS: usize = 50;

impl Api {
    pub(crate) async fn handle_inspect(
        &self,
        who: Principal,
        request: v1::InspectRequest,
    ) -> Result<v1::InspectResponse, ApiFault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let tenant = who.tenant.clone();
        match self.dispatcher.request(InspectTask { tenant, task }).await {
            Ok(mut view) => {
                let gap = self.record_diagnoses(&view.record);
                let gap = gap
                    .into_iter()
                    .filter(|d| d.problem == TaskProblem::StreamGap);
                view.diagnoses.extend(gap);
                Ok(self.inspect_response(&view))
            }
            // The core has live tasks only; a finished task is read from the store.
            Err(RequestRefusal::Rejected(_)) => {
                let (spec, record) = self.stored_task(&who, task).await?;
                let diagnoses = self.record_diagnoses(&record);
                Ok(self.inspect_response(&TaskView {
                    record,
                    spec,
                    deadlines: Vec::new(),
                    wait_reason: None,
                    max_wait_ms: None,
                    waits_for_task: None,
                    unmet_need: None,
                    pause: None,
                    diagnoses,
                }))
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Diagnoses that need the record and the output log only.
    fn record_diagnoses(&self, record: &TaskRecord) -> Vec<TaskDiagnosis> {
        let newest = record.newest_attempt();
        let end = newest.and_then(|attempt| self.output.end(attempt.id.0));
        let facts = DiagnosisFacts {
            stored_output_bytes: end.map(|end| end.durable),
            ..DiagnosisFacts::default()
        };
        diagnosis::diagnose(record, &facts)
    }

    fn inspect_response(&self, view: &TaskView) -> v1::InspectResponse {
        let (spec, record) = (&view.spec, &view.record);
        let newest = record.newest_attempt();
        let attempt_id = newest
            .map(|attempt| attempt.id.to_string())
            .unwrap_or_default();
        let open = newest.filter(|attempt| attempt.state.end().is_none());
        let mut task = task::task_message(spec, record, &self.config, TaskDetail::AllAttempts);
        self.fill_output(&mut task);
        if let Some(waits) = view.wait_reason {
            task.waits_for = waits_for(waits).into();
            let now = self.clock.now().wall;
            let until = |left_ms: u64| timestamp(WallTime(now.0.saturating_add(left_ms)));
            task.waits_until = view.max_wait_ms.map(until);
        }
        let (next_action, next_action_text) = next_action(view);
        let events = event::events_after(spec, record, 0);
        let recent = events.len().saturating_sub(RECENT_EVENTS);
        let mut timers: Vec<_> = view.deadlines.iter().collect();
        // Paused timers come last.
        timers.sort_by_key(|timer| (timer.at.is_none(), timer.remaining_ms));
        v1::InspectResponse {
            task: Some(task),
            current_attempt_id: open
                .map(|attempt| attempt.id.to_string())
                .unwrap_or_default(),
            timers: timers
                .into_iter()
                .map(|timer| armed_timer(timer, &attempt_id))
                .collect(),
            inputs: view::open_inputs_of(spec, record),
            recent_events: events.into_iter().skip(recent).collect(),
            diagnostics: view.diagnoses.iter().map(diagnostic).collect(),
            next_action: next_action.into(),
            next_action_text,
            fence_remaining_ms: view.max_wait_ms.filter(|_| is_fenced(view.wait_reason)),
        }
    }
}

fn armed_timer(deadline: &DeadlineView, attempt_id: &str) -> v1::ArmedTimer {
    let input = deadline.input.map(|input| input.to_string());
    let subject = deadline.tool.as_ref().map(ToString::to_string).or(input);
    v1::ArmedTimer {
        kind: enums::timer(deadline.timer).into(),
        attempt_id: attempt_id.to_owned(),
        limit_ms: deadline.limit_ms,
        remaining_ms: deadline.remaining_ms,
        paused: deadline.at.is_none(),
        subject: subject.unwrap_or_default(),
        fires_at: deadline.at.map(timestamp),
    }
}

fn diagnostic(diagnosis: &TaskDiagnosis) -> v1::Diagnostic {
    use v1::DiagnosticCode as Code;
    let code = match diagnosis.problem {
        TaskProblem::Stuck => Code::Stuck,
        TaskProblem::Orphan => Code::Orphan,
        TaskProblem::Stranded => Code::Stranded,
        TaskProblem::Crashed => Code::Crashed,
        TaskProblem::StaleLease => Code::StaleLease,
        TaskProblem::StreamGap => Code::StreamGap,
        TaskProblem::PhaseRegression => Code::PhaseRegression,
    };
    v1::Diagnostic {
        code: code.into(),
        attempt_id: diagnosis.attempt.to_string(),
        message: diagnosis.message.clone(),
    }
}

fn waits_for(waits: WaitReason) -> v1::WaitsFor {
    match waits {
        WaitReason::Daemon => v1::WaitsFor::Daemon,
        WaitReason::Agent => v1::WaitsFor::Agent,
        WaitReason::Backoff => v1::WaitsFor::Backoff,
        WaitReason::Fence => v1::WaitsFor::Fence,
        WaitReason::Conversation => v1::WaitsFor::Conversation,
        WaitReason::Pause => v1::WaitsFor::Pause,
        WaitReason::Person => v1::WaitsFor::Person,
        WaitReason::Inheritance => v1::WaitsFor::Inheritance,
        WaitReason::DiskSpace => v1::WaitsFor::Space,
    }
}

/// Whether an earlier attempt may still run, also one from before an import.
fn is_fenced(waits: Option<WaitReason>) -> bool {
    matches!(waits, Some(WaitReason::Fence | WaitReason::Inheritance))
}

/// The next action as a code and as a text that names the commands.
fn next_action(view: &TaskView) -> (v1::NextAction, String) {
    use v1::NextAction as Next;
    let id = view.record.task;
    let has = |problem| view.diagnoses.iter().any(|one| one.problem == problem);
    match view.wait_reason {
        Some(WaitReason::Daemon) => next_action_without_daemon(view, has(TaskProblem::Stranded)),
        Some(WaitReason::Agent) => (
            Next::Dispatchable,
            "nothing to do: an agent of its scope can claim it".to_owned(),
        ),
        Some(WaitReason::Backoff | WaitReason::Fence | WaitReason::Conversation) => (
            Next::WaitingForTime,
            view.waits_for_task.map_or_else(
                || "nothing to do: it continues by itself".to_owned(),
                |turn| format!("nothing to do: turn {turn} of its conversation has to end first"),
            ),
        ),
        Some(WaitReason::Inheritance) => (
            Next::WaitingForTime,
            "it was imported and may still run on machines of the earlier relay; it continues by itself, or at once with \
             `baton release-inherited --reason …` when those machines are down"
                .to_owned(),
        ),
        Some(WaitReason::DiskSpace) => (
            Next::WaitingForTime,
            "the relay's disk is nearly full; it continues by itself when there is free space (`baton info` shows how \
             much is needed)"
                .to_owned(),
        ),
        Some(WaitReason::Pause) => (Next::UnpauseRequired, unpause_advice(view)),
        Some(WaitReason::Person) if view.record.state == TaskState::Running => (
            Next::WaitingForInput,
            format!("answer the open input: `baton inbox --task {id}`"),
        ),
        Some(WaitReason::Person) => (Next::ResumeRequired, resume_advice(&view.record)),
        None => next_action_by_state(&view.record, has(TaskProblem::Stuck), has(TaskProblem::Orphan)),
    }
}

fn next_action_without_daemon(view: &TaskView, stranded: bool) -> (v1::NextAction, String) {
    match (&view.unmet_need, stranded) {
        (Some(need), true) => (
            v1::NextAction::Stranded,
            format!("no daemon on record {need}; start one that does, or cancel the task"),
        ),
        (Some(need), false) => (
            v1::NextAction::WaitingForDaemon,
            format!(
                "no connected daemon {need}; a disconnected daemon does: reconnect it, or start another"
            ),
        ),
        (None, _) => (
            v1::NextAction::WaitingForDaemon,
            match occupied_workspace_message(&view.record) {
                Some(message) => {
                    format!("nothing to do: {message}; it is offered again afterwards")
                }
                None => "every suitable daemon is busy, draining or sick; wait, or start another"
                    .to_owned(),
            },
        ),
    }
}

/// The daemon's message about the attempt that occupied the workspace at the last offer.
fn occupied_workspace_message(record: &TaskRecord) -> Option<&str> {
    let previous = record.attempts.iter().rev().nth(1)?;
    let end = previous.state.end()?;
    let busy = end.failure_code.as_ref()?.as_str() == RejectCode::WorkspaceBusy.as_str();
    end.message.as_deref().filter(|_| busy)
}

fn unpause_advice(view: &TaskView) -> String {
    let Some((paused, pause)) = &view.pause else {
        return "unpause it".to_owned();
    };
    let (what, how) = match paused {
        PauseLevel::Task => ("the task", format!("baton unpause {}", view.record.task)),
        PauseLevel::Tenant => {
            let tenant = &view.record.tenant;
            ("its tenant", format!("baton unpause --tenant {tenant}"))
        }
        PauseLevel::Scheduler => ("all dispatching", "baton unpause --scheduler".to_owned()),
    };
    format!(
        "{what} is paused by {}: {}; `{how}` continues it",
        pause.by, pause.reason
    )
}

fn resume_advice(record: &TaskRecord) -> String {
    let id = record.task;
    let cause = record.attention.as_ref().map(|attention| attention.cause);
    // A task lost in this way has no new instructions to continue with, so a retry from the
    // beginning is an option too.
    let retry = match cause {
        Some(AttentionCause::UnsafeLoss | AttentionCause::Poison) => format!(
            "`baton retry {id} --allow-unsafe --reason …` starts it again from the beginning, "
        ),
        Some(
            AttentionCause::Blocked
            | AttentionCause::Starved
            | AttentionCause::InputTimeout
            | AttentionCause::ReceiptsMissing,
        )
        | None => String::new(),
    };
    format!(
        "check why it stopped, then choose: `baton resume {id} --reason …` continues it with your instructions, \
         {retry}`baton complete {id} --reason …` marks its work as done, or `baton cancel {id}` ends it"
    )
}

/// As in the core, the newest attempt decides whether a retry needs `--allow-unsafe`.
fn retry_advice(record: &TaskRecord) -> String {
    let id = record.task;
    if record
        .newest_attempt()
        .is_some_and(|attempt| attempt.retry_safe)
    {
        return format!("it ended without a result; `baton retry {id} --reason …` starts it again");
    }
    format!(
        "it ended without a result and may have had side effects: check `baton output {id}`; \
         `baton retry {id} --allow-unsafe --reason …` starts it again"
    )
}

fn next_action_by_state(
    record: &TaskRecord,
    stuck: bool,
    orphan: bool,
) -> (v1::NextAction, String) {
    use v1::NextAction as Next;
    let id = record.task;
    match record.state {
        TaskState::Running if stuck => (
            Next::Running,
            format!(
                "it may be stuck: check `baton output {id}`; `baton force-release {id} --reason …` moves it to another daemon"
            ),
        ),
        TaskState::Running if orphan => (
            Next::Running,
            "nothing to do yet: its daemon is disconnected and may reconnect; otherwise the attempt ends with its lease"
                .to_owned(),
        ),
        TaskState::Running => (Next::Running, "nothing to do: it is running".to_owned()),
        TaskState::NeedsAttention => (Next::ResumeRequired, resume_advice(record)),
        TaskState::Pending | TaskState::Queued => (
            Next::Dispatchable,
            "nothing to do: it will be dispatched".to_owned(),
        ),
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost => (
            Next::RetryPossible,
            retry_advice(record),
        ),
        TaskState::Completed | TaskState::Canceled => {
            (Next::Terminal, "nothing to do: it is finished".to_owned())
        }
    }
}
