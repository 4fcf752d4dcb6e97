//! A daemon that dies anywhere in the session with an agent: the next one reports the same
//! events, and the agent gets everything once.

use std::collections::BTreeMap;
use std::path::Path;

use baton_proto::v1::{InputOutcome, PermissionDecision, PermissionRequest};
use proptest::prelude::*;

use super::super::super::agent_session::{AgentNotice, InputResponse};
use super::super::deferred_stderr::MAX_DEFERRED_BYTES;
use super::super::*;
use crate::agents::test_agent_session;
use crate::deadlines::DeadlineKind;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

#[path = "further_turn_tests.rs"]
mod further_turns;
#[path = "deferred_stderr_tests.rs"]
mod inside_a_line;

/// The output of an app-server, with what of it is on stderr.
const LINES: [(ChildPipe, &str); 16] = [
    (ChildPipe::Stdout, r#"{"id":0,"result":{}}"#),
    (ChildPipe::Stderr, "a warning"),
    (
        ChildPipe::Stdout,
        r#"{"id":1,"result":{"thread":{"id":"th"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"id":2,"result":{"turn":{"id":"tu"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"turn/started","params":{"threadId":"th","turn":{"id":"tu"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"m","delta":"I "}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"m","delta":"look."}}"#,
    ),
    (ChildPipe::Stderr, "another one"),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/started","params":{"threadId":"th","item":{"type":"commandExecution","id":"c","command":"ls"}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"id":7,"method":"account/unknown","params":{}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"th","itemId":"c","command":"ls"}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/completed","params":{"threadId":"th","item":{"type":"commandExecution","id":"c","aggregatedOutput":"x","exitCode":0}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"id":8,"method":"account/unknown","params":{}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"n","delta":"Done."}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"th","turnId":"tu","tokenUsage":{"total":{"inputTokens":9},"last":{"inputTokens":4}}}}"#,
    ),
    (
        ChildPipe::Stdout,
        r#"{"method":"turn/completed","params":{"threadId":"th","turn":{"id":"tu","status":"completed"}}}"#,
    ),
];

/// The output of an agent, and its session.
struct AgentScript {
    lines: Vec<(ChildPipe, &'static str)>,
    talk: AgentSession,
}

impl AgentScript {
    fn one_turn() -> Self {
        Self {
            lines: LINES.to_vec(),
            talk: test_agent_session(),
        }
    }
}

fn missing() -> Vec<baton_validation::UnmetRequirement> {
    vec![baton_validation::UnmetRequirement {
        index: 0,
        path: "out/a".to_owned(),
        reason: baton_validation::UnmetReason::Missing,
    }]
}

/// What outlives a daemon: the disk, the shim and the relay.
#[derive(Default)]
struct SurvivingState {
    position: u64,
    keep_from: u64,
    snapshot: Option<FoldSnapshot>,
    stored_answers: u64,
    said: Vec<AgentNotice>,
    words: String,
    phases: Vec<OneTimePhase>,
    stdin: BTreeMap<u64, String>,
    /// Permissions that were requested and not received.
    open: Vec<PermissionRequest>,
}

impl SurvivingState {
    fn store(&mut self, event: AttemptEvent) {
        let progress = event.progress().cloned().unwrap();
        match event {
            AttemptEvent::PhaseEntered { phase, .. } => self.phases.push(phase),
            AttemptEvent::Output { chunk, .. } if chunk.label.visible => {
                self.words += &String::from_utf8_lossy(&chunk.bytes);
            }
            AttemptEvent::AgentNotice { notice: said, .. } if !self.said.contains(&said) => {
                match &said {
                    AgentNotice::Permission(request) => self.open.push(request.clone()),
                    AgentNotice::InputReceived { input_id } => {
                        self.open.retain(|open| open.input_id != *input_id);
                    }
                    _ => {}
                }
                self.said.push(said);
            }
            _ => {}
        }
        assert!(progress.position >= self.position, "{progress:?}");
        assert!(progress.retain_from >= self.keep_from, "{progress:?}");
        self.position = progress.position;
        self.keep_from = progress.retain_from;
        self.stored_answers = self.stored_answers.max(progress.answer_count);
        self.snapshot = progress.snapshot.or(self.snapshot.take());
    }

