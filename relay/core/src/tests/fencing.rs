//! Who may speak, and in which order. What fails a check writes nothing.

use super::world::{Work, World, completed, spec};
use crate::effects::{Count, Downstream, Send};
use crate::id::{AttemptId, Incarnation, SessionId, TaskId};
use crate::input::{Frame, FrameBody, Input, LeaseToken};
use crate::record::{AttemptState, Phase, TaskState};
use crate::reject::Rejection;

type Change<'a> = &'a dyn Fn(&mut Frame);

/// Each differs from a good one in one thing.
fn bad_frames(
    own: SessionId,
    foreign: SessionId,
    work: &Work,
) -> Vec<(&'static str, Rejection, Input)> {
    let nil = uuid::Uuid::from_u128(9);
    let rows: [(&str, Rejection, Change<'_>); 8] = [
        ("another incarnation", Rejection::StaleIncarnation, &|f| {
            f.re.incarnation = Incarnation(nil)
        }),
        ("unknown task", Rejection::UnknownAttempt, &|f| {
            f.re.task = TaskId(nil)
        }),
        ("unknown attempt", Rejection::UnknownAttempt, &|f| {
            f.re.attempt = AttemptId(nil)
        }),
        ("another number", Rejection::UnknownAttempt, &|f| {
            f.re.number = 2
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
    let frame = |change: Change<'_>| {
        let mut frame = Frame {
            session: own,
            re: work.re,
            control_seq: 3,
            observed: crate::time::Wall(0),
            proof: Some(work.token.clone()),
            body: completed(),
            workspace: None,
            finished: None,
            known: Ok(None),
        };
        change(&mut frame);
        Input::Frame(Box::new(frame))
    };
    rows.into_iter()
        .map(|(name, code, change)| (name, code, frame(change)))
        .collect()
}

#[test]
fn each_failed_check_has_its_own_code_and_writes_nothing() {
    let mut world = World::new();
    let machine = world.machine(1);
    let thief = world.machine(2);
    let task = world.submit(spec());
    let work = world.started();
    let rows = bad_frames(machine.session, thief.session, &work);
    for (name, code, input) in rows {
        let writes = world.writes;
        world.sent.clear();
        world.say(input);
        let rejected = world.sent.iter().find_map(|send| match send {
            Send::ToSession {
                message: Downstream::FrameRejected { code, .. },
                ..
            } => Some(*code),
            _ => None,
        });
        assert_eq!(rejected, Some(code), "{name}");
        assert_eq!(world.writes, writes, "{name} wrote something");
        assert_eq!(world.attempt_state(task), AttemptState::Starting, "{name}");
    }
    let mut work = work;
    work.seq = 3;
    world.frame(&mut work, completed());
    assert_eq!(
        world.state(task),
        TaskState::Completed,
        "refused numbers are used up; the stream goes on"
    );
}

#[test]
fn a_stream_that_was_replaced_says_nothing_any_more() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    let mut newer = machine;
    world.reconnect(
        &mut newer,
        &[(&work.clone(), crate::input::ActiveState::Running)],
    );
    let (writes, old) = (world.writes, work.session);
    assert_ne!(old, newer.session);
    world.frame(&mut work, completed());
    assert_eq!(
        (world.writes, world.attempt_state(task)),
        (writes, AttemptState::Starting)
    );
    world.say(Input::SessionClosed { session: old });
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    work.session = newer.session;
    world.replay(&work.clone(), work.seq, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn replayed_frames_are_acknowledged_and_a_second_end_changes_nothing() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    let writes = world.writes;
    world.told(&machine);
    world.replay(&work.clone(), 2, FrameBody::Started);
    assert!(matches!(
        world.told(&machine)[..],
        [Downstream::Ack { control_seq: 2, .. }]
    ));
    assert_eq!(world.writes, writes);
    world.frame(&mut work, completed());
    let done = world.task(task);
    let writes = world.writes;
    world.told(&machine);
    world.replay(&work.clone(), 3, completed());
    assert!(matches!(
        world.told(&machine)[..],
        [Downstream::Ack { control_seq: 3, .. }]
    ));
    assert_eq!(world.writes, writes);
    // Another end with a new number is evidence, once.
    world.replay(
        &work.clone(),
        4,
        super::world::errored(crate::record::FailureCode::AgentExit, 1),
    );
    world.replay(
        &work.clone(),
        5,
        super::world::errored(crate::record::FailureCode::AgentExit, 2),
    );
    let now = world.task(task);
    assert_eq!(
        (now.state, now.newest().unwrap().state.clone()),
        (TaskState::Completed, done.newest().unwrap().state.clone())
    );
    assert!(now.newest().unwrap().late_terminal && now.revision == done.revision + 1);
}

#[test]
fn frames_of_an_earlier_attempt_change_nothing_once_its_successor_is_leased() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let mut first = world.dispatch();
    world.pass_renewing(12_000, &machine, &[]);
    let second = world.dispatch();
    assert_eq!(second.re.number, 2);
    world.told(&machine);
    let before = world.task(task);
    world.frame(&mut first, FrameBody::Accepted);
    world.phase(&mut first, Phase::FirstVisibleEventSeen);
    assert_eq!(
        world.rejections(&machine),
        [Rejection::StaleAttempt, Rejection::StaleAttempt]
    );
    assert_eq!(world.task(task), before);
    world.frame(&mut first, completed());
    assert_eq!(
        world.attempt_state(task),
        AttemptState::Offered,
        "a result of the wrong attempt"
    );
    assert!(world.task(task).attempts[0].late_terminal);
}

#[test]
fn an_unknown_frame_takes_its_number_and_is_counted() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    let frame = Frame {
        session: machine.session,
        re: work.re,
        control_seq: 3,
        observed: crate::time::Wall(0),
        proof: None,
        body: FrameBody::Unknown,
        workspace: None,
        finished: None,
        known: Ok(None),
    };
    let effects = world
        .core
        .handle(Input::Frame(Box::new(frame)), world.now, &mut world.mint);
    assert!(effects.writes.is_empty() && effects.counts == [Count::UnknownFrame]);
    work.seq = 3;
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    let nobody = SessionId(uuid::Uuid::from_u128(404));
    work.session = nobody;
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}
