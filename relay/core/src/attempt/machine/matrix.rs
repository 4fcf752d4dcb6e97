//! Records the effect of every event in every state and compares it with the reviewed file.
//!
//! `BATON_BLESS=1 cargo test -p baton-core matrix` rewrites the file; its diff is reviewed like
//! code.

use std::fmt::Write as _;

use uuid::Uuid;

use super::matrix_cases::{AttemptSetup, events, spec, states};
use super::{AttemptMachine, EventOutcome, MachineEvent};
use crate::attempt::timers::{TimerFact, TimerKey, TimerLimits, TimerSet};
use crate::ids::AttemptId;
use crate::record::{AttemptRecord, AttemptState, FailureCode, PendingEnd};
use crate::samples;
use crate::time::{ClockReading, MonotonicTime, WallTime};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attempt.transitions.txt");

#[test]
fn every_event_in_every_state_matches_the_reviewed_matrix() {
    let matrix = matrix();
    if std::env::var_os("BATON_BLESS").is_some() {
        std::fs::write(FILE, &matrix).unwrap();
    }
    let reviewed = std::fs::read_to_string(FILE).unwrap_or_default();
    for (line, (now, then)) in matrix.lines().zip(reviewed.lines()).enumerate() {
        assert_eq!(now, then, "line {} differs from {FILE}", line + 1);
    }
    assert_eq!(
        matrix.lines().count(),
        reviewed.lines().count(),
        "{FILE} has a different number of lines"
    );
}

fn matrix() -> String {
    let mut text = String::from(
        "What each event does to an attempt in each state, written by attempt/machine/matrix.rs and reviewed.\n\
         \"-> state\" is a transition with the end's code and receipt; \"stays\" is an effect without a transition.\n\
         If a lost stream makes a difference, both are given: connected | disconnected.\n",
    );
    for (name, make) in states() {
        writeln!(text, "\n{name}").unwrap();
        for (event_name, event) in events() {
            let with = outcome(&make, &event, true);
            let without = outcome(&make, &event, false);
            let line = if with == without {
                with
            } else {
                format!("{with} | {without}")
            };
            writeln!(text, "    {event_name:<31} {line}").unwrap();
        }
    }
    text
}

fn outcome(make: &AttemptSetup, event: &MachineEvent, connected: bool) -> String {
    let (config, spec) = (samples::config(), spec());
    let mut attempt = AttemptRecord::queued(AttemptId(Uuid::from_u128(1)), 1, [1; 8], WallTime(0));
    make(&mut attempt);
    let limits = TimerLimits::of_task(&spec, &config);
    let mut timers = TimerSet::default();
    timers.on_fact(&TimerFact::Offered, MonotonicTime(0), &limits);
    let before = attempt.clone();
    let now = ClockReading {
        monotonic: MonotonicTime(1),
        wall: WallTime(1),
    };
    let mut machine = AttemptMachine {
        attempt: &mut attempt,
        timers: &mut timers,
        spec: &spec,
        limits,
        config: &config,
        connected,
        now,
        timeline_events: Vec::new(),
    };
    let outcome = machine.apply(event.clone());
    if outcome != EventOutcome::Applied {
        assert_eq!(
            before.state, attempt.state,
            "{outcome:?} must not change the state"
        );
    }
    if attempt.state.is_leased() {
        assert!(
            timers.is_armed(&TimerKey::Lease),
            "a leased attempt always has a lease timer"
        );
    }
    match outcome {
        EventOutcome::Applied if before.state == attempt.state => "stays".to_owned(),
        EventOutcome::Applied => format!("-> {}", describe(&attempt.state)),
        EventOutcome::Ignored => "ignored".to_owned(),
        EventOutcome::Regressed => "regressed".to_owned(),
        EventOutcome::Refused(code) => format!("refused {}", code.as_str()),
        EventOutcome::Late => "late".to_owned(),
    }
}

fn describe(state: &AttemptState) -> String {
    let name = state.kind().as_str();
    match state {
        AttemptState::Ended(end) => {
            let code = end.failure_code.as_ref().map_or("-", FailureCode::as_str);
            format!("{name} ({code}, {})", end.receipt.as_str())
        }
        AttemptState::Parked(parked) => {
            format!("{name} ({:?}, {})", parked.cause, parked.receipt.as_str())
        }
        AttemptState::CleaningUp { pending } => match pending {
            None => format!("{name} (own)"),
            Some(PendingEnd::Deadline { timer, .. }) => format!("{name} ({})", timer.as_str()),
            Some(PendingEnd::Cancel { .. }) => format!("{name} (cancel)"),
            Some(PendingEnd::Park) => format!("{name} (park)"),
            Some(PendingEnd::DaemonDeadline { timer }) => {
                format!("{name} (own, {})", timer.as_str())
            }
        },
        AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput => name.to_owned(),
    }
}