    /// As a shim writes it: each number once.
    fn write(&mut self, reader: &TranscriptReader) {
        let taken = self.stdin.keys().last().copied().unwrap_or(0);
        for message in reader.stdin_after(taken, self.stored_answers) {
            let text = String::from_utf8_lossy(&message.data).into_owned();
            self.stdin.insert(message.id, text);
        }
    }

    fn answer(&mut self, reader: &mut TranscriptReader) {
        for asked in self.open.clone() {
            let decision = PermissionDecision {
                input_id: asked.input_id,
                tool_input_sha256: asked.tool_input_sha256,
                outcome: InputOutcome::Allowed.into(),
                ..PermissionDecision::default()
            };
            reader.answer_input(InputResponse::Decision(decision), at(10));
        }
    }

    /// The file is missing until the agent was asked for it.
    fn check_files(&self, reader: &mut TranscriptReader) {
        if reader.awaits_file_check() {
            let told = self.stdin.values().any(|text| text.contains("out/a"));
            let unmet = if told { Vec::new() } else { missing() };
            reader.on_files_checked(&unmet, Path::new("/work"), at(10));
        }
    }
}

/// The whole output in chunks, from a position on.
fn printed(script: &AgentScript, cuts: &[usize], from: u64) -> Vec<(ChildPipe, Vec<u8>)> {
    let mut position = 0;
    let mut chunks = Vec::new();
    for (index, (kind, line)) in script.lines.iter().enumerate() {
        let line = format!("{line}\n").into_bytes();
        let cut = cuts[index % cuts.len()] % line.len();
        for part in [&line[..cut], &line[cut..]] {
            let skip = usize::try_from(from.saturating_sub(position)).unwrap();
            position += part.len() as u64;
            if skip < part.len() {
                chunks.push((*kind, part[skip..].to_vec()));
            }
        }
    }
    chunks
}

fn restored(script: &AgentScript, world: &mut SurvivingState, cuts: &[usize]) -> TranscriptReader {
    let snapshot = world.snapshot.clone().unwrap_or_default();
    let mut reader =
        TranscriptReader::restore(DeadlineLimits::default(), &snapshot, world.position, at(9));
    assert!(
        world.keep_from <= snapshot.position,
        "the shim may have dropped what is needed"
    );
    let mut position = snapshot.position;
    for (kind, bytes) in printed(script, cuts, snapshot.position) {
        let left = usize::try_from(world.position.saturating_sub(position)).unwrap();
        reader.replay(kind, position, &bytes[..left.min(bytes.len())]);
        position += bytes.len() as u64;
    }
    reader.finish_replay(at(9));
    world.stored_answers = 0;
    world.write(&reader);
    reader
}

fn play(
    script: &AgentScript,
    cuts: &[usize],
    deaths: Vec<usize>,
) -> (SurvivingState, TranscriptReader) {
    let mut world = SurvivingState::default();
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(script.talk.clone()));
    reader.enter_phase(OneTimePhase::Started, None, at(1));
    world.store(reader.next_event(at(1)).unwrap());
    world.write(&reader);
    let mut deaths = deaths.into_iter();
    'lives: loop {
        let mut left = deaths.next();
        let mut chunks = printed(script, cuts, world.position).into_iter();
        loop {
            let chunk = chunks.next();
            match &chunk {
                Some((kind, bytes)) => reader.push(*kind, bytes, at(10)),
                None => {
                    reader.on_exit(Some(crate::process::ChildExit::Code(0)), at(10));
                    reader.close(MissingOutput::default());
                }
            }
            // An answer may come at any time; here it comes as soon as possible.
            for _ in 0..2 {
                while let Some(event) = reader.next_event(at(10)) {
                    if left == Some(0) {
                        reader = restored(script, &mut world, cuts);
                        world.answer(&mut reader);
                        world.check_files(&mut reader);
                        continue 'lives;
                    }
                    left = left.map(|left| left - 1);
                    world.store(event);
                    world.write(&reader);
                }
                world.answer(&mut reader);
                world.check_files(&mut reader);
            }
            if chunk.is_none() {
                return (world, reader);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_session_adopted_at_any_point_has_the_same_result(
        cuts in prop::collection::vec(0usize..200, 1..5),
        deaths in prop::collection::vec(0usize..25, 0..6),
    ) {
        let script = AgentScript::one_turn();
        let (undisturbed, _) = play(&script, &[0], Vec::new());
        let (world, reader) = play(&script, &cuts, deaths);
        prop_assert_eq!(&world.stdin, &undisturbed.stdin);
        prop_assert_eq!(&world.said, &undisturbed.said);
        prop_assert!(world.open.is_empty());
        let spoken = reader.agent_summary().unwrap();
        let end = spoken.end.unwrap();
        prop_assert_eq!(end.outcome, crate::agents::TurnOutcome::Result("Done.".to_owned()));
        prop_assert_eq!(end.usage.unwrap().tokens.input, 4);
        prop_assert_eq!(spoken.conversation.as_deref(), Some("th"));
    }
}

#[test]
fn an_uninterrupted_session_reports_everything_once_in_order() {
    let (world, reader) = play(&AgentScript::one_turn(), &[7], Vec::new());
    assert!(world.words.starts_with("I look.\n{"), "{}", world.words);
    assert!(world.words.ends_with("Done."), "{}", world.words);
    let written: Vec<&str> = world.stdin.values().map(String::as_str).collect();
    assert_eq!(written.len(), 8, "{written:#?}");
    assert!(
        written[6].contains("\"decision\":\"accept\"")
            || written[5].contains("\"decision\":\"accept\"")
    );
    assert_eq!(written[7], "", "stdin is closed when the turn is over");
    assert!(
        reader.turn_ended_unprompted()
            && reader.is_past_self_exit(at(5_010))
            && !reader.is_past_self_exit(at(5_009))
    );
    assert_eq!(world.phases.last(), Some(&OneTimePhase::Streaming));
}

#[test]
fn output_without_events_still_advances_the_position() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    let blank = [b'\n'; 64 * 1024];
    let mut heard = 0;
    for _ in 0..32 {
        reader.push(ChildPipe::Stdout, &blank, at(1));
        while let Some(event) = reader.next_event(at(1)) {
            assert!(
                matches!(event, AttemptEvent::TranscriptRead { .. }),
                "{event:?}"
            );
            let progress = event.progress().unwrap();
            assert!(progress.snapshot.is_some());
            assert_eq!(progress.retain_from, progress.position);
            heard = progress.position;
        }
        assert!(
            reader.delivered_end() == heard,
            "a position is reported without events"
        );
    }
    assert_eq!(heard, 32 * blank.len() as u64);
}

#[test]
fn an_answer_to_a_prompt_proves_that_it_was_written() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    reader.enter_phase(OneTimePhase::AgentStarted, Some(7), at(1));
    for (kind, line) in LINES.iter().take(5) {
        reader.push(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    let mut phases = Vec::new();
    while let Some(event) = reader.next_event(at(3)) {
        if let AttemptEvent::PhaseEntered { phase, .. } = event {
            phases.push(phase);
        }
    }
    let expected = [
        OneTimePhase::AgentStarted,
        OneTimePhase::PromptWritten,
        OneTimePhase::FirstEventSeen,
    ];
    assert_eq!(phases, expected);
}

fn entered(reader: &mut TranscriptReader) -> Vec<OneTimePhase> {
    let mut phases = Vec::new();
    while let Some(event) = reader.next_event(at(3_000)) {
        if let AttemptEvent::PhaseEntered { phase, .. } = event {
            phases.push(phase);
        }
    }
    phases
}

#[test]
fn output_before_the_prompt_enters_no_phase() {
    let limits = DeadlineLimits {
        process_start: Some(std::time::Duration::from_millis(1_000)),
        prompt_write: Some(std::time::Duration::from_millis(100)),
        ..DeadlineLimits::default()
    };
    let mut reader =
        TranscriptReader::new(limits).with_agent_session(Box::new(test_agent_session()));
    reader.enter_phase(OneTimePhase::Started, None, at(1));
    reader.on_spawned(7, at(1));
    reader.on_stdin_done(1, at(1));
    assert_eq!(
        entered(&mut reader),
        [OneTimePhase::Started],
        "the handshake is done"
    );
    assert_eq!(
        reader.expired_deadline(at(1_000)),
        None,
        "there is no prompt yet"
    );
    assert_eq!(
        reader.expired_deadline(at(1_001)),
        Some(DeadlineKind::ProcessStart)
    );
    let greets = r#"{"method":"account/updated","params":{}}"#;
    reader.push(ChildPipe::Stdout, format!("{greets}\n").as_bytes(), at(2));
    for (kind, line) in LINES.iter().take(3) {
        reader.push(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    assert!(reader.may_have_prompt(), "it is being sent");
    let mut before = Vec::new();
    while let Some(event) = reader.next_event(at(50)) {
        match event {
            AttemptEvent::Output { chunk, .. } => before.push(chunk.label.before_prompt),
            AttemptEvent::PhaseEntered { phase, pid, .. } => {
                assert_eq!((phase, pid), (OneTimePhase::AgentStarted, Some(7)));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(before, [true, true], "a notice and a warning");
    assert_eq!(
        reader.expired_deadline(at(102)),
        Some(DeadlineKind::PromptWrite),
        "stderr is not an answer to the prompt"
    );
    let prompt = reader.stdin_after(0, 0).last().unwrap();
    reader.on_stdin_done(prompt.id, at(60));
    assert_eq!(entered(&mut reader), [OneTimePhase::PromptWritten]);
    assert_eq!(reader.expired_deadline(at(101)), None);
    reader.push(ChildPipe::Stderr, b"later", at(61));
    let Some(AttemptEvent::Output { chunk, .. }) = reader.next_event(at(100)) else {
        panic!("a warning");
    };
    assert!(!chunk.label.before_prompt);
}

/// The earlier daemon has sent the prompt, and died before it stored the line that the prompt
/// answers.
#[test]
fn a_written_prompt_is_reported_when_its_line_is_read_again() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    reader.enter_phase(OneTimePhase::AgentStarted, Some(7), at(1));
    assert!(!reader.may_have_prompt());
    reader.on_stdin_done(4, at(1));
    assert_eq!(entered(&mut reader), [OneTimePhase::AgentStarted]);
    for (kind, line) in LINES.iter().take(3) {
        reader.push(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    assert_eq!(entered(&mut reader), [OneTimePhase::PromptWritten]);
}

#[test]
fn an_interrupt_is_sent_once_it_is_stored() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    reader.enter_phase(OneTimePhase::AgentStarted, Some(7), at(1));
    assert!(!reader.interrupt_turn(at(1)), "no turn runs");
    for (kind, line) in LINES.iter().take(5) {
        reader.push(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    let prompt = reader.stdin_after(0, 0).last().unwrap().id;
    reader.on_stdin_done(prompt, at(3));
    assert!(reader.interrupt_turn(at(4)));
    reader.enter_phase(OneTimePhase::CleanupStarted, None, at(4));
    let mut stored = 0;
    while let Some(event) = reader.next_event(at(4)) {
        stored = event.progress().unwrap().answer_count.max(stored);
    }
    assert_eq!(reader.stdin_after(prompt, 0).count(), 0);
    let asked = reader.stdin_after(prompt, stored).next().unwrap();
    let text = String::from_utf8_lossy(&asked.data).into_owned();
    assert!(text.contains("turn/interrupt"), "{text}");
    assert!(!reader.interrupt_turn(at(5)), "once");
    let ended = r#"{"method":"turn/completed","params":{"threadId":"th","turn":{"id":"tu","status":"interrupted"}}}"#;
    reader.push(ChildPipe::Stdout, format!("{ended}\n").as_bytes(), at(6));
    assert!(!reader.turn_ended_unprompted());
}
