//! What looks wrong about a task, for people who look at it. One pure function from facts to findings; it changes nothing,
//! and nothing acts on it.

use crate::ids::AttemptId;
use crate::io::session_input::NO_RESULT_MESSAGE;
use crate::record::{
    AttemptRecord, AttemptState, EndState, FailureCode, LifecyclePhase, TaskRecord,
    TerminationReceipt, TimelineEventKind,
};

/// A worker that has said nothing for this long is worth a look, whatever its deadlines are.
const QUIET_MS: u64 = 10 * 60 * 1_000;

/// What can look wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProblem {
    /// No sign of life for long.
    Stuck,
    /// Leased to a daemon that has no stream.
    Orphan,
    /// Queued, and no daemon on record could ever take it.
    Stranded,
    /// Its processes are gone and no result came.
    Crashed,
    /// A lease that was not renewed for two heartbeats.
    StaleLease,
    /// Output is missing and no record says so.
    StreamGap,
    /// A phase came twice or backwards.
    PhaseRegression,
}

impl TaskProblem {
    /// The stable name on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskProblem::Stuck => "attempt_stuck",
            TaskProblem::Orphan => "attempt_orphan",
            TaskProblem::Stranded => "attempt_stranded",
            TaskProblem::Crashed => "attempt_crashed",
            TaskProblem::StaleLease => "stale_lease",
            TaskProblem::StreamGap => "stream_gap",
            TaskProblem::PhaseRegression => "phase_regression",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDiagnosis {
    pub problem: TaskProblem,
    pub attempt: AttemptId,
    /// What was seen, and what comes of it by itself.
    pub message: String,
}

/// What is known besides the record. A finished task has only that.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiagnosisFacts<'a> {
    /// Its holder has no stream.
    pub holder_disconnected: bool,
    /// Since its worker last said something.
    pub quiet_ms: Option<u64>,
    /// Since its lease was last renewed, and how often it should be.
    pub unrenewed_ms: Option<u64>,
    pub heartbeat_ms: u64,
    /// What no daemon on record has, in words.
    pub unmet_need: Option<&'a str>,
    /// How far its output is stored; none where the log does not know the attempt.
    pub stored_output_bytes: Option<u64>,
}

/// Looks at the newest attempt.
pub fn diagnose(record: &TaskRecord, facts: &DiagnosisFacts<'_>) -> Vec<TaskDiagnosis> {
    let Some(newest) = record.newest_attempt() else {
        return Vec::new();
    };
    let found = [
        find_stuck(newest, facts),
        find_orphan(newest, facts),
        find_stranded(newest, facts),
        find_crashed(newest),
        find_stale_lease(newest, facts),
        find_stream_gap(newest, facts),
        find_phase_regression(record, newest),
    ];
    let name = |(problem, words)| TaskDiagnosis {
        problem,
        attempt: newest.id,
        message: words,
    };
    found.into_iter().flatten().map(name).collect()
}

type DiagnosisFinding = Option<(TaskProblem, String)>;

/// Who waits for a person may be silent.
fn find_stuck(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let works = attempt.state.is_leased()
        && !matches!(
            attempt.state,
            AttemptState::Offered | AttemptState::WaitingInput
        );
    let quiet_ms = facts.quiet_ms.filter(|ms| works && *ms >= QUIET_MS)?;
    let words = format!(
        "its worker has said nothing for {} s; read its output, then wait or take it away",
        quiet_ms / 1_000
    );
    Some((TaskProblem::Stuck, words))
}

fn find_orphan(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let holder = attempt.daemon_holder()?;
    (attempt.state.is_leased() && facts.holder_disconnected).then(|| {
        let words = format!(
            "daemon {} holds it and is not connected; if it does not come back, the lease ends it",
            holder.name
        );
        (TaskProblem::Orphan, words)
    })
}

fn find_stranded(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let need = facts
        .unmet_need
        .filter(|_| attempt.state == AttemptState::Queued)?;
    let words = format!("no daemon on record {need}, so nobody could ever take it");
    Some((TaskProblem::Stranded, words))
}

fn find_crashed(attempt: &AttemptRecord) -> DiagnosisFinding {
    let gone = match &attempt.state {
        AttemptState::Ended(end) => {
            end.state == EndState::Lost
                && end.failure_code == Some(FailureCode::DaemonLostAttempt)
                && end.receipt == TerminationReceipt::Confirmed
        }
        AttemptState::CleaningUp { pending: None } => {
            attempt.phase == Some(LifecyclePhase::CleanupFinished)
        }
        AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp { pending: Some(_) }
        | AttemptState::Parked(_) => false,
    };
    gone.then(|| {
        let told = attempt.state.end().and_then(|end| end.message.as_deref());
        (
            TaskProblem::Crashed,
            told.unwrap_or(NO_RESULT_MESSAGE).to_owned(),
        )
    })
}

/// A daemon that restarts on purpose holds what it has, and renews nothing meanwhile.
fn find_stale_lease(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let lease = attempt.lease.as_ref()?;
    let renewed = attempt.state.is_leased() && lease.granted_ms <= lease.ttl_ms;
    let late = |ms: &u64| *ms > facts.heartbeat_ms.saturating_mul(2);
    let unrenewed_ms = facts.unrenewed_ms.filter(|ms| renewed && late(ms))?;
    let words = format!(
        "its lease of {} s was last renewed {} s ago; more than two heartbeats are missing",
        lease.ttl_ms / 1_000,
        unrenewed_ms / 1_000
    );
    Some((TaskProblem::StaleLease, words))
}

/// What the last frame named as the end is more than what is stored with its cuts.
fn find_stream_gap(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let (last, durable) = (attempt.final_offset?, facts.stored_output_bytes?);
    (durable < last).then(|| {
        let words = format!("its output ends at byte {last}, and only {durable} bytes are stored");
        (TaskProblem::StreamGap, words)
    })
}

fn find_phase_regression(record: &TaskRecord, attempt: &AttemptRecord) -> DiagnosisFinding {
    let mut events = record.timeline.events.iter().rev();
    let phase = events.find_map(|event| match &event.kind {
        TimelineEventKind::PhaseRegression(phase) if event.attempt == Some(attempt.id) => {
            Some(*phase)
        }
        _another => None,
    })?;
    let words = format!(
        "its daemon said {} twice or after a later phase; the word changed nothing",
        phase.as_str()
    );
    Some((TaskProblem::PhaseRegression, words))
}
