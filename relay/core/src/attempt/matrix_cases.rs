//! The rows and columns of the matrix: one sample of every state and of every event.

use std::sync::Arc;

use uuid::Uuid;

use super::{Event, Forced, ForcedEnd};
use crate::id::{AttemptId, DaemonId, Incarnation, InputId, InstanceId, TokenId};
use crate::input::{CanceledBody, Completed, Errored, Sign, Termination};
use crate::record::{
    AgentHolder, Answer, AttemptRecord, DaemonHolder, Decision, End, EndState, EndedBy,
    FailureCode, Holder, InputKind, InputRecord, InputState, Lease, OpenTool, ParkCause, Parked,
    Pending, Phase, Receipt, RejectCode, State, TimerKind, Usage,
};
use crate::samples;
use crate::spec::TaskSpec;
use crate::time::Wall;
use crate::timers::TimerKey;

pub(super) type Make = Box<dyn Fn(&mut AttemptRecord)>;

pub(super) fn spec() -> TaskSpec {
    TaskSpec {
        effective_profile: crate::profile::default_for(crate::spec::TurnKind::User),
        ..samples::task_spec()
    }
}

fn holder() -> Holder {
    Holder::Daemon(DaemonHolder {
        daemon: DaemonId(Uuid::from_u128(2)),
        name: "d".into(),
        instance: InstanceId(Uuid::from_u128(3)),
        boot_id: "b".into(),
    })
}

fn agent() -> Holder {
    Holder::Agent(AgentHolder {
        token: TokenId(Uuid::from_u128(4)),
        name: "a".into(),
        incarnation: Incarnation(Uuid::from_u128(1)),
        granted_by: None,
        calls: Vec::new(),
    })
}

fn lease(confirmed: bool) -> Lease {
    Lease {
        token_hash: [0; 32],
        ttl_ms: 30_000,
        granted_ms: 30_000,
        renewals: 0,
        confirmed,
    }
}

fn input_id() -> InputId {
    InputId(Uuid::from_u128(4))
}

fn input(id: InputId) -> InputRecord {
    InputRecord {
        id,
        kind: InputKind::Permission,
        state: InputState::Open,
        payload: Arc::from([]),
        tool_name: None,
        asked: Wall(0),
        digest: [0; 32],
    }
}

fn leased(state: State, reached: Option<Phase>) -> Make {
    Box::new(move |attempt| {
        attempt.holder = Some(holder());
        attempt.lease = Some(lease(state != State::Offered));
        attempt.reached = reached;
        attempt.phase = reached;
        if matches!(state, State::ToolRunning | State::WaitingInput) {
            attempt.tools.push(OpenTool {
                id: "t".into(),
                name: "bash".into(),
            });
        }
        if state == State::WaitingInput {
            attempt.inputs.push(input(input_id()));
        }
        attempt.state = state.clone();
    })
}

fn ended(state: EndState) -> Make {
    let end = End {
        state,
        failure_code: None,
        retryable: false,
        message: None,
        user_message: None,
        by: EndedBy::Relay,
        cause_phase: None,
        exit: None,
        receipt: Receipt::Unconfirmed,
        killed_after_result: false,
        adopted_late: false,
        cleanup: None,
        at: Wall(0),
    };
    leased(State::Ended(end), Some(Phase::Started))
}

fn cleaning(pending: Option<Pending>) -> Make {
    leased(State::CleaningUp { pending }, Some(Phase::PromptWritten))
}

pub(super) fn states() -> Vec<(&'static str, Make)> {
    let deadline = Pending::Deadline {
        timer: TimerKind::StreamIdle,
        tool: None,
        phase: None,
    };
    let parked = Parked {
        cause: ParkCause::InputTimeout,
        since: Wall(0),
        receipt: Receipt::Unconfirmed,
    };
    vec![
        ("queued", Box::new(|_: &mut AttemptRecord| {}) as Make),
        ("offered", leased(State::Offered, None)),
        (
            "offered, after a relay restart",
            Box::new(|attempt| {
                leased(State::Offered, None)(attempt);
                attempt.lease = Some(lease(true));
            }),
        ),
        ("accepted", leased(State::Accepted, Some(Phase::Accepted))),
        (
            "starting",
            leased(State::Starting, Some(Phase::AgentStarted)),
        ),
        (
            "prompted",
            leased(State::Prompted, Some(Phase::PromptWritten)),
        ),
        (
            "streaming",
            leased(State::Streaming, Some(Phase::FirstEventSeen)),
        ),
        (
            "tool_running",
            leased(State::ToolRunning, Some(Phase::FirstEventSeen)),
        ),
        (
            "waiting_input",
            leased(State::WaitingInput, Some(Phase::FirstEventSeen)),
        ),
        ("cleaning_up, begun by the daemon", cleaning(None)),
        (
            "cleaning_up, begun by the daemon for a deadline",
            cleaning(Some(Pending::OwnDeadline {
                timer: TimerKind::StreamIdle,
            })),
        ),
        ("cleaning_up, for a deadline", cleaning(Some(deadline))),
        (
            "cleaning_up, for a cancel",
            cleaning(Some(Pending::Cancel { operator: false })),
        ),
        ("cleaning_up, to park", cleaning(Some(Pending::Park))),
        (
            "parked",
            leased(State::Parked(parked), Some(Phase::FirstEventSeen)),
        ),
        ("completed", ended(EndState::Completed)),
        ("failed", ended(EndState::Failed)),
        ("canceled", ended(EndState::Canceled)),
        ("timed_out", ended(EndState::TimedOut)),
        ("lost", ended(EndState::Lost)),
        ("released", ended(EndState::Released)),
        ("handed_off", ended(EndState::HandedOff)),
    ]
}

