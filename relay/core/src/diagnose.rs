//! What looks wrong about a task, for people who look at it. One pure function from facts to findings; it changes nothing,
//! and nothing acts on it.

use crate::id::AttemptId;
use crate::input::NO_RESULT;
use crate::record::{
    AttemptRecord, EndState, EventKind, FailureCode, Phase, Receipt, State, TaskRecord,
};

/// A worker that has said nothing for this long is worth a look, whatever its deadlines are.
const QUIET_MS: u64 = 10 * 60 * 1_000;

/// What can look wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
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

impl Problem {
    /// The stable name on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Problem::Stuck => "attempt_stuck",
            Problem::Orphan => "attempt_orphan",
            Problem::Stranded => "attempt_stranded",
            Problem::Crashed => "attempt_crashed",
            Problem::StaleLease => "stale_lease",
            Problem::StreamGap => "stream_gap",
            Problem::PhaseRegression => "phase_regression",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    pub problem: Problem,
    pub attempt: AttemptId,
    /// What was seen, and what comes of it by itself.
    pub words: String,
}

/// What is known besides the record. A finished task has only that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Its holder has no stream.
    pub away: bool,
    /// Since its worker last said something.
    pub quiet_ms: Option<u64>,
    /// Since its lease was last renewed, and how often it should be.
    pub unrenewed_ms: Option<u64>,
    pub heartbeat_ms: u64,
    /// What no daemon on record has, in words.
    pub nobody: Option<&'a str>,
    /// How far its output is stored; none where the log does not know the attempt.
    pub durable: Option<u64>,
}

/// Looks at the newest attempt.
pub fn diagnose(record: &TaskRecord, facts: &Facts<'_>) -> Vec<Diagnosis> {
    let Some(newest) = record.newest() else {
        return Vec::new();
    };
    let found = [
        stuck(newest, facts),
        orphan(newest, facts),
        stranded(newest, facts),
        crashed(newest),
        stale_lease(newest, facts),
        stream_gap(newest, facts),
        regression(record, newest),
    ];
    let name = |(problem, words)| Diagnosis {
        problem,
        attempt: newest.id,
        words,
    };
    found.into_iter().flatten().map(name).collect()
}

type Found = Option<(Problem, String)>;

/// Who waits for a person may be silent.
fn stuck(attempt: &AttemptRecord, facts: &Facts<'_>) -> Found {
    let works =
        attempt.state.is_leased() && !matches!(attempt.state, State::Offered | State::WaitingInput);
    let quiet_ms = facts.quiet_ms.filter(|ms| works && *ms >= QUIET_MS)?;
    let words = format!(
        "its worker has said nothing for {} s; read its output, then wait or take it away",
        quiet_ms / 1_000
    );
    Some((Problem::Stuck, words))
}

fn orphan(attempt: &AttemptRecord, facts: &Facts<'_>) -> Found {
    let holder = attempt.daemon()?;
    (attempt.state.is_leased() && facts.away).then(|| {
        let words = format!(
            "daemon {} holds it and is not connected; if it does not come back, the lease ends it",
            holder.name
        );
        (Problem::Orphan, words)
    })
}

fn stranded(attempt: &AttemptRecord, facts: &Facts<'_>) -> Found {
    let need = facts.nobody.filter(|_| attempt.state == State::Queued)?;
    let words = format!("no daemon on record {need}, so nobody could ever take it");
    Some((Problem::Stranded, words))
}

fn crashed(attempt: &AttemptRecord) -> Found {
    let gone = match &attempt.state {
        State::Ended(end) => {
            end.state == EndState::Lost
                && end.failure_code == Some(FailureCode::DaemonLostAttempt)
                && end.receipt == Receipt::Confirmed
        }
        State::CleaningUp { pending: None } => attempt.phase == Some(Phase::CleanupFinished),
        State::Queued
        | State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::CleaningUp { pending: Some(_) }
        | State::Parked(_) => false,
    };
    gone.then(|| {
        let told = attempt.state.end().and_then(|end| end.message.as_deref());
        (Problem::Crashed, told.unwrap_or(NO_RESULT).to_owned())
    })
}

/// A daemon that restarts on purpose holds what it has, and renews nothing meanwhile.
fn stale_lease(attempt: &AttemptRecord, facts: &Facts<'_>) -> Found {
    let lease = attempt.lease.as_ref()?;
    let renewed = attempt.state.is_leased() && lease.granted_ms <= lease.ttl_ms;
    let late = |ms: &u64| *ms > facts.heartbeat_ms.saturating_mul(2);
    let unrenewed_ms = facts.unrenewed_ms.filter(|ms| renewed && late(ms))?;
    let words = format!(
        "its lease of {} s was last renewed {} s ago; more than two heartbeats are missing",
        lease.ttl_ms / 1_000,
        unrenewed_ms / 1_000
    );
    Some((Problem::StaleLease, words))
}

/// What the last frame named as the end is more than what is stored with its cuts.
fn stream_gap(attempt: &AttemptRecord, facts: &Facts<'_>) -> Found {
    let (last, durable) = (attempt.final_offset?, facts.durable?);
    (durable < last).then(|| {
        let words = format!("its output ends at byte {last}, and only {durable} bytes are stored");
        (Problem::StreamGap, words)
    })
}

fn regression(record: &TaskRecord, attempt: &AttemptRecord) -> Found {
    let mut events = record.timeline.events.iter().rev();
    let phase = events.find_map(|event| match &event.kind {
        EventKind::PhaseRegression(phase) if event.attempt == Some(attempt.id) => Some(*phase),
        _another => None,
    })?;
    let words = format!(
        "its daemon said {} twice or after a later phase; the word changed nothing",
        phase.as_str()
    );
    Some((Problem::PhaseRegression, words))
}
