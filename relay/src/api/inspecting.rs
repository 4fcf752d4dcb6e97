//! One task in full, for whoever has to decide about it: what is armed, what looks wrong, and what to do next, in words.

use baton_core::diagnose::{self, Diagnosis, Facts, Problem};
use baton_core::effects::{DeadlineView, Paused, Reply, TaskView, WaitsFor};
use baton_core::id::TaskId;
use baton_core::input::Input;
use baton_core::record::{AttentionCause, RejectCode, TaskRecord, TaskState};
use baton_core::time::Wall;
use baton_proto::v1;

use super::convert::{self, View};
use super::fault::Fault;
use super::tasks::unexpected;
use super::validate;
use super::{Api, asked, events};
use crate::auth::Principal;
use crate::dispatcher::Refusal;
use crate::wire::{timestamp, words};

/// Events that Inspect shows.
const RECENT_EVENTS: usize = 50;

impl Api {
    pub(super) async fn look_inside(
        &self,
        who: Principal,
        request: v1::InspectRequest,
    ) -> Result<v1::InspectResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let tenant = who.tenant.clone();
        let ask = move |request| Input::Inspect {
            request,
            tenant,
            task,
        };
        match self.dispatcher.request(ask).await {
            Ok(Reply::Inspected(mut view)) => {
                let gap = self.of_record(&view.record);
                let gap = gap.into_iter().filter(|d| d.problem == Problem::StreamGap);
                view.diagnoses.extend(gap);
                Ok(self.inspected(&view))
            }
            // The core holds live tasks only; a finished one is read from the store.
            Err(Refusal::Rejected(_)) => {
                let (spec, record) = self.stored_task(&who, task).await?;
                let diagnoses = self.of_record(&record);
                Ok(self.inspected(&TaskView {
                    record,
                    spec,
                    deadlines: Vec::new(),
                    waits_for: None,
                    waits_ms: None,
                    behind: None,
                    unmet: None,
                    pause: None,
                    diagnoses,
                }))
            }
            other => Err(unexpected(other)),
        }
    }

    /// What the record and the output log tell together.
    fn of_record(&self, record: &TaskRecord) -> Vec<Diagnosis> {
        let newest = record.newest();
        let end = newest.and_then(|attempt| self.output.end(attempt.id.0));
        let facts = Facts {
            durable: end.map(|end| end.durable),
            ..Facts::default()
        };
        diagnose::diagnose(record, &facts)
    }

    fn inspected(&self, view: &TaskView) -> v1::InspectResponse {
        let (spec, record) = (&view.spec, &view.record);
        let newest = record.newest();
        let attempt_id = newest
            .map(|attempt| attempt.id.to_string())
            .unwrap_or_default();
        let open = newest.filter(|attempt| attempt.state.end().is_none());
        let mut task = convert::task(spec, record, &self.config, View::Whole);
        self.fill_output(&mut task);
        if let Some(waits) = view.waits_for {
            task.waits_for = waits_for(waits).into();
            let now = self.clock.now().wall;
            let until = |left_ms: u64| timestamp(Wall(now.0.saturating_add(left_ms)));
            task.waits_until = view.waits_ms.map(until);
        }
        let (next_action, next_action_text) = next_action(view);
        let events = events::after(spec, record, 0);
        let recent = events.len().saturating_sub(RECENT_EVENTS);
        let mut timers: Vec<_> = view.deadlines.iter().collect();
        // Those that stand still come last.
        timers.sort_by_key(|timer| (timer.at.is_none(), timer.remaining_ms));
        v1::InspectResponse {
            task: Some(task),
            current_attempt_id: open
                .map(|attempt| attempt.id.to_string())
                .unwrap_or_default(),
            timers: timers
                .into_iter()
                .map(|timer| armed(timer, &attempt_id))
                .collect(),
            inputs: asked::open_of(spec, record),
            recent_events: events.into_iter().skip(recent).collect(),
            diagnostics: view.diagnoses.iter().map(diagnostic).collect(),
            next_action: next_action.into(),
            next_action_text,
            fence_remaining_ms: view.waits_ms.filter(|_| is_fenced(view.waits_for)),
        }
    }
}

