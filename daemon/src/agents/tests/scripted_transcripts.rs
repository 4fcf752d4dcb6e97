//! Short scripted transcripts for each wire: the agent's output, the answers to it, and the
//! events that must result. Their format:
//!
//! - `start KIND [resume=ID] [model=..] [effort=..] [mode=..]`: the first line.
//! - `< TEXT` the agent prints a line, `! TEXT` on its standard error.
//! - `allow KEY`, `allow-attempt KEY`, `deny KEY WORDS`, `none KEY`, `reply KEY
//!   LABEL,LABEL:WORDS; …`: an answer to an input.
//! - `interrupt`, `exit CODE`, `signal NUMBER`.
//! - `= EVENT`: an event that results from the line above. Messages to the agent are written
//!   immediately, as a daemon does.

use std::path::{Path, PathBuf};

use super::event_text;
use crate::agents::adapter::agent_event::{
    AgentEvent, AgentExit, AgentInputAnswer, InputKey, QuestionResponse, StdinMessage,
};
use crate::agents::adapter::translator::AgentTranslator;
use crate::agents::launch::agent_launch::LaunchRequest;
use crate::config::AgentWire;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/agents/transcripts")
}

#[test]
fn every_transcript_produces_its_stated_events() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 8, "transcripts are missing");
    for file in files {
        let expected = std::fs::read_to_string(&file).unwrap();
        let played = play(&expected);
        assert_eq!(played, expected, "{} results in:\n{played}", file.display());
    }
}

/// The transcript with the events that actually result.
fn play(transcript: &str) -> String {
    let mut player = TranscriptPlayer::default();
    for line in transcript.lines().filter(|line| !line.starts_with("= ")) {
        player.shown.push(line.to_owned());
        if !line.is_empty() && !line.starts_with('#') {
            player.step(line);
        }
    }
    player.shown.join("\n") + "\n"
}

#[derive(Default)]
struct TranscriptPlayer {
    translator: Option<AgentTranslator>,
    stderr: String,
    shown: Vec<String>,
}

impl TranscriptPlayer {
    fn step(&mut self, line: &str) {
        let (step, rest) = line.split_once(' ').unwrap_or((line, ""));
        if step == "start" {
            let mut translator = start(rest);
            let opening = translator.first_message();
            self.translator = Some(translator);
            self.stderr.clear();
            self.write(opening);
            return;
        }
        // Stored and restored at every step, so that the result depends only on the stored
        // state.
        let stored = serde_json::to_string(self.translator()).unwrap();
        self.translator = Some(serde_json::from_str(&stored).unwrap());
        let text = format!("{rest}\n");
        match step {
            "<" => self.translator().push_stdout(text.as_bytes()),
            "!" => self.stderr.push_str(&text),
            "exit" => self.exit(AgentExit::Code(rest.parse().unwrap())),
            "signal" => self.exit(AgentExit::Signal(rest.parse().unwrap())),
            "interrupt" => {
                for message in self.translator().interrupt_messages() {
                    self.write(message);
                }
            }
            _ => self.answer(step, rest),
        }
        while let Some(events) = self.translator().next_events() {
            self.take(events);
        }
    }

    fn translator(&mut self) -> &mut AgentTranslator {
        self.translator
            .as_mut()
            .expect("a transcript must begin with start")
    }

    fn exit(&mut self, exit: AgentExit) {
        let stderr = std::mem::take(&mut self.stderr);
        let events = self.translator().on_exit(exit, &stderr);
        self.take(events);
    }

    fn answer(&mut self, kind: &str, rest: &str) {
        let (key, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let answer = match kind {
            "allow" => AgentInputAnswer::Allow { for_attempt: false },
            "allow-attempt" => AgentInputAnswer::Allow { for_attempt: true },
            "deny" => AgentInputAnswer::Deny {
                message: rest.to_owned(),
            },
            "none" => AgentInputAnswer::None,
            "reply" => AgentInputAnswer::Replies(rest.split("; ").map(reply).collect()),
            other => panic!("unknown step: {other}"),
        };
        match self
            .translator()
            .answer_message(&InputKey(key.to_owned()), &answer)
        {
            Some(message) => self.write(message),
            None => self.shown.push("= nothing is open".to_owned()),
        }
    }

    fn write(&mut self, message: StdinMessage) {
        self.take(vec![AgentEvent::Write(message)]);
    }

    fn take(&mut self, events: Vec<AgentEvent>) {
        for event in events {
            self.shown
                .push(format!("= {}", event_text::event_text(&event)));
            if let AgentEvent::Write(message) = event {
                let events = self.translator().on_written(&message.bytes);
                self.take(events);
            }
        }
    }
}

fn start(arguments: &str) -> AgentTranslator {
    let (kind, options) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let kind = match kind {
        "claude" => AgentWire::Claude,
        "codex" => AgentWire::CodexAppServer,
        "codex-exec" => AgentWire::CodexExec,
        "acp" => AgentWire::Acp,
        other => panic!("unknown kind: {other}"),
    };
    let mut request = LaunchRequest {
        prompt: "Do it.".to_owned(),
        cwd: "/work".to_owned(),
        ..LaunchRequest::default()
    };
    for option in options.split_whitespace() {
        let (name, value) = option.split_once('=').unwrap();
        let value = value.to_owned();
        match name {
            "resume" => request.resume = Some(value),
            "model" => request.model = value,
            "effort" => request.effort = value,
            "mode" => request.permission_mode = value,
            other => panic!("unknown option: {other}"),
        }
    }
    kind.launch(&request).unwrap().translator
}

fn reply(text: &str) -> QuestionResponse {
    let (labels, text) = text.split_once(':').unwrap_or((text, ""));
    let labels = labels.split(',').filter(|label| !label.is_empty());
    QuestionResponse {
        labels: labels.map(str::to_owned).collect(),
        text: text.to_owned(),
    }
}
