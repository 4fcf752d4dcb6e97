//! A recorded conversation as text: one step per line, messages in hex after their kind.

use std::collections::HashMap;
use std::fmt::Write as _;

/// Length of a UUID as text.
const ID_LENGTH: usize = 36;

/// Recorded steps, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordedStep {
    /// A client's encoded SubmitRequest, and the SubmitResponse that it got.
    Submit {
        request: Vec<u8>,
        response: Vec<u8>,
    },
    /// A client canceled a task.
    Cancel {
        task: String,
    },
    /// A client waited until the task had this state.
    Until {
        task: String,
        state: String,
    },
    /// A file that a child waits for was created in the daemon's working directory.
    Touch {
        file: String,
    },
    /// The connection between daemon and relay was cut, and restored.
    Cut,
    Restore,
    /// The daemon got TERM.
    Terminate,
    /// A DaemonFrame. Hello opens a stream.
    Up {
        kind: String,
        bytes: Vec<u8>,
    },
    /// A RelayFrame.
    Down {
        kind: String,
        bytes: Vec<u8>,
    },
    /// The end of the task, with all its output.
    End {
        task: String,
        state: String,
        output: Vec<u8>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedConversation(pub(crate) Vec<RecordedStep>);

impl RecordedConversation {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(parse_step).collect())
    }

    /// In the order of the daemon: its first heartbeat follows Welcome, independent of frames
    /// that crossed it on the way to the tap.
    pub(crate) fn in_daemon_order(&self) -> Vec<&RecordedStep> {
        let is = |step: &RecordedStep, name: &str| match step {
            RecordedStep::Up { kind, .. } | RecordedStep::Down { kind, .. } => kind == name,
            _ => false,
        };
        let mut steps: Vec<&RecordedStep> = self.0.iter().collect();
        for at in 0..steps.len() {
            let rest = &mut steps[at..];
            let beat = rest.iter().position(|step| is(step, "heartbeat"));
            let next = rest.iter().position(|step| is(step, "hello"));
            if let Some(beat) = beat.filter(|beat| next.is_none_or(|next| *beat < next))
                && is(rest[0], "welcome")
            {
                rest[1..=beat].rotate_right(1);
            }
        }
        steps
    }

    /// The same conversation about other attempts, so that two concurrent replays do not sweep
    /// each other's processes. Ids are text of a fixed length everywhere.
    pub(crate) fn with_fresh_ids(&self) -> Self {
        let mut fresh = HashMap::new();
        let mut replace = |bytes: &mut [u8]| {
            let mut at = 0;
            while let Some(window) = bytes.get_mut(at..at + ID_LENGTH) {
                if uuid::Uuid::try_parse_ascii(window).is_ok() {
                    let id = fresh
                        .entry(window.to_vec())
                        .or_insert_with(|| uuid::Uuid::now_v7().to_string());
                    window.copy_from_slice(id.as_bytes());
                    at += ID_LENGTH;
                } else {
                    at += 1;
                }
            }
        };
        let mut tape = self.clone();
        for step in &mut tape.0 {
            match step {
                RecordedStep::Submit { request, response } => {
                    replace(request);
                    replace(response);
                }
                RecordedStep::Up { bytes, .. } | RecordedStep::Down { bytes, .. } => replace(bytes),
                RecordedStep::Cancel { task }
                | RecordedStep::Until { task, .. }
                | RecordedStep::End { task, .. } => {
                    let mut id = std::mem::take(task).into_bytes();
                    replace(&mut id);
                    *task = String::from_utf8(id).expect("an id is text");
                }
                RecordedStep::Touch { .. }
                | RecordedStep::Cut
                | RecordedStep::Restore
                | RecordedStep::Terminate => {}
            }
        }
        tape
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.0 {
            let _ = writeln!(text, "{}", step_to_line(step));
        }
        text
    }
}

fn step_to_line(step: &RecordedStep) -> String {
    match step {
        RecordedStep::Submit { request, response } => {
            format!("submit {} {}", hex(request), hex(response))
        }
        RecordedStep::Cancel { task } => format!("cancel {task}"),
        RecordedStep::Until { task, state } => format!("until {task} {state}"),
        RecordedStep::Touch { file } => format!("touch {file}"),
        RecordedStep::Cut => "cut".to_owned(),
        RecordedStep::Restore => "mend".to_owned(),
        RecordedStep::Terminate => "terminate".to_owned(),
        RecordedStep::Up { kind, bytes } => format!("up {kind} {}", hex(bytes)),
        RecordedStep::Down { kind, bytes } => format!("down {kind} {}", hex(bytes)),
        RecordedStep::End {
            task,
            state,
            output,
        } => format!("end {task} {state} {}", hex(output)),
    }
}

fn parse_step(line: &str) -> RecordedStep {
    let mut fields = line.split(' ');
    let verb = fields.next().unwrap_or_default();
    let mut field = || {
        let field = fields.next();
        field
            .unwrap_or_else(|| panic!("a line of the tape lacks a field: {line}"))
            .to_owned()
    };
    match verb {
        "submit" => RecordedStep::Submit {
            request: bytes_from_hex(&field()),
            response: bytes_from_hex(&field()),
        },
        "cancel" => RecordedStep::Cancel { task: field() },
        "until" => RecordedStep::Until {
            task: field(),
            state: field(),
        },
        "touch" => RecordedStep::Touch { file: field() },
        "cut" => RecordedStep::Cut,
        "mend" => RecordedStep::Restore,
        "terminate" => RecordedStep::Terminate,
        "up" => RecordedStep::Up {
            kind: field(),
            bytes: bytes_from_hex(&field()),
        },
        "down" => RecordedStep::Down {
            kind: field(),
            bytes: bytes_from_hex(&field()),
        },
        "end" => RecordedStep::End {
            task: field(),
            state: field(),
            output: bytes_from_hex(&field()),
        },
        other => panic!("unknown step in the tape: {other:?}"),
    }
}

/// Empty bytes are a dash, so that every line has all its fields.
fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_from_hex(hex: &str) -> Vec<u8> {
    if hex == "-" {
        return Vec::new();
    }
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex is ASCII");
        u8::from_str_radix(pair, 16).expect("a tape's bytes are hex")
    };
    digits.map(byte).collect()
}

#[test]
fn a_tape_is_parsed_as_it_was_written() {
    let up = RecordedStep::Up {
        kind: "hello".to_owned(),
        bytes: vec![0, 255, 16],
    };
    let end = RecordedStep::End {
        task: "t".to_owned(),
        state: "completed".to_owned(),
        output: Vec::new(),
    };
    let tape = RecordedConversation(vec![up, RecordedStep::Cut, RecordedStep::Restore, end]);
    assert_eq!(RecordedConversation::parse(&tape.text()), tape);
}
