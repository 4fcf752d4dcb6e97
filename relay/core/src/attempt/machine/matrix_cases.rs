//! Rows and columns of the matrix: one sample of every state and every event.

use std::sync::Arc;

use uuid::Uuid;

use super::{ForceAttemptEnd, ForcedEnd, MachineEvent};
use crate::attempt::timers::TimerKey;
use crate::ids::{AttemptId, DaemonId, Incarnation, InputId, InstanceId, TokenId};
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, OutputSignal, ProcessTermination,
};
use crate::record::{
    AgentHolder, AttemptEnd, AttemptRecord, AttemptState, DaemonHolder, EndState, EndedBy,
    FailureCode, InputDecision, InputKind, InputRecord, InputState, LeaseHolder, LeaseRecord,
    LifecyclePhase, OpenTool, ParkCause, ParkedState, PendingEnd, RejectCode, StoredAnswer,
    TerminationReceipt, TimerKind, TokenUsage,
};
use crate::samples;
use crate::task::spec::TaskSpec;
use crate::time::WallTime;

pub(super) type AttemptSetup = Box<dyn Fn(&mut AttemptRecord)>;

pub(super) fn spec() -> TaskSpec {
    TaskSpec {
        effective_profile: crate::attempt::deadline_profile::default_for_turn(
            crate::task::spec::TurnKind::User,
        ),
        ..samples::task_spec()
    }
}

fn holder() -> LeaseHolder {
    LeaseHolder::Daemon(DaemonHolder {
        daemon: DaemonId(Uuid::from_u128(2)),
        name: "d".into(),
        instance: InstanceId(Uuid::from_u128(3)),
        boot_id: "b".into(),
    })
}

fn agent() -> LeaseHolder {
    LeaseHolder::Agent(AgentHolder {
        token: TokenId(Uuid::from_u128(4)),
        name: "a".into(),
        incarnation: Incarnation(Uuid::from_u128(1)),
        granting_call: None,
        answered_calls: Vec::new(),
    })
}

fn lease(confirmed: bool) -> LeaseRecord {
    LeaseRecord {
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
        asked: WallTime(0),
        digest: [0; 32],
    }
}

fn leased(state: AttemptState, reached: Option<LifecyclePhase>) -> AttemptSetup {
    Box::new(move |attempt| {
        attempt.holder = Some(holder());
        attempt.lease = Some(lease(state != AttemptState::Offered));
        attempt.furthest_phase = reached;
        attempt.phase = reached;
        if matches!(
            state,
            AttemptState::ToolRunning | AttemptState::WaitingInput
        ) {
            attempt.open_tools.push(OpenTool {
                id: "t".into(),
                name: "bash".into(),
            });
        }
        if state == AttemptState::WaitingInput {
            attempt.inputs.push(input(input_id()));
        }
        attempt.state = state.clone();
    })
}

fn ended(state: EndState) -> AttemptSetup {
    let end = AttemptEnd {
        state,
        failure_code: None,
        retryable: false,
        message: None,
        user_message: None,
        ended_by: EndedBy::Relay,
        cause_phase: None,
        exit: None,
        receipt: TerminationReceipt::Unconfirmed,
        killed_after_result: false,
        is_adopted_late: false,
        cleanup: None,
        at: WallTime(0),
    };
    leased(AttemptState::Ended(end), Some(LifecyclePhase::Started))
}

fn cleaning(pending: Option<PendingEnd>) -> AttemptSetup {
    leased(
        AttemptState::CleaningUp { pending },
        Some(LifecyclePhase::PromptWritten),
    )
}

pub(super) fn states() -> Vec<(&'static str, AttemptSetup)> {
    let mut states = open_states();
    states.extend(cleanup_states());
    states.extend(ended_states());
    states
}

fn open_states() -> Vec<(&'static str, AttemptSetup)> {
    vec![
        (
            "queued",
            Box::new(|_: &mut AttemptRecord| {}) as AttemptSetup,
        ),
        ("offered", leased(AttemptState::Offered, None)),
        (
            "offered, after a relay restart",
            Box::new(|attempt| {
                leased(AttemptState::Offered, None)(attempt);
                attempt.lease = Some(lease(true));
            }),
        ),
        (
            "accepted",
            leased(AttemptState::Accepted, Some(LifecyclePhase::Accepted)),
        ),
        (
            "starting",
            leased(AttemptState::Starting, Some(LifecyclePhase::AgentStarted)),
        ),
        (
            "prompted",
            leased(AttemptState::Prompted, Some(LifecyclePhase::PromptWritten)),
        ),
        (
            "streaming",
            leased(
                AttemptState::Streaming,
                Some(LifecyclePhase::FirstEventSeen),
            ),
        ),
        (
            "tool_running",
            leased(
                AttemptState::ToolRunning,
                Some(LifecyclePhase::FirstEventSeen),
            ),
        ),
        (
            "waiting_input",
            leased(
                AttemptState::WaitingInput,
                Some(LifecyclePhase::FirstEventSeen),
            ),
        ),
    ]
}

fn cleanup_states() -> Vec<(&'static str, AttemptSetup)> {
    let deadline = PendingEnd::Deadline {
        timer: TimerKind::StreamIdle,
        tool: None,
        phase: None,
    };
    vec![
        ("cleaning_up, begun by the daemon", cleaning(None)),
        (
            "cleaning_up, begun by the daemon for a deadline",
            cleaning(Some(PendingEnd::DaemonDeadline {
                timer: TimerKind::StreamIdle,
            })),
        ),
        ("cleaning_up, for a deadline", cleaning(Some(deadline))),
        (
            "cleaning_up, for a cancel",
            cleaning(Some(PendingEnd::Cancel { operator: false })),
        ),
        ("cleaning_up, to park", cleaning(Some(PendingEnd::Park))),
    ]
}

