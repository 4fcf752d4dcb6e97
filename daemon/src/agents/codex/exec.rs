//! `codex exec --json`: events on stdout, the prompt on stdin, which is closed behind it. It cannot ask anybody, and
//! what it says was used is the whole thread's.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::event::{AgentEvent, AgentExit, Message, Outcome};
use super::super::failure::{self, Failure, FailureClass, provider_failure};
use super::super::turn::Turn;
use super::super::usage::{Tokens, TurnUsage};
use super::super::wire::text;
use super::{on_item, on_progress};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    turn: Turn,
    resuming: Option<String>,
    /// What the thread had used before this turn. Unknown: what this turn uses cannot be told either.
    used_before: Option<Tokens>,
}

impl Exec {
    pub(crate) fn new(resuming: Option<String>, used_before: Option<Tokens>) -> Self {
        Self {
            turn: Turn::default(),
            used_before: match &resuming {
                None => Some(Tokens::default()),
                Some(_) => used_before,
            },
            resuming,
        }
    }

    pub(in super::super) fn prompt(text: &str) -> Message {
        Message {
            bytes: text.as_bytes().to_vec(),
            last: true,
        }
    }

    pub(in super::super) fn line(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) -> bool {
        let Some(kind) = message.get("type").and_then(Value::as_str) else {
            return false;
        };
        let item = message.get("item").unwrap_or(&Value::Null);
        match kind {
            "thread.started" => self.on_thread(message, out),
            "turn.started" => {
                self.turn.begin_unless_begun(out);
                self.turn.heard(out);
            }
            "item.started" => on_item(&mut self.turn, item, false, false, out),
            "item.updated" => on_progress(&mut self.turn, json, text(item, "/id"), out),
            "item.completed" => on_item(&mut self.turn, item, true, false, out),
            "turn.completed" => self.on_completed(message, out),
            "turn.failed" => {
                let failure = provider_failure(None, "", text(message, "/error/message"));
                self.turn.fail(failure, out);
            }
            // It may be about to try again: only the end of the turn decides.
            "error" => self.turn.say(OutputKind::System, false, json, None, out),
            _ => self.turn.say(OutputKind::Opaque, false, json, None, out),
        }
        true
    }

    /// A name that it does not know makes it start anew, without a word.
    fn on_thread(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        self.turn.begin_unless_begun(out);
        self.turn.heard(out);
        let id = text(message, "/thread_id");
        match &self.resuming {
            Some(wanted) if wanted != id => {
                let message =
                    format!("codex started thread {id} instead of going on with {wanted}");
                self.turn
                    .fail(Failure::new(FailureClass::ResumeFailed, message), out);
            }
            Some(_) | None => self.turn.converses(id, out),
        }
    }

    fn on_completed(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        let usage = message.get("usage").filter(|usage| usage.is_object());
        let total = usage.map(|usage| {
            let names = [
                "input_tokens",
                "output_tokens",
                "cached_input_tokens",
                "cache_write_input_tokens",
            ];
            Tokens::read_with_cached_input(usage, names)
        });
        let usage = total
            .zip(self.used_before)
            .map(|(total, before)| TurnUsage {
                tokens: total.since(before),
                ..TurnUsage::default()
            });
        self.used_before = total.or(self.used_before);
        let words = self.turn.words().to_owned();
        self.turn.end(Outcome::Result(words), usage, out);
    }

    /// It reads one prompt, up to the end of its stdin.
    pub(in super::super) fn wrote(&mut self, out: &mut Vec<AgentEvent>) {
        self.turn.begin_unless_begun(out);
    }

    pub(in super::super) fn exited(
        &mut self,
        exit: AgentExit,
        stderr: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        let resuming = self.resuming.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.process_ended(failure, out);
    }
}
