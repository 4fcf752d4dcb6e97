//! Questions that end together, and what a decision allows.

use bytes::Bytes;

use super::stdin_queue::MAX_UNREAD_BYTES;
use super::*;
use crate::agents::{AgentQuestion, StdinMessage, test_agent_session};
use crate::shim::STDIN_QUEUE_BYTES_MAX;

fn ask_questions(talk: &mut AgentSession) -> Vec<String> {
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
    let mut told = Vec::new();
    talk.open_request(&input, &mut told);
    let ids = told.iter().map(|told| match told {
        AgentSessionEvent::Notice(AgentNotice::Question(question)) => question.input_id.clone(),
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[test]
fn only_answered_questions_of_a_closed_request_are_received() {
    let mut talk = test_agent_session();
    let ids = ask_questions(&mut talk);
    talk.mark_answered(&ids[0]).expect("it is open");
    let mut told = Vec::new();
    let key = InputKey("q".to_owned());
    talk.apply_event(AgentEvent::InputAnswered { key }, &mut told);
    let mut said: Vec<AgentNotice> = told
        .into_iter()
        .map(|told| match told {
            AgentSessionEvent::Notice(said) => said,
            other => panic!("{other:?}"),
        })
        .collect();
    said.sort_by_key(|said| matches!(said, AgentNotice::InputWithdrawn { .. }));
    assert!(matches!(&said[0], AgentNotice::InputReceived { input_id } if *input_id == ids[0]));
    assert!(
        matches!(&said[1], AgentNotice::InputWithdrawn { input_id, .. } if *input_id == ids[1])
    );
    assert_eq!(talk.open_inputs(), 0);
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

/// Asks what nobody answers, and reads nothing.
fn ask_repeatedly(talk: &mut AgentSession, times: usize) {
    let request = format!("{{\"id\":\"{}\",\"method\":\"x\"}}\n", "y".repeat(50_000));
    for _ in 0..times {
        talk.push_stdout(request.as_bytes());
        while talk.next_events().is_some() {}
    }
}

#[test]
fn an_agent_that_sends_requests_and_does_not_read_fails() {
    let mut talk = test_agent_session();
    let refusals = |talk: &AgentSession| talk.unsent.len();
    ask_repeatedly(&mut talk, 1);
    assert!(talk.end.is_none() && refusals(&talk) == 2, "{talk:?}");
    let each = talk.unread_bytes;
    ask_repeatedly(&mut talk, MAX_UNREAD_BYTES / each + 1);
    let end = talk.summary().end.expect("it was ended");
    assert!(
        matches!(&end.outcome, agents::TurnOutcome::Failed(failure) if failure.code() == "output_invalid"),
        "{end:?}"
    );
    let waiting = refusals(&talk);
    ask_repeatedly(&mut talk, 10);
    assert_eq!(refusals(&talk), waiting);
    assert!(talk.unsent.back().is_some_and(|last| last.message.last));
}

#[test]
fn an_agent_that_reads_its_stdin_may_send_any_number_of_requests() {
    let mut talk = test_agent_session();
    for _ in 0..3 {
        ask_repeatedly(&mut talk, MAX_UNREAD_BYTES / 100_000);
        let stored = serde_json::to_vec(&talk).unwrap();
        talk = serde_json::from_slice(&stored).unwrap();
        talk.mark_answers_stored();
        let last = talk.last_stdin;
        talk.on_stdin_done(last);
        assert_eq!(talk.unread_bytes, 0);
    }
    assert!(talk.end.is_none());
}

/// A shim that is sent more hangs up.
#[test]
fn a_shim_is_not_sent_more_than_it_buffers() {
    let mut talk = test_agent_session();
    let long = |bytes: usize| StdinMessage {
        bytes: vec![b'x'; bytes],
        last: false,
    };
    talk.prompt = Some(2);
    for bytes in [STDIN_QUEUE_BYTES_MAX / 2, STDIN_QUEUE_BYTES_MAX / 2, 1] {
        talk.queue_message(long(bytes), &mut Vec::new());
    }
    let sent = |talk: &AgentSession, after| -> Vec<u64> {
        talk.stdin_after(after, 0).map(|stdin| stdin.id).collect()
    };
    assert_eq!(sent(&talk, 0), [1, 2]);
    assert_eq!(sent(&talk, 2), [] as [u64; 0]);
    talk.on_stdin_done(2);
    assert_eq!(sent(&talk, 2), [3, 4]);
}
