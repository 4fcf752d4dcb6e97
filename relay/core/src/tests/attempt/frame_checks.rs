//! Tests of the checks of frames and their order. A frame that fails a check writes nothing.

use crate::ids::{AttemptId, Incarnation, SessionId, TaskId};
use crate::io::effects::{CoreMetric, DaemonMessage, Delivery};
use crate::io::rejection::Rejection;
use crate::io::session_input::SessionInput;
use crate::io::session_input::{AttemptFrame, FrameBody, LeaseToken};
use crate::record::{AttemptStateKind, LifecyclePhase, TaskState};
use crate::tests::harness::{CoreHarness, DispatchedAttempt, completed, spec};

type FrameChange<'a> = &'a dyn Fn(&mut AttemptFrame);

/// Frames that differ from a valid one in one field.
fn bad_frames(
    own: SessionId,
    foreign: SessionId,
    work: &DispatchedAttempt,
) -> Vec<(&'static str, Rejection, SessionInput)> {
    let nil = uuid::Uuid::from_u128(9);
    let rows: [(&str, Rejection, FrameChange<'_>); 8] = [
        ("another incarnation", Rejection::StaleIncarnation, &|f| {
            f.frame_ref.incarnation = Incarnation(nil)
        }),
        ("unknown task", Rejection::UnknownAttempt, &|f| {
            f.frame_ref.task = TaskId(nil)
        }),
        ("unknown attempt", Rejection::UnknownAttempt, &|f| {
            f.frame_ref.attempt = AttemptId(nil)
        }),
        ("another number", Rejection::UnknownAttempt, &|f| {
            f.frame_ref.number = 2
        }),
        ("another daemon", Rejection::UnknownAttempt, &|f| {
            f.session = foreign
        }),
        ("wrong token", Rejection::BadProof, &|f| {
            f.proof = Some(LeaseToken([1; 32]))
        }),
        ("a gap", Rejection::Gap, &|f| f.control_seq = 4),
        ("wrong order", Rejection::WrongOrder, &|f| {
            f.body = FrameBody::Accepted
        }),
    ];
    let frame = |change: FrameChange<'_>| {
        let mut frame = AttemptFrame {
            session: own,
            frame_ref: work.frame_ref,
            control_seq: 3,
            observed: crate::time::WallTime(0),
            proof: Some(work.token.clone()),
            body: completed(),
            workspace: None,
        };
        change(&mut frame);
        SessionInput::Frame(Box::new(frame))
    };
    rows.into_iter()
        .map(|(name, code, change)| (name, code, frame(change)))
        .collect()
}

#[test]
fn each_failed_frame_check_has_its_own_code_and_writes_nothing() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let thief = world.connect_daemon(2);
    let task = world.submit(spec());
    let work = world.take_started();
    let rows = bad_frames(machine.session, thief.session, &work);
    for (name, code, input) in rows {
        let writes = world.writes;
        world.deliveries.clear();
        world.send_input(input);
        let rejected = world.deliveries.iter().find_map(|send| match send {
            Delivery::ToSession {
                message: DaemonMessage::FrameRejected { code, .. },
                ..
            } => Some(*code),
            _ => None,
        });
        assert_eq!(rejected, Some(code), "{name}");
        assert_eq!(world.writes, writes, "{name} wrote something");
        assert_eq!(
            world.attempt_state(task),
            AttemptStateKind::Starting,
            "{name}"
        );
    }
    let mut work = work;
    work.seq = 3;
    world.frame(&mut work, completed());
    assert_eq!(
        world.state(task),
        TaskState::Completed,
        "refused frames consume their numbers and the stream goes on"
    );
}

#[test]
fn frames_of_a_replaced_stream_are_ignored() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let mut newer = machine;
    world.reconnect(
        &mut newer,
        &[(
            &work.clone(),
            crate::io::session_input::ActiveAttemptState::Running,
        )],
    );
    let (writes, old) = (world.writes, work.session);
    assert_ne!(old, newer.session);
    world.frame(&mut work, completed());
    assert_eq!(
        (world.writes, world.attempt_state(task)),
        (writes, AttemptStateKind::Starting)
    );
    world.send_input(SessionInput::Closed { session: old });
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    work.session = newer.session;
    world.replay(&work.clone(), work.seq, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn replayed_frames_are_acknowledged_and_a_second_end_changes_nothing() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let writes = world.writes;
    world.take_messages(&machine);
    world.replay(&work.clone(), 2, FrameBody::Started);
    assert!(matches!(
        world.take_messages(&machine)[..],
        [DaemonMessage::Ack { control_seq: 2, .. }]
    ));
    assert_eq!(world.writes, writes);
    world.frame(&mut work, completed());
    let done = world.task(task);
    let writes = world.writes;
    world.take_messages(&machine);
    world.replay(&work.clone(), 3, completed());
    assert!(matches!(
        world.take_messages(&machine)[..],
        [DaemonMessage::Ack { control_seq: 3, .. }]
    ));
    assert_eq!(world.writes, writes);
    // A second end with a new number is recorded as evidence once.
    world.replay(
        &work.clone(),
        4,
        crate::tests::harness::errored(crate::record::FailureCode::AgentExit, 1),
    );
    world.replay(
        &work.clone(),
        5,
        crate::tests::harness::errored(crate::record::FailureCode::AgentExit, 2),
    );
    let now = world.task(task);
    assert_eq!(
        (now.state, now.newest_attempt().unwrap().state.clone()),
        (
            TaskState::Completed,
            done.newest_attempt().unwrap().state.clone()
        )
    );
    assert!(now.newest_attempt().unwrap().has_late_terminal && now.revision == done.revision + 1);
}

#[test]
fn frames_of_an_earlier_attempt_change_nothing() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut first = world.dispatch();
    world.advance_renewing(12_000, &machine, &[]);
    let second = world.dispatch();
    assert_eq!(second.frame_ref.number, 2);
    world.take_messages(&machine);
    let before = world.task(task);
    world.frame(&mut first, FrameBody::Accepted);
    world.phase(&mut first, LifecyclePhase::FirstVisibleEventSeen);
    assert_eq!(
        world.rejections(&machine),
        [Rejection::StaleAttempt, Rejection::StaleAttempt]
    );
    assert_eq!(world.task(task), before);
    world.frame(&mut first, completed());
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::Offered,
        "a result of the wrong attempt"
    );
    assert!(world.task(task).attempts[0].has_late_terminal);
}

#[test]
fn an_unknown_frame_consumes_its_number_and_is_counted() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let frame = AttemptFrame {
        session: machine.session,
        frame_ref: work.frame_ref,
        control_seq: 3,
        observed: crate::time::WallTime(0),
        proof: None,
        body: FrameBody::Unknown,
        workspace: None,
    };
    let effects = world.core.handle(
        SessionInput::Frame(Box::new(frame)).into(),
        &world.store,
        world.now,
        &mut world.ids,
    );
    assert!(effects.changes.is_empty() && effects.metrics == [CoreMetric::UnknownFrame]);
    work.seq = 3;
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    let nobody = SessionId(uuid::Uuid::from_u128(404));
    work.session = nobody;
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}