fn ended_states() -> Vec<(&'static str, AttemptSetup)> {
    let parked = ParkedState {
        cause: ParkCause::InputTimeout,
        since: WallTime(0),
        receipt: TerminationReceipt::Unconfirmed,
    };
    vec![
        (
            "parked",
            leased(
                AttemptState::Parked(parked),
                Some(LifecyclePhase::FirstEventSeen),
            ),
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

fn gone() -> ProcessTermination {
    ProcessTermination {
        group_empty: true,
        ..ProcessTermination::default()
    }
}

pub(super) fn events() -> Vec<(String, MachineEvent)> {
    let mut events = relay_events();
    events.extend(phase_events());
    events.extend(frame_events());
    events.extend(timer_events());
    events
}

fn named(list: Vec<(&str, MachineEvent)>) -> Vec<(String, MachineEvent)> {
    list.into_iter()
        .map(|(name, event)| (name.to_owned(), event))
        .collect()
}

fn forced(into: ForcedEnd) -> MachineEvent {
    let reason = "r".into();
    MachineEvent::Forced(ForceAttemptEnd { end: into, reason })
}

fn relay_events() -> Vec<(String, MachineEvent)> {
    let answer = StoredAnswer {
        by: "p".into(),
        at: WallTime(0),
        decision: InputDecision::Allowed,
        rule: None,
        payload: Arc::from([]),
    };
    let by_hand = forced(ForcedEnd::Completed { result: None });
    named(vec![
        (
            "offer",
            MachineEvent::Offer {
                holder: holder(),
                lease: lease(false),
            },
        ),
        (
            "claimed by an agent",
            MachineEvent::Claim {
                holder: agent(),
                lease: lease(true),
            },
        ),
        ("delivery failed", MachineEvent::DeliveryFailed),
        ("withdraw", MachineEvent::Withdraw),
        (
            "hand off",
            MachineEvent::HandOff {
                successor: AttemptId(Uuid::from_u128(9)),
                to: "p".into(),
            },
        ),
        ("kept by settlement", MachineEvent::KeptBySettlement),
        ("missing", MachineEvent::MissingOnDaemon),
        ("rebooted", MachineEvent::Rebooted),
        (
            "park",
            MachineEvent::Park {
                cause: ParkCause::Blocked,
                termination: None,
            },
        ),
        (
            "cancel asked",
            MachineEvent::CancelAsked { operator: false },
        ),
        ("forced to be released", forced(ForcedEnd::Released)),
        ("forced to fail", forced(ForcedEnd::Failed)),
        ("completed by hand", by_hand),
        ("input answered", MachineEvent::Answered(input_id(), answer)),
    ])
}

fn phase_events() -> Vec<(String, MachineEvent)> {
    let phases = [
        LifecyclePhase::Queued,
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::Streaming,
        LifecyclePhase::CleanupStarted,
        LifecyclePhase::CleanupFinished,
        LifecyclePhase::Heartbeat,
        LifecyclePhase::Completed,
    ];
    let phases = phases.into_iter().map(|phase| {
        (
            format!("phase {}", phase.as_str()),
            MachineEvent::Phase(phase),
        )
    });
    let own = (
        "phase cleanup_started, deadline".to_owned(),
        MachineEvent::DaemonDeadline(TimerKind::StreamIdle),
    );
    phases.chain([own]).collect()
}

fn errored(code: FailureCode) -> MachineEvent {
    MachineEvent::Errored(ErroredBody {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: TokenUsage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: gone(),
        ended_in_lease: true,
    })
}

fn frame_events() -> Vec<(String, MachineEvent)> {
    let completed = CompletedBody {
        termination: gone(),
        ended_in_lease: true,
        ..CompletedBody::default()
    };
    let canceled = CanceledBody {
        termination: gone(),
        ended_in_lease: true,
        ..CanceledBody::default()
    };
    let other = InputId(Uuid::from_u128(5));
    let tool = OpenTool {
        id: "n".into(),
        name: "ls".into(),
    };
    let output = |sign| MachineEvent::Output {
        sign,
        tools: Vec::new(),
        end: 1,
    };
    named(vec![
        ("accepted", MachineEvent::Accepted),
        (
            "rejected",
            MachineEvent::Rejected {
                code: RejectCode::AtCapacity,
                message: None,
            },
        ),
        ("tool started", MachineEvent::ToolStarted(tool)),
        ("tool finished", MachineEvent::ToolFinished("t".into())),
        (
            "input asked",
            MachineEvent::InputAsked(Box::new(input(other)), None),
        ),
        ("input withdrawn", MachineEvent::InputWithdrawn(input_id())),
        ("input received", MachineEvent::InputReceived(input_id())),
        (
            "output before the prompt",
            output(OutputSignal::BeforePrompt),
        ),
        ("output", output(OutputSignal::Event)),
        ("output, visible", output(OutputSignal::VisibleEvent)),
        ("completed", MachineEvent::Completed(completed.clone())),
        (
            "completed, files missing",
            MachineEvent::ContractUnmet(completed),
        ),
        ("errored agent_exit", errored(FailureCode::AgentExit)),
        (
            "errored stream_idle_timeout",
            errored(FailureCode::StreamIdleTimeout),
        ),
        ("canceled", MachineEvent::Canceled(canceled)),
        (
            "released",
            MachineEvent::Released {
                reason: None,
                termination: gone(),
            },
        ),
        ("receipt", MachineEvent::Receipt(gone())),
    ])
}

fn timer_events() -> Vec<(String, MachineEvent)> {
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
        .map(|timer| (name(timer), MachineEvent::TimerExpired(key(timer))))
        .collect()
}