fn armed(deadline: &DeadlineView, attempt_id: &str) -> v1::ArmedTimer {
    let input = deadline.input.map(|input| input.to_string());
    let subject = deadline.tool.as_ref().map(ToString::to_string).or(input);
    v1::ArmedTimer {
        kind: words::timer(deadline.timer).into(),
        attempt_id: attempt_id.to_owned(),
        limit_ms: deadline.limit_ms,
        remaining_ms: deadline.remaining_ms,
        paused: deadline.at.is_none(),
        subject: subject.unwrap_or_default(),
        fires_at: deadline.at.map(timestamp),
    }
}

fn diagnostic(found: &Diagnosis) -> v1::Diagnostic {
    use v1::DiagnosticCode as Code;
    let code = match found.problem {
        Problem::Stuck => Code::Stuck,
        Problem::Orphan => Code::Orphan,
        Problem::Stranded => Code::Stranded,
        Problem::Crashed => Code::Crashed,
        Problem::StaleLease => Code::StaleLease,
        Problem::StreamGap => Code::StreamGap,
        Problem::PhaseRegression => Code::PhaseRegression,
    };
    v1::Diagnostic {
        code: code.into(),
        attempt_id: found.attempt.to_string(),
        message: found.words.clone(),
    }
}

fn waits_for(waits: WaitsFor) -> v1::WaitsFor {
    match waits {
        WaitsFor::Daemon => v1::WaitsFor::Daemon,
        WaitsFor::Agent => v1::WaitsFor::Agent,
        WaitsFor::Backoff => v1::WaitsFor::Backoff,
        WaitsFor::Fence => v1::WaitsFor::Fence,
        WaitsFor::Conversation => v1::WaitsFor::Conversation,
        WaitsFor::Pause => v1::WaitsFor::Pause,
        WaitsFor::Person => v1::WaitsFor::Person,
        WaitsFor::Inheritance => v1::WaitsFor::Inheritance,
        WaitsFor::Space => v1::WaitsFor::Space,
    }
}

/// Whether an earlier attempt of it may still run, be it one that this relay does not know.
fn is_fenced(waits: Option<WaitsFor>) -> bool {
    matches!(waits, Some(WaitsFor::Fence | WaitsFor::Inheritance))
}

/// What to do, as a code and in words; the words name the commands.
fn next_action(view: &TaskView) -> (v1::NextAction, String) {
    use v1::NextAction as Next;
    let id = view.record.task;
    let has = |problem| view.diagnoses.iter().any(|found| found.problem == problem);
    match view.waits_for {
        Some(WaitsFor::Daemon) => waiting_for_daemon(view, has(Problem::Stranded)),
        Some(WaitsFor::Agent) => (
            Next::Dispatchable,
            "it waits for an agent of its scope to claim it".to_owned(),
        ),
        Some(WaitsFor::Backoff | WaitsFor::Fence | WaitsFor::Conversation) => (
            Next::WaitingForTime,
            view.behind.map_or_else(
                || "nothing to do: it goes on by itself".to_owned(),
                |turn| format!("nothing to do: turn {turn} of its conversation has to end first"),
            ),
        ),
        Some(WaitsFor::Inheritance) => (
            Next::WaitingForTime,
            "it was inherited and may still run on machines of before; it goes on by itself, or at once with \
             `baton release-inherited --reason …` when those are down"
                .to_owned(),
        ),
        Some(WaitsFor::Space) => (
            Next::WaitingForTime,
            "the relay's disk is nearly full; it goes on by itself when there is room (`baton info` shows how much is \
             missing)"
                .to_owned(),
        ),
        Some(WaitsFor::Pause) => (Next::UnpauseRequired, unpause_words(view)),
        Some(WaitsFor::Person) if view.record.state == TaskState::Running => (
            Next::WaitingForInput,
            format!("answer what is asked: `baton inbox --task {id}`"),
        ),
        Some(WaitsFor::Person) => (Next::ResumeRequired, resume_words(&view.record)),
        None => by_state(&view.record, has(Problem::Stuck), has(Problem::Orphan)),
    }
}

