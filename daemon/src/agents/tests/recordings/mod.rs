//! Recordings of the real programs. They are not part of the project: `BATON_RECORDINGS` names
//! their directory. Each is read twice: by its adapter and by an independent reader
//! (`stated_turns`). That reader takes the end of a turn from the report on the recordings
//! (`stated_outcomes`) and the rest from the raw lines (`raw_lines`). Both must find the same
//! phases, tools, inputs, usage and outcome of every turn.

mod claude_lines;
mod codex_lines;
mod nonsense_lines;
mod raw_lines;
mod stated_outcomes;
mod stated_turns;
mod turn_facts;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::agents::adapter::agent_event::{AgentEvent, AgentExit, AgentInputKind, TurnPhase};
use crate::agents::adapter::json_rpc::{list_at, text_at};
use crate::agents::adapter::translator::AgentTranslator;
use crate::agents::launch::agent_launch::LaunchRequest;
use crate::agents::outcome::turn_usage::TokenCounts;
use crate::config::AgentWire;

#[test]
fn every_recording_is_translated_as_stated() {
    let Some(directory) = std::env::var_os("BATON_RECORDINGS") else {
        print_line("skipped: BATON_RECORDINGS does not name a directory with recordings of agents");
        return;
    };
    let recordings = recordings(Path::new(&directory));
    assert!(
        !recordings.is_empty(),
        "no recordings in {}",
        directory.display()
    );
    let mut wrong = Vec::new();
    for recording in &recordings {
        let events = recording.play(RecordedChunking::WholeLines);
        let mut problems = broken_rules(recording, &events);
        for bytes in [
            RecordedChunking::RandomPieces,
            RecordedChunking::CarriageReturns,
        ] {
            if recording.play(bytes) != events {
                problems.push(format!("the events differ with the chunking {bytes:?}"));
            }
        }
        let translated = turn_facts::facts_of_adapter(&events);
        problems.extend(turn_facts::differences(
            &stated_turns::stated_turns(recording),
            &translated,
        ));
        if !problems.is_empty() {
            wrong.push(format!("{}: {}", recording.name, problems.join("\n  ")));
        }
    }
    let right = recordings.len() - wrong.len();
    print_line(&format!(
        "recordings of agents: {right} of {}",
        recordings.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Writes past the capture of test output, so that the number of recordings is always visible.
fn print_line(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// How the recorded bytes reach the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedChunking {
    /// Line by line.
    WholeLines,
    /// In pseudo-random pieces, also in the middle of characters.
    RandomPieces,
    /// With a carriage return at the end of each line, and no newline after the last one.
    CarriageReturns,
}

struct AgentRecording {
    /// Program and scenario.
    name: String,
    meta: Value,
    stdin: Vec<String>,
    /// As text, for the independent reader.
    stdout: Vec<String>,
    /// The same lines as raw bytes with their line endings.
    raw: Vec<Vec<u8>>,
    stderr: String,
    used_before: Option<TokenCounts>,
}

fn recordings(directory: &Path) -> Vec<AgentRecording> {
    let folders = |path: &Path| {
        let entries = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = entries.collect();
        paths.sort();
        paths
    };
    let mut found = Vec::new();
    for folder in folders(directory).into_iter().filter(|path| path.is_dir()) {
        for meta in folders(&folder) {
            let name = meta.file_name().unwrap().to_string_lossy().into_owned();
            if let Some(scenario) = name.strip_suffix(".meta.json") {
                found.push(AgentRecording::read(&folder, scenario));
            }
        }
    }
    // A thread's earlier usage is known from the previous recording.
    let before: Vec<Option<TokenCounts>> = found
        .iter()
        .map(|one| one.used_by_earlier(&found))
        .collect();
    for (recording, before) in found.iter_mut().zip(before) {
        recording.used_before = before;
    }
    found
}

impl AgentRecording {
    fn read(folder: &Path, scenario: &str) -> Self {
        let bytes = |ending: &str| {
            let path = folder.join(format!("{scenario}.{ending}"));
            std::fs::read(path).unwrap_or_default()
        };
        let read = |ending: &str| String::from_utf8_lossy(&bytes(ending)).into_owned();
        let raw = bytes("stdout.ndjson");
        let raw = raw.split_inclusive(|byte| *byte == b'\n');
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        let program = folder.file_name().unwrap().to_string_lossy().into_owned();
        Self {
            name: format!("{program}/{scenario}"),
            meta: serde_json::from_str(&read("meta.json")).unwrap(),
            stdin: lines(read("stdin.ndjson")),
            stdout: lines(read("stdout.ndjson")),
            raw: raw.map(<[u8]>::to_vec).collect(),
            stderr: read("stderr.txt"),
            used_before: None,
        }
    }

    fn kind(&self) -> AgentWire {
        let argv = list_at(&self.meta, "/argv");
        let has = |name| argv.iter().any(|arg| arg == name);
        if self.name.contains("-acp-") || has("--acp") || has("acp") {
            AgentWire::Acp
        } else if has("app-server") {
            AgentWire::CodexAppServer
        } else if self.name.starts_with("codex") {
            AgentWire::CodexExec
        } else if self.name.starts_with("claude") {
            AgentWire::Claude
        } else {
            AgentWire::Acp
        }
    }

    /// The conversation that it was started to resume.
    fn resumes(&self) -> Option<String> {
        let argv = list_at(&self.meta, "/argv")
            .iter()
            .filter_map(Value::as_str);
        let mut after = argv
            .skip_while(|arg| !matches!(*arg, "--resume" | "resume"))
            .skip(1);
        let by_argument = after.find(|arg| !arg.starts_with("--")).map(str::to_owned);
        let by_message = || {
            let messages = self
                .stdin
                .iter()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut openings = messages.filter(|message| {
                matches!(
                    text_at(message, "/method"),
                    "thread/resume" | "session/load" | "session/resume"
                )
            });
            let opening = openings.next()?;
            let ids = [
                text_at(&opening, "/params/threadId"),
                text_at(&opening, "/params/sessionId"),
            ];
            ids.into_iter().find(|id| !id.is_empty()).map(str::to_owned)
        };
        by_argument.or_else(by_message)
    }

    fn used_by_earlier(&self, all: &[Self]) -> Option<TokenCounts> {
        let thread = self.resumes()?;
        let names_thread = |one: &&Self| one.stdout.iter().any(|line| line.contains(&thread));
        let earlier = all
            .iter()
            .filter(|one| one.resumes().is_none())
            .find(names_thread)?;
        let line = earlier
            .stdout
            .iter()
            .find(|line| line.contains("\"turn.completed\""))?;
        let message: Value = serde_json::from_str(line).ok()?;
        let count = |path| message.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        Some(TokenCounts {
            input: count("/usage/input_tokens") - count("/usage/cached_input_tokens"),
            output: count("/usage/output_tokens"),
            cache_read: count("/usage/cached_input_tokens"),
            cache_write: count("/usage/cache_write_input_tokens"),
        })
    }

    fn translator(&self) -> AgentTranslator {
        let request = LaunchRequest {
            cwd: text_at(&self.meta, "/cwd").to_owned(),
            resume: self.resumes(),
            used_before: self.used_before,
            ..LaunchRequest::default()
        };
        self.kind().launch(&request).unwrap().translator
    }

    /// Steps in the order of the recording: whether the line is output of the agent, and its
    /// index.
    fn order(&self) -> impl Iterator<Item = (bool, usize)> {
        let steps = list_at(&self.meta, "/timeline_ms").iter();
        steps.filter_map(|step| {
            let out = match text_at(step, "/1") {
                "out" => true,
                "in" => false,
                _ => return None,
            };
            let at = usize::try_from(step.get(2)?.as_u64()?).ok()?;
            at.checked_sub(1).map(|at| (out, at))
        })
    }

    fn steps(&self) -> impl Iterator<Item = (bool, String)> {
        self.order().map(|(out, at)| {
            let lines = if out { &self.stdout } else { &self.stdin };
            (out, lines.get(at).cloned().unwrap_or_default())
        })
    }

    /// Messages of the adapter are not written: the recording contains what was written.
    fn play(&self, bytes: RecordedChunking) -> Vec<AgentEvent> {
        let mut translator = self.translator();
        let mut events = Vec::new();
        let last = self.order().last();
        for (out, at) in self.order() {
            if !out {
                let line = self.stdin.get(at).map_or("", String::as_str);
                events.extend(translator.on_written(line.as_bytes()));
                continue;
            }
            let line = self.raw.get(at).cloned().unwrap_or_default();
            for piece in bytes.pieces(line, at, last == Some((out, at))) {
                translator.push_stdout(&piece);
                events.extend(std::iter::from_fn(|| translator.next_events()).flatten());
            }
        }
        events.extend(translator.on_exit(self.exit(), &self.stderr));
        events
    }

    /// Lines that are not messages of its wire.
    fn count_nonsense_lines(&self) -> usize {
        let rpc = matches!(self.kind(), AgentWire::CodexAppServer | AgentWire::Acp);
        let lines = self.raw.iter().filter(|line| !line.trim_ascii().is_empty());
        lines
            .filter(|line| !nonsense_lines::is_message(line, rpc))
            .count()
    }

    fn exit(&self) -> AgentExit {
        let signal = match text_at(&self.meta, "/killed_by_signal") {
            "SIGHUP" => 1,
            "SIGINT" => 2,
            "SIGKILL" => 9,
            _ => 15,
        };
        let code = self.meta.get("exit_code").and_then(Value::as_i64);
        code.map_or(AgentExit::Signal(signal), |code| {
            AgentExit::Code(i32::try_from(code).unwrap())
        })
    }
}

impl RecordedChunking {
    fn pieces(self, mut line: Vec<u8>, at: usize, last: bool) -> Vec<Vec<u8>> {
        match self {
            Self::WholeLines => vec![line],
            Self::RandomPieces => {
                // The same pieces in every run, and different ones for every line.
                let first = line.len() * (at % 7) / 7;
                let rest = line.split_off(first);
                let size = 1 + (at * 31) % 997;
                let rest = rest.chunks(size).map(<[u8]>::to_vec);
                std::iter::once(line).chain(rest).collect()
            }
            Self::CarriageReturns => {
                if line.pop_if(|byte| *byte == b'\n').is_some() && !last {
                    line.extend(b"\r\n");
                }
                vec![line]
            }
        }
    }
}

/// Rules that hold for every recording.
fn broken_rules(recording: &AgentRecording, events: &[AgentEvent]) -> Vec<String> {
    let count = |is: fn(&AgentEvent) -> bool| events.iter().filter(|event| is(event)).count();
    let asked = count(|event| matches!(event, AgentEvent::InputAsked(_)));
    let closed = count(|event| {
        matches!(
            event,
            AgentEvent::InputAnswered { .. } | AgentEvent::InputWithdrawn { .. }
        )
    });
    let started = count(|event| matches!(event, AgentEvent::ToolStarted { .. }));
    let finished = count(|event| matches!(event, AgentEvent::ToolFinished { .. }));
    let ended = count(|event| matches!(event, AgentEvent::Ended(_)));
    let malformed = count(|event| matches!(event, AgentEvent::Malformed { .. }));
    let mut broken = Vec::new();
    let mut rule = |holds: bool, text: &str| {
        if !holds {
            broken.push(text.to_owned());
        }
    };
    rule(ended > 0, "it has no end of a turn");
    rule(asked == closed, "an input stays open");
    rule(started == finished, "a tool stays open");
    rule(
        malformed == recording.count_nonsense_lines(),
        "the number of malformed lines differs",
    );
    let has_visible_output = events
        .iter()
        .any(|event| matches!(event, AgentEvent::Output(output) if output.visible));
    let visible = AgentEvent::Phase(TurnPhase::FirstVisibleEventSeen);
    rule(
        has_visible_output == events.contains(&visible),
        "visible output and its phase differ",
    );
    broken.extend(mismatched_permission_digest(events));
    broken
}

/// The digest must be that of the shown arguments.
fn mismatched_permission_digest(events: &[AgentEvent]) -> Option<String> {
    use sha2::{Digest, Sha256};
    let differ = |event: &AgentEvent| match event {
        AgentEvent::InputAsked(input) => match &input.kind {
            AgentInputKind::Permission(permission) => {
                let digest: [u8; 32] = Sha256::digest(permission.arguments.as_bytes()).into();
                digest != permission.digest || permission.arguments.len() < 3
            }
            AgentInputKind::Questions(questions) => questions.is_empty(),
        },
        _ => false,
    };
    events
        .iter()
        .any(differ)
        .then(|| "an input is not bound to its shown arguments".to_owned())
}