fn gone() -> Termination {
    Termination {
        group_empty: true,
        ..Termination::default()
    }
}

pub(super) fn events() -> Vec<(String, Event)> {
    let mut events = relay_events();
    events.extend(phase_events());
    events.extend(frame_events());
    events.extend(timer_events());
    events
}

fn named(list: Vec<(&str, Event)>) -> Vec<(String, Event)> {
    list.into_iter()
        .map(|(name, event)| (name.to_owned(), event))
        .collect()
}

fn forced(into: ForcedEnd) -> Event {
    let reason = "r".into();
    Event::Forced(Forced { into, reason })
}

fn relay_events() -> Vec<(String, Event)> {
    let answer = Answer {
        by: "p".into(),
        at: Wall(0),
        decision: Decision::Allowed,
        rule: None,
        payload: Arc::from([]),
    };
    let by_hand = forced(ForcedEnd::Completed { result: None });
    named(vec![
        (
            "offer",
            Event::Offer {
                holder: holder(),
                lease: lease(false),
            },
        ),
        (
            "claimed by an agent",
            Event::Claim {
                holder: agent(),
                lease: lease(true),
            },
        ),
        ("delivery failed", Event::DeliveryFailed),
        ("withdraw", Event::Withdraw),
        (
            "hand off",
            Event::HandOff {
                successor: AttemptId(Uuid::from_u128(9)),
                to: "p".into(),
            },
        ),
        ("kept by settlement", Event::Kept),
        ("missing", Event::Missing),
        ("rebooted", Event::Rebooted),
        (
            "park",
            Event::Park {
                cause: ParkCause::Blocked,
                termination: None,
            },
        ),
        ("cancel asked", Event::CancelAsked { operator: false }),
        ("forced to be released", forced(ForcedEnd::Released)),
        ("forced to fail", forced(ForcedEnd::Failed)),
        ("completed by hand", by_hand),
        ("input answered", Event::Answered(input_id(), answer)),
    ])
}

fn phase_events() -> Vec<(String, Event)> {
    let phases = [
        Phase::Queued,
        Phase::Started,
        Phase::AgentStarted,
        Phase::PromptWritten,
        Phase::FirstEventSeen,
        Phase::FirstVisibleEventSeen,
        Phase::Streaming,
        Phase::CleanupStarted,
        Phase::CleanupFinished,
        Phase::Heartbeat,
        Phase::Completed,
    ];
    let phases = phases
        .into_iter()
        .map(|phase| (format!("phase {}", phase.as_str()), Event::Phase(phase)));
    let own = (
        "phase cleanup_started, deadline".to_owned(),
        Event::OwnDeadline(TimerKind::StreamIdle),
    );
    phases.chain([own]).collect()
}

fn errored(code: FailureCode) -> Event {
    Event::Errored(Errored {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: Usage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: gone(),
        in_lease: true,
    })
}

fn frame_events() -> Vec<(String, Event)> {
    let completed = Completed {
        termination: gone(),
        in_lease: true,
        ..Completed::default()
    };
    let canceled = CanceledBody {
        termination: gone(),
        in_lease: true,
        ..CanceledBody::default()
    };
    let other = InputId(Uuid::from_u128(5));
    let tool = OpenTool {
        id: "n".into(),
        name: "ls".into(),
    };
    let output = |sign| Event::Output {
        sign,
        tools: Vec::new(),
        end: 1,
    };
    named(vec![
        ("accepted", Event::Accepted),
        (
            "rejected",
            Event::Rejected {
                code: RejectCode::AtCapacity,
                message: None,
            },
        ),
        ("tool started", Event::ToolStarted(tool)),
        ("tool finished", Event::ToolFinished("t".into())),
        (
            "input asked",
            Event::InputAsked(Box::new(input(other)), None),
        ),
        ("input withdrawn", Event::InputWithdrawn(input_id())),
        ("input received", Event::InputReceived(input_id())),
        ("output before the prompt", output(Sign::BeforePrompt)),
        ("output", output(Sign::Event)),
        ("output, visible", output(Sign::VisibleEvent)),
        ("completed", Event::Completed(completed.clone())),
        ("completed, files missing", Event::Unmet(completed)),
        ("errored agent_exit", errored(FailureCode::AgentExit)),
        (
            "errored stream_idle_timeout",
            errored(FailureCode::StreamIdleTimeout),
        ),
        ("canceled", Event::Canceled(canceled)),
        (
            "released",
            Event::Released {
                reason: None,
                termination: gone(),
            },
        ),
        ("receipt", Event::Receipt(gone())),
    ])
}

fn timer_events() -> Vec<(String, Event)> {
    let key = |timer| match timer {
        TimerKind::Queue => TimerKey::Queue,
        TimerKind::Accept => TimerKey::Accept,
        TimerKind::ProcessStart => TimerKey::ProcessStart,
        TimerKind::PromptWrite => TimerKey::PromptWrite,
        TimerKind::FirstEvent => TimerKey::FirstEvent,
        TimerKind::FirstVisibleEvent => TimerKey::FirstVisibleEvent,
        TimerKind::StreamIdle => TimerKey::StreamIdle,
        TimerKind::ToolIdle => TimerKey::ToolIdle("t".into()),
        TimerKind::UserInput => TimerKey::UserInput(input_id()),
        TimerKind::CleanupTerm => TimerKey::CleanupTerm,
        TimerKind::Total => TimerKey::Total,
        TimerKind::Lease => TimerKey::Lease,
    };
    let name = |timer: TimerKind| format!("timer {}", timer.as_str());
    TimerKind::ALL
        .into_iter()
        .map(|timer| (name(timer), Event::Expired(key(timer))))
        .collect()
}
