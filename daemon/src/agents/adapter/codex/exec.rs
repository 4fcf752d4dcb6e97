//! `codex exec --json`: events on stdout, the prompt on stdin, which is closed after it. It
//! cannot ask for input, and its token counts are totals of the whole thread.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::agent_event::{AgentEvent, AgentExit, StdinMessage, TurnOutcome};
use super::super::json_rpc::text_at;
use super::super::turn_state::TurnState;
use super::{on_item, on_progress};
use crate::agents::outcome::failure;
use crate::agents::outcome::failure::{FailureClass, TurnFailure, provider_failure};
use crate::agents::outcome::turn_usage::{TokenCounts, TurnUsage};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CodexExec {
    turn: TurnState,
    resuming: Option<String>,
    /// The thread's usage before this turn. If it is unknown, this turn's usage is unknown too.
    used_before: Option<TokenCounts>,
}

impl CodexExec {
    pub(crate) fn new(resuming: Option<String>, used_before: Option<TokenCounts>) -> Self {
        Self {
            turn: TurnState::default(),
            used_before: match &resuming {
                None => Some(TokenCounts::default()),
                Some(_) => used_before,
            },
            resuming,
        }
    }

    pub(in crate::agents) fn prompt_message(text: &str) -> StdinMessage {
        StdinMessage {
            bytes: text.as_bytes().to_vec(),
            last: true,
        }
    }

    pub(in crate::agents) fn on_message(
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
                self.turn.begin_if_not_begun(out);
                self.turn.mark_active(out);
            }
            "item.started" => on_item(&mut self.turn, item, false, false, out),
            "item.updated" => on_progress(&mut self.turn, json, text_at(item, "/id"), out),
            "item.completed" => on_item(&mut self.turn, item, true, false, out),
            "turn.completed" => self.on_completed(message, out),
            "turn.failed" => {
                let failure = provider_failure(None, "", text_at(message, "/error/message"));
                self.turn.fail_turn(failure, out);
            }
            // It may retry, so only the end of the turn decides.
            "error" => self
                .turn
                .push_output(OutputKind::System, false, json, None, out),
            _ => self
                .turn
                .push_output(OutputKind::Opaque, false, json, None, out),
        }
        true
    }

    /// For an unknown thread id, codex starts a new thread without an error.
    fn on_thread(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        self.turn.begin_if_not_begun(out);
        self.turn.mark_active(out);
        let id = text_at(message, "/thread_id");
        match &self.resuming {
            Some(requested) if requested != id => {
                let message = format!("codex started thread {id} instead of resuming {requested}");
                self.turn
                    .fail_turn(TurnFailure::new(FailureClass::ResumeFailed, message), out);
            }
            Some(_) | None => self.turn.set_conversation(id, out),
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
            TokenCounts::read_with_cached_input(usage, names)
        });
        let usage = total
            .zip(self.used_before)
            .map(|(total, before)| TurnUsage {
                tokens: total.since(before),
                ..TurnUsage::default()
            });
        self.used_before = total.or(self.used_before);
        let result = self.turn.last_text().to_owned();
        self.turn.end_turn(TurnOutcome::Result(result), usage, out);
    }

    /// It reads one prompt, up to the end of its stdin.
    pub(in crate::agents) fn on_written(&mut self, out: &mut Vec<AgentEvent>) {
        self.turn.begin_if_not_begun(out);
    }

    pub(in crate::agents) fn on_exit(
        &mut self,
        exit: AgentExit,
        stderr: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        let resuming = self.resuming.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.on_process_end(failure, out);
    }
}
