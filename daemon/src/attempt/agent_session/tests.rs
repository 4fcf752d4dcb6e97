//! Questions of one request that close together, permissions, and an agent that does not read
//! its stdin.

use bytes::Bytes;

use super::stdin_queue::MAX_UNREAD_BYTES;
use super::*;
use crate::agents::{AgentQuestion, StdinMessage, test_agent_session};
use crate::shim::STDIN_QUEUE_BYTES_MAX;

fn ask_questions(session: &mut AgentSession) -> Vec<String> {
    let asked = |text: &str| AgentQuestion {
        text: text.to_owned(),
        allow_free_text: true,
        ..AgentQuestion::default()
    };
    let input = AgentInput {
        key: InputKey("q".to_owned()),
        tool_call_id: None,
        kind: AgentInputKind::Questions(vec![asked("This?"), asked("That?")]),
    };
    let mut emitted = Vec::new();
    session.open_request(&input, &mut emitted);
    let ids = emitted.iter().map(|emitted| match emitted {
        AgentSessionEvent::Notice(AgentNotice::Question(question)) => question.input_id.clone(),
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[test]
fn only_answered_questions_of_a_closed_request_are_received() {
    let mut session = test_agent_session();
    let ids = ask_questions(&mut session);
    session.mark_answered(&ids[0]).expect("it is open");
    let mut emitted = Vec::new();
    let key = InputKey("q".to_owned());
    session.apply_event(AgentEvent::InputAnswered { key }, &mut emitted);
    let mut notices: Vec<AgentNotice> = emitted
        .into_iter()
        .map(|emitted| match emitted {
            AgentSessionEvent::Notice(notices) => notices,
            other => panic!("{other:?}"),
        })
        .collect();
    notices.sort_by_key(|notices| matches!(notices, AgentNotice::InputWithdrawn { .. }));
    assert!(matches!(&notices[0], AgentNotice::InputReceived { input_id } if *input_id == ids[0]));
    assert!(
        matches!(&notices[1], AgentNotice::InputWithdrawn { input_id, .. } if *input_id == ids[1])
    );
    assert_eq!(session.open_inputs(), 0);
}

#[test]
fn a_permission_counts_only_for_the_exact_arguments() {
    let open = OpenInput {
        key: InputKey("p".to_owned()),
        index: 0,
        digest: Some([7; 32]),
        answered: true,
    };
    let allow = |digest: &[u8]| PermissionDecision {
        outcome: InputOutcome::Allowed.into(),
        tool_input_sha256: Bytes::copy_from_slice(digest),
        ..PermissionDecision::default()
    };
    let allowed = |digest: &[u8]| {
        matches!(
            permission_answer(&allow(digest), &open),
            AgentInputAnswer::Allow { .. }
        )
    };
    assert!(allowed(&[7; 32]));
    for other in [&[][..], &[7; 31], &[8; 32]] {
        assert!(!allowed(other), "{other:?}");
    }
}

/// The agent sends requests that get no answer from a person, and does not read its stdin.
fn ask_repeatedly(session: &mut AgentSession, times: usize) {
    let request = format!("{{\"id\":\"{}\",\"method\":\"x\"}}\n", "y".repeat(50_000));
    for _ in 0..times {
        session.push_stdout(request.as_bytes());
        while session.next_events().is_some() {}
    }
}

#[test]
fn an_agent_that_sends_requests_and_does_not_read_fails() {
    let mut session = test_agent_session();
    let refusals = |session: &AgentSession| session.unsent.len();
    ask_repeatedly(&mut session, 1);
    assert!(
        session.end.is_none() && refusals(&session) == 2,
        "{session:?}"
    );
    let each = session.unread_bytes;
    ask_repeatedly(&mut session, MAX_UNREAD_BYTES / each + 1);
    let end = session.summary().end.expect("it was ended");
    assert!(
        matches!(&end.outcome, agents::TurnOutcome::Failed(failure) if failure.code() == "output_invalid"),
        "{end:?}"
    );
    let waiting = refusals(&session);
    ask_repeatedly(&mut session, 10);
    assert_eq!(refusals(&session), waiting);
    assert!(session.unsent.back().is_some_and(|last| last.message.last));
}

#[test]
fn an_agent_that_reads_its_stdin_may_send_any_number_of_requests() {
    let mut session = test_agent_session();
    for _ in 0..3 {
        ask_repeatedly(&mut session, MAX_UNREAD_BYTES / 100_000);
        let stored = serde_json::to_vec(&session).unwrap();
        session = serde_json::from_slice(&stored).unwrap();
        session.mark_answers_stored();
        let last = session.last_stdin;
        session.on_stdin_done(last);
        assert_eq!(session.unread_bytes, 0);
    }
    assert!(session.end.is_none());
}

/// A shim that is sent more closes the connection.
#[test]
fn a_shim_is_not_sent_more_than_it_buffers() {
    let mut session = test_agent_session();
    let long = |bytes: usize| StdinMessage {
        bytes: vec![b'x'; bytes],
        last: false,
    };
    session.prompt = Some(2);
    for bytes in [STDIN_QUEUE_BYTES_MAX / 2, STDIN_QUEUE_BYTES_MAX / 2, 1] {
        session.queue_message(long(bytes), &mut Vec::new());
    }
    let sent = |session: &AgentSession, after| -> Vec<u64> {
        session
            .stdin_after(after, 0)
            .map(|stdin| stdin.id)
            .collect()
    };
    assert_eq!(sent(&session, 0), [1, 2]);
    assert_eq!(sent(&session, 2), [] as [u64; 0]);
    session.on_stdin_done(2);
    assert_eq!(sent(&session, 2), [3, 4]);
}
