//! An agent whose turn ended without its files is asked for them, once, and has another turn.

use super::*;

/// The same output, when the agent is asked at the end of its turn for a missing file.
const FURTHER: [(ChildPipe, &str); 5] = [
    (
        ChildPipe::Stdout,
        r#"{"id":3,"result":{"turn":{"id":"tv"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"turn/started","params":{"threadId":"th","turn":{"id":"tv"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"o","delta":"Made it."}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"th","turnId":"tv","tokenUsage":{"total":{"inputTokens":15},"last":{"inputTokens":6}}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"turn/completed","params":{"threadId":"th","turn":{"id":"tv","status":"completed"}}}"#,
    ),
];

fn two_turns() -> AgentScript {
    AgentScript {
        lines: LINES.into_iter().chain(FURTHER).collect(),
        talk: test_agent_session().with_further_turns(),
    }
}

proptest! {
    #[test]
    fn missing_files_are_reported_to_the_agent_once_across_restarts(
        cuts in prop::collection::vec(0usize..200, 1..5),
        deaths in prop::collection::vec(0usize..30, 0..6),
    ) {
        let script = two_turns();
        let (undisturbed, _) = play(&script, &[0], Vec::new());
        let (world, reader) = play(&script, &cuts, deaths);
        prop_assert_eq!(&world.stdin, &undisturbed.stdin);
        prop_assert_eq!(&world.said, &undisturbed.said);
        let end = reader.agent_summary().unwrap().end.unwrap();
        prop_assert_eq!(end.outcome, crate::agents::TurnOutcome::Result("Made it.".to_owned()));
        prop_assert_eq!(end.usage.unwrap().tokens.input, 10, "4 of the first turn and 6 of the second");
    }
}

#[test]
fn a_result_without_its_files_causes_another_turn() {
    let limits = DeadlineLimits {
        stream_idle: Some(std::time::Duration::from_millis(100)),
        ..DeadlineLimits::default()
    };
    let talk = test_agent_session().with_further_turns();
    let mut reader = TranscriptReader::new(limits).with_agent_session(Box::new(talk));
    reader.enter_phase(OneTimePhase::Started, None, at(1));
    for (kind, line) in LINES {
        reader.push(kind, format!("{line}\n").as_bytes(), at(10));
    }
    entered(&mut reader);
    assert!(reader.awaits_file_check() && !reader.is_past_self_exit(at(60_000)));
    assert_eq!(
        reader.expired_deadline(at(5_000)),
        None,
        "the files are being checked"
    );
    assert_eq!(reader.deadline_at(), None, "there is no reason to wake up");
    let sent = reader.stdin_after(0, u64::MAX).last().unwrap().id;

    reader.on_files_checked(&missing(), Path::new("/work"), at(5_000));
    let mut stored = 0;
    let mut output_text = String::new();
    while let Some(event) = reader.next_event(at(5_000)) {
        stored = event.progress().unwrap().answer_count.max(stored);
        if let AttemptEvent::Output { chunk, .. } = event {
            output_text += &String::from_utf8_lossy(&chunk.bytes);
        }
    }
    assert!(output_text.contains("out/a: missing"), "{output_text}");
    assert_eq!(
        reader.stdin_after(sent, stored - 1).count(),
        0,
        "not stored"
    );
    let prompt = reader.stdin_after(sent, stored).next().unwrap();
    let text = String::from_utf8_lossy(&prompt.data).into_owned();
    assert!(
        text.contains("turn/start") && text.contains("- out/a: missing"),
        "{text}"
    );
    assert!(text.contains("/work"), "{text}");
    assert!(!prompt.close);
    assert_eq!(reader.expired_deadline(at(5_099)), None, "it starts again");
    assert_eq!(
        reader.expired_deadline(at(5_100)),
        Some(DeadlineKind::StreamIdle)
    );
    assert!(reader.agent_summary().unwrap().end.is_none());
    let used = reader.agent_summary().unwrap().used_before.unwrap();
    assert_eq!(used.tokens.input, 4, "also when it never ends");
}

#[test]
fn after_the_last_further_turn_the_result_is_reported() {
    let talk = test_agent_session().with_further_turns();
    let mut reader =
        TranscriptReader::new(DeadlineLimits::default()).with_agent_session(Box::new(talk));
    for (kind, line) in LINES {
        reader.push(kind, format!("{line}\n").as_bytes(), at(10));
    }
    let mut turns = 1;
    while reader.awaits_file_check() {
        reader.on_files_checked(&missing(), Path::new("/work"), at(20));
        let id = format!("t{turns}");
        let ended = format!(
            r#"{{"method":"turn/completed","params":{{"threadId":"th","turn":{{"id":"{id}","status":"completed"}}}}}}"#
        );
        reader.push(ChildPipe::Stdout, format!("{ended}\n").as_bytes(), at(30));
        turns += 1;
    }
    assert_eq!(turns, 3);
    let end = reader.agent_summary().unwrap().end.unwrap();
    assert!(matches!(end.outcome, crate::agents::TurnOutcome::Result(_)));
    assert!(reader.is_past_self_exit(at(5_030)));
}

#[test]
fn a_turn_is_the_last_when_no_file_is_missing_or_the_process_is_gone() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session().with_further_turns()));
    for (kind, line) in LINES {
        reader.push(kind, format!("{line}\n").as_bytes(), at(10));
    }
    assert!(reader.turn_ended_unprompted(), "there is a result");
    assert!(!reader.interrupt_turn(at(11)), "no turn runs");
    let closed =
        |reader: &TranscriptReader| reader.stdin_after(0, u64::MAX).any(|message| message.close);
    assert!(!closed(&reader));
    reader.on_files_checked(&[], Path::new("/work"), at(12));
    assert!(closed(&reader) && reader.is_past_self_exit(at(5_012)));
    let end = reader.agent_summary().unwrap().end.unwrap();
    assert_eq!(
        end.outcome,
        crate::agents::TurnOutcome::Result("Done.".to_owned())
    );
}