fn waiting_for_daemon(view: &TaskView, stranded: bool) -> (v1::NextAction, String) {
    match (&view.unmet, stranded) {
        (Some(need), true) => (
            v1::NextAction::Stranded,
            format!("no daemon on record {need}; start one that does, or cancel the task"),
        ),
        (Some(need), false) => (
            v1::NextAction::WaitingForDaemon,
            format!("no connected daemon {need}; one on record would do and is away: bring it back, or start another"),
        ),
        (None, _) => (
            v1::NextAction::WaitingForDaemon,
            match refused_for_its_place(&view.record) {
                Some(who) => format!("nothing to do: {who}; it is offered again when that is over"),
                None => {
                    "every daemon that may take it is busy, draining or resting; wait, or start another"
                        .to_owned()
                }
            },
        ),
    }
}

/// Who was in its directory when it was last offered, in the daemon's words.
fn refused_for_its_place(record: &TaskRecord) -> Option<&str> {
    let before = record.attempts.iter().rev().nth(1)?;
    let end = before.state.end()?;
    let busy = end.failure_code.as_ref()?.as_str() == RejectCode::WorkspaceBusy.as_str();
    end.message.as_deref().filter(|_| busy)
}

fn unpause_words(view: &TaskView) -> String {
    let Some((paused, pause)) = &view.pause else {
        return "unpause it".to_owned();
    };
    let (what, how) = match paused {
        Paused::Task => ("the task", format!("baton unpause {}", view.record.task)),
        Paused::Tenant => {
            let tenant = &view.record.tenant;
            ("its tenant", format!("baton unpause --tenant {tenant}"))
        }
        Paused::Scheduler => ("all dispatching", "baton unpause --scheduler".to_owned()),
    };
    format!(
        "{what} is paused by {}: {}; `{how}` lets it go on",
        pause.by, pause.reason
    )
}

fn resume_words(record: &TaskRecord) -> String {
    let id = record.task;
    let cause = record.attention.as_ref().map(|attention| attention.cause);
    // Nobody has said anything to it that it should go on with, so from the beginning is a way as well.
    let again = match cause {
        Some(AttentionCause::UnsafeLoss | AttentionCause::Poison) => format!(
            "`baton retry {id} --allow-unsafe --reason …` tries it again from the beginning, "
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
        "look at why it stopped, then `baton resume {id} --reason …` sends it on with what you have to say, \
         {again}`baton complete {id} --reason …` says that its work is done, or `baton cancel {id}` ends it"
    )
}

/// Whether a retry has to be allowed is decided by the newest attempt, as the core decides it.
fn retry_words(record: &TaskRecord) -> String {
    let id = record.task;
    if record.newest().is_some_and(|attempt| attempt.retry_safe) {
        return format!("it ended without a result; `baton retry {id} --reason …` tries it again");
    }
    format!(
        "it ended without a result and may have had effects: read `baton output {id}`; \
         `baton retry {id} --allow-unsafe --reason …` tries it again all the same"
    )
}

fn by_state(record: &TaskRecord, stuck: bool, orphan: bool) -> (v1::NextAction, String) {
    use v1::NextAction as Next;
    let id = record.task;
    match record.state {
        TaskState::Running if stuck => (
            Next::Running,
            format!(
                "it may be stuck: read `baton output {id}`; `baton force-release {id} --reason …` gives it to another daemon"
            ),
        ),
        TaskState::Running if orphan => (
            Next::Running,
            "nothing to do yet: its daemon is away and may come back; if it does not, the lease ends the attempt"
                .to_owned(),
        ),
        TaskState::Running => (Next::Running, "nothing to do: it runs".to_owned()),
        TaskState::NeedsAttention => (Next::ResumeRequired, resume_words(record)),
        TaskState::Pending | TaskState::Queued => (
            Next::Dispatchable,
            "nothing to do: it will be dispatched".to_owned(),
        ),
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost => (
            Next::RetryPossible,
            retry_words(record),
        ),
        TaskState::Completed | TaskState::Canceled => {
            (Next::Terminal, "nothing to do: it is finished".to_owned())
        }
    }
}
