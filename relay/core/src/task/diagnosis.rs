//! Problems of a task, for people who inspect it. One pure function turns facts into findings.
//! It changes nothing, and no code acts on its result.

use crate::ids::AttemptId;
use crate::io::session_input::NO_RESULT_MESSAGE;
use crate::record::{
    AttemptRecord, AttemptState, EndState, FailureCode, LifecyclePhase, TaskRecord,
    TerminationReceipt, TimelineEventKind,
};

/// A worker that has sent no frame for this long is reported, whatever its deadlines are.
const QUIET_MS: u64 = 10 * 60 * 1_000;

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProblem {
    /// The worker has sent nothing for a long time.
    Stuck,
    /// Leased to a daemon that is not connected.
    Orphan,
    /// Queued, and no known daemon could ever take it.
    Stranded,
    /// Its processes are gone and it delivered no result.
    Crashed,
    /// The lease was not renewed for two heartbeats.
    StaleLease,
    /// Output is missing without a recorded cut.
    StreamGap,
    /// A phase was reported twice or out of order.
    PhaseRegression,
}

impl TaskProblem {
    /// The stable name in every interface.
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
    /// What was observed, and what happens next or what to do.
    pub message: String,
}

/// Facts that are not in the record. For a finished task all of them are absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiagnosisFacts<'a> {
    /// The daemon that holds the lease is not connected.
    pub holder_disconnected: bool,
    /// Time since the worker last sent a frame.
    pub quiet_ms: Option<u64>,
    /// Time since the last renewal of the lease, and the interval at which it should be
    /// renewed.
    pub unrenewed_ms: Option<u64>,
    pub heartbeat_ms: u64,
    /// The requirement that no known daemon meets, in words.
    pub unmet_need: Option<&'a str>,
    /// The number of output bytes stored; absent if the output log has no such attempt.
    pub stored_output_bytes: Option<u64>,
}

/// Finds the problems of the newest attempt.
pub fn diagnose(record: &TaskRecord, facts: &DiagnosisFacts<'_>) -> Vec<TaskDiagnosis> {
    let Some(newest) = record.newest_attempt() else {
        return Vec::new();
    };
    let findings = [
        find_stuck(newest, facts),
        find_orphan(newest, facts),
        find_stranded(newest, facts),
        find_crashed(newest),
        find_stale_lease(newest, facts),
        find_stream_gap(newest, facts),
        find_phase_regression(record, newest),
    ];
    let with_attempt = |(problem, message)| TaskDiagnosis {
        problem,
        attempt: newest.id,
        message,
    };
    findings.into_iter().flatten().map(with_attempt).collect()
}

type DiagnosisFinding = Option<(TaskProblem, String)>;

/// An attempt that waits for a person may be silent.
fn find_stuck(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let works = attempt.state.is_leased()
        && !matches!(
            attempt.state,
            AttemptState::Offered | AttemptState::WaitingInput
        );
    let quiet_ms = facts.quiet_ms.filter(|ms| works && *ms >= QUIET_MS)?;
    let message = format!(
        "the worker has sent nothing for {} s; read the output, then wait or force-release the task",
        quiet_ms / 1_000
    );
    Some((TaskProblem::Stuck, message))
}

fn find_orphan(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let holder = attempt.daemon_holder()?;
    (attempt.state.is_leased() && facts.holder_disconnected).then(|| {
        let message = format!(
            "daemon {} holds the lease and is not connected; if it stays away, the lease expires",
            holder.name
        );
        (TaskProblem::Orphan, message)
    })
}

fn find_stranded(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let need = facts
        .unmet_need
        .filter(|_| attempt.state == AttemptState::Queued)?;
    let message = format!(
        "no known daemon {need}, so the task cannot be placed; start one that does, or cancel it"
    );
    Some((TaskProblem::Stranded, message))
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
        let message = attempt.state.end().and_then(|end| end.message.as_deref());
        (
            TaskProblem::Crashed,
            message.unwrap_or(NO_RESULT_MESSAGE).to_owned(),
        )
    })
}

/// A daemon that restarts as planned has extended its leases and renews none meanwhile.
fn find_stale_lease(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let lease = attempt.lease.as_ref()?;
    let renewed = attempt.state.is_leased() && lease.granted_ms <= lease.ttl_ms;
    let late = |ms: &u64| *ms > facts.heartbeat_ms.saturating_mul(2);
    let unrenewed_ms = facts.unrenewed_ms.filter(|ms| renewed && late(ms))?;
    let message = format!(
        "the lease of {} s was last renewed {} s ago; more than two heartbeats are missing",
        lease.ttl_ms / 1_000,
        unrenewed_ms / 1_000
    );
    Some((TaskProblem::StaleLease, message))
}

/// The terminal frame reported more output than is stored, counting recorded cuts.
fn find_stream_gap(attempt: &AttemptRecord, facts: &DiagnosisFacts<'_>) -> DiagnosisFinding {
    let (last, durable) = (attempt.final_offset?, facts.stored_output_bytes?);
    (durable < last).then(|| {
        let message =
            format!("the output ends at byte {last}, but only {durable} bytes are stored");
        (TaskProblem::StreamGap, message)
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
    let message = format!(
        "the daemon reported phase {} twice or after a later phase; the report was ignored",
        phase.as_str()
    );
    Some((TaskProblem::PhaseRegression, message))
}
