//! A daemon that dies anywhere in a talk with an agent: the next one tells the same story, and the agent is told
//! everything once.

use std::collections::BTreeMap;
use std::path::Path;

use baton_proto::v1::{InputOutcome, PermissionDecision, PermissionRequest};
use proptest::prelude::*;

use super::super::super::talk::{Said, Word};
use super::super::behind::KEPT_MAX;
use super::super::*;
use crate::agents::test_talk;
use crate::timers::DeadlineKind;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

#[path = "further_tests.rs"]
mod further_turns;
#[path = "inside_line_tests.rs"]
mod inside_a_line;

/// What an app-server prints, and what of it is on standard error.
const LINES: [(OutputKind, &str); 16] = [
    (OutputKind::Stdout, r#"{"id":0,"result":{}}"#),
    (OutputKind::Stderr, "a warning"),
    (
        OutputKind::Stdout,
        r#"{"id":1,"result":{"thread":{"id":"th"}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"id":2,"result":{"turn":{"id":"tu"}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"turn/started","params":{"threadId":"th","turn":{"id":"tu"}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"m","delta":"I "}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"m","delta":"look."}}"#,
    ),
    (OutputKind::Stderr, "another one"),
    (
        OutputKind::Stdout,
        r#"{"method":"item/started","params":{"threadId":"th","item":{"type":"commandExecution","id":"c","command":"ls"}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"id":7,"method":"account/unknown","params":{}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"th","itemId":"c","command":"ls"}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"item/completed","params":{"threadId":"th","item":{"type":"commandExecution","id":"c","aggregatedOutput":"x","exitCode":0}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"id":8,"method":"account/unknown","params":{}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"th","itemId":"n","delta":"Done."}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"th","turnId":"tu","tokenUsage":{"total":{"inputTokens":9},"last":{"inputTokens":4}}}}"#,
    ),
    (
        OutputKind::Stdout,
        r#"{"method":"turn/completed","params":{"threadId":"th","turn":{"id":"tu","status":"completed"}}}"#,
    ),
];

/// What an agent prints, and with whom it talks.
struct Script {
    lines: Vec<(OutputKind, &'static str)>,
    talk: Talk,
}

impl Script {
    fn one_turn() -> Self {
        Self {
            lines: LINES.to_vec(),
            talk: test_talk(),
        }
    }
}

fn missing() -> Vec<baton_contract::Unmet> {
    vec![baton_contract::Unmet {
        index: 0,
        path: "out/a".to_owned(),
        why: baton_contract::Why::Missing,
    }]
}

/// The disk, the shim and the relay: what outlives a daemon.
#[derive(Default)]
struct World {
    position: u64,
    keep_from: u64,
    snapshot: Option<FoldSnapshot>,
    stored_answers: u64,
    said: Vec<Said>,
    words: String,
    phases: Vec<OncePhase>,
    stdin: BTreeMap<u64, String>,
    /// Permissions that were asked and not received.
    open: Vec<PermissionRequest>,
}

impl World {
    fn store(&mut self, event: AttemptEvent) {
        let progress = event.progress().cloned().unwrap();
        match event {
            AttemptEvent::Entered { phase, .. } => self.phases.push(phase),
            AttemptEvent::Output { chunk, .. } if chunk.label.visible => {
                self.words += &String::from_utf8_lossy(&chunk.bytes);
            }
            AttemptEvent::Said { said, .. } if !self.said.contains(&said) => {
                match &said {
                    Said::Permission(request) => self.open.push(request.clone()),
                    Said::InputReceived { input_id } => {
                        self.open.retain(|open| open.input_id != *input_id);
                    }
                    _ => {}
                }
                self.said.push(said);
            }
            _ => {}
        }
        assert!(progress.position >= self.position, "{progress:?}");
        assert!(progress.keep_from >= self.keep_from, "{progress:?}");
        self.position = progress.position;
        self.keep_from = progress.keep_from;
        self.stored_answers = self.stored_answers.max(progress.answers);
        self.snapshot = progress.snapshot.or(self.snapshot.take());
    }

    /// As a shim takes it: each number once.
    fn write(&mut self, fold: &Fold) {
        let taken = self.stdin.keys().last().copied().unwrap_or(0);
        for message in fold.stdin_after(taken, self.stored_answers) {
            let text = String::from_utf8_lossy(&message.data).into_owned();
            self.stdin.insert(message.id, text);
        }
    }

    fn answer(&mut self, fold: &mut Fold) {
        for asked in self.open.clone() {
            let decision = PermissionDecision {
                input_id: asked.input_id,
                tool_input_sha256: asked.tool_input_sha256,
                outcome: InputOutcome::Allowed.into(),
                ..PermissionDecision::default()
            };
            fold.answer(Word::Decision(decision), at(10));
        }
    }

    /// The file is missing until the agent was told.
    fn look(&self, fold: &mut Fold) {
        if fold.rests() {
            let told = self.stdin.values().any(|text| text.contains("out/a"));
            let unmet = if told { Vec::new() } else { missing() };
            fold.judged(&unmet, Path::new("/work"), at(10));
        }
    }
}

/// Everything that was printed, in chunks, from a position on.
fn printed(script: &Script, cuts: &[usize], from: u64) -> Vec<(OutputKind, Vec<u8>)> {
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

fn restored(script: &Script, world: &mut World, cuts: &[usize]) -> Fold {
    let snapshot = world.snapshot.clone().unwrap_or_default();
    let mut fold = Fold::restore(Deadlines::default(), &snapshot, world.position, at(9));
    assert!(
        world.keep_from <= snapshot.position,
        "the shim may have forgotten what is needed"
    );
    let mut position = snapshot.position;
    for (kind, bytes) in printed(script, cuts, snapshot.position) {
        let left = usize::try_from(world.position.saturating_sub(position)).unwrap();
        fold.recall(kind, position, &bytes[..left.min(bytes.len())]);
        position += bytes.len() as u64;
    }
    fold.recalled(at(9));
    world.stored_answers = 0;
    world.write(&fold);
    fold
}

fn play(script: &Script, cuts: &[usize], deaths: Vec<usize>) -> (World, Fold) {
    let mut world = World::default();
    let mut fold = Fold::new(Deadlines::default()).with_talk(Box::new(script.talk.clone()));
    fold.enter(OncePhase::Started, None, at(1));
    world.store(fold.next(at(1)).unwrap());
    world.write(&fold);
    let mut deaths = deaths.into_iter();
    'lives: loop {
        let mut left = deaths.next();
        let mut chunks = printed(script, cuts, world.position).into_iter();
        loop {
            let chunk = chunks.next();
            match &chunk {
                Some((kind, bytes)) => fold.take_in(*kind, bytes, at(10)),
                None => {
                    fold.exited(Some(crate::process::Exit::Code(0)), at(10));
                    fold.close(Missing::default());
                }
            }
            // An answer may come at any time; here it comes as soon as it can.
            for _ in 0..2 {
                while let Some(event) = fold.next(at(10)) {
                    if left == Some(0) {
                        fold = restored(script, &mut world, cuts);
                        world.answer(&mut fold);
                        world.look(&mut fold);
                        continue 'lives;
                    }
                    left = left.map(|left| left - 1);
                    world.store(event);
                    world.write(&fold);
                }
                world.answer(&mut fold);
                world.look(&mut fold);
            }
            if chunk.is_none() {
                return (world, fold);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_talk_that_is_taken_over_anywhere_comes_to_the_same(
        cuts in prop::collection::vec(0usize..200, 1..5),
        deaths in prop::collection::vec(0usize..25, 0..6),
    ) {
        let script = Script::one_turn();
        let (undisturbed, _) = play(&script, &[0], Vec::new());
        let (world, fold) = play(&script, &cuts, deaths);
        prop_assert_eq!(&world.stdin, &undisturbed.stdin);
        prop_assert_eq!(&world.said, &undisturbed.said);
        prop_assert!(world.open.is_empty());
        let spoken = fold.spoken().unwrap();
        let end = spoken.end.unwrap();
        prop_assert_eq!(end.outcome, crate::agents::Outcome::Result("Done.".to_owned()));
        prop_assert_eq!(end.usage.unwrap().tokens.input, 4);
        prop_assert_eq!(spoken.conversation.as_deref(), Some("th"));
    }
}

#[test]
fn an_undisturbed_talk_tells_each_thing_once_and_in_order() {
    let (world, fold) = play(&Script::one_turn(), &[7], Vec::new());
    assert!(world.words.starts_with("I look.\n{"), "{}", world.words);
    assert!(world.words.ends_with("Done."), "{}", world.words);
    let written: Vec<&str> = world.stdin.values().map(String::as_str).collect();
    assert_eq!(written.len(), 8, "{written:#?}");
    assert!(
        written[6].contains("\"decision\":\"accept\"")
            || written[5].contains("\"decision\":\"accept\"")
    );
    assert_eq!(written[7], "", "stdin is closed when the turn is over");
    assert!(fold.ended_by_itself() && fold.lingers(at(5_010)) && !fold.lingers(at(5_009)));
    assert_eq!(world.phases.last(), Some(&OncePhase::Streaming));
}

#[test]
fn what_comes_to_nothing_is_heard_of_all_the_same() {
    let mut fold = Fold::new(Deadlines::default()).with_talk(Box::new(test_talk()));
    let blank = [b'\n'; 64 * 1024];
    let mut heard = 0;
    for _ in 0..32 {
        fold.take_in(OutputKind::Stdout, &blank, at(1));
        while let Some(event) = fold.next(at(1)) {
            assert!(matches!(event, AttemptEvent::Read { .. }), "{event:?}");
            let progress = event.progress().unwrap();
            assert!(progress.snapshot.is_some());
            assert_eq!(progress.keep_from, progress.position);
            heard = progress.position;
        }
        assert!(
            fold.position() == heard,
            "nobody waits for a position that is never told"
        );
    }
    assert_eq!(heard, 32 * blank.len() as u64);
}

#[test]
fn an_answer_to_a_prompt_proves_that_it_was_written() {
    let mut fold = Fold::new(Deadlines::default()).with_talk(Box::new(test_talk()));
    fold.enter(OncePhase::AgentStarted, Some(7), at(1));
    for (kind, line) in LINES.iter().take(5) {
        fold.take_in(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    let mut phases = Vec::new();
    while let Some(event) = fold.next(at(3)) {
        if let AttemptEvent::Entered { phase, .. } = event {
            phases.push(phase);
        }
    }
    let expected = [
        OncePhase::AgentStarted,
        OncePhase::PromptWritten,
        OncePhase::FirstEventSeen,
    ];
    assert_eq!(phases, expected);
}

fn entered(fold: &mut Fold) -> Vec<OncePhase> {
    let mut phases = Vec::new();
    while let Some(event) = fold.next(at(3_000)) {
        if let AttemptEvent::Entered { phase, .. } = event {
            phases.push(phase);
        }
    }
    phases
}

#[test]
fn what_is_said_before_the_prompt_is_no_event_and_the_prompt_is_told_when_it_is_written() {
    let limits = Deadlines {
        process_start: Some(std::time::Duration::from_millis(1_000)),
        prompt_write: Some(std::time::Duration::from_millis(100)),
        ..Deadlines::default()
    };
    let mut fold = Fold::new(limits).with_talk(Box::new(test_talk()));
    fold.enter(OncePhase::Started, None, at(1));
    fold.spawned(7, at(1));
    fold.stdin_done(1, at(1));
    assert_eq!(entered(&mut fold), [OncePhase::Started], "hands are shaken");
    assert_eq!(fold.expired(at(1_000)), None, "there is no prompt yet");
    assert_eq!(fold.expired(at(1_001)), Some(DeadlineKind::ProcessStart));
    let greets = r#"{"method":"account/updated","params":{}}"#;
    fold.take_in(OutputKind::Stdout, format!("{greets}\n").as_bytes(), at(2));
    for (kind, line) in LINES.iter().take(3) {
        fold.take_in(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    assert!(fold.may_have_prompt(), "it is on its way");
    let mut before = Vec::new();
    while let Some(event) = fold.next(at(50)) {
        match event {
            AttemptEvent::Output { chunk, .. } => before.push(chunk.label.before_prompt),
            AttemptEvent::Entered { phase, pid, .. } => {
                assert_eq!((phase, pid), (OncePhase::AgentStarted, Some(7)));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(before, [true, true], "a notice and a warning");
    assert_eq!(
        fold.expired(at(102)),
        Some(DeadlineKind::PromptWrite),
        "words are no prompt"
    );
    let prompt = fold.stdin_after(0, 0).last().unwrap();
    fold.stdin_done(prompt.id, at(60));
    assert_eq!(entered(&mut fold), [OncePhase::PromptWritten]);
    assert_eq!(fold.expired(at(101)), None);
    fold.take_in(OutputKind::Stderr, b"later", at(61));
    let Some(AttemptEvent::Output { chunk, .. }) = fold.next(at(100)) else {
        panic!("a warning");
    };
    assert!(!chunk.label.before_prompt);
}

/// The daemon before has sent the prompt, and died before it stored the line that the prompt answers.
#[test]
fn a_prompt_that_was_written_before_its_line_is_read_again_is_told_then() {
    let mut fold = Fold::new(Deadlines::default()).with_talk(Box::new(test_talk()));
    fold.enter(OncePhase::AgentStarted, Some(7), at(1));
    assert!(!fold.may_have_prompt());
    fold.stdin_done(4, at(1));
    assert_eq!(entered(&mut fold), [OncePhase::AgentStarted]);
    for (kind, line) in LINES.iter().take(3) {
        fold.take_in(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    assert_eq!(entered(&mut fold), [OncePhase::PromptWritten]);
}

#[test]
fn an_agent_that_works_is_asked_to_end_its_turn_once_that_is_stored() {
    let mut fold = Fold::new(Deadlines::default()).with_talk(Box::new(test_talk()));
    fold.enter(OncePhase::AgentStarted, Some(7), at(1));
    assert!(!fold.interrupt(at(1)), "it has nothing to end");
    for (kind, line) in LINES.iter().take(5) {
        fold.take_in(*kind, format!("{line}\n").as_bytes(), at(2));
    }
    let prompt = fold.stdin_after(0, 0).last().unwrap().id;
    fold.stdin_done(prompt, at(3));
    assert!(fold.interrupt(at(4)));
    fold.enter(OncePhase::CleanupStarted, None, at(4));
    let mut stored = 0;
    while let Some(event) = fold.next(at(4)) {
        stored = event.progress().unwrap().answers.max(stored);
    }
    assert_eq!(fold.stdin_after(prompt, 0).count(), 0);
    let asked = fold.stdin_after(prompt, stored).next().unwrap();
    let text = String::from_utf8_lossy(&asked.data).into_owned();
    assert!(text.contains("turn/interrupt"), "{text}");
    assert!(!fold.interrupt(at(5)), "once");
    let ended = r#"{"method":"turn/completed","params":{"threadId":"th","turn":{"id":"tu","status":"interrupted"}}}"#;
    fold.take_in(OutputKind::Stdout, format!("{ended}\n").as_bytes(), at(6));
    assert!(!fold.ended_by_itself());
}
