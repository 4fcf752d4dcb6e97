//! Notifications of `codex app-server`: turns, items and their pieces, usage, and other threads.

use baton_proto::v1::OutputKind;
use serde_json::{Value, json};

use super::super::agent_event::{AgentEvent, InputKey, TurnOutcome};
use super::super::json_rpc::text_at;
use super::app_server::CodexAppServer;
use super::{on_item, on_progress};
use crate::agents::outcome::failure::{FailureClass, TurnFailure, provider_failure};
use crate::agents::outcome::turn_usage::TurnUsage;

impl CodexAppServer {
    pub(super) fn on_notification(
        &mut self,
        json: &str,
        method: &str,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let thread = text_at(params, "/threadId");
        let is_own_thread = self
            .turn
            .conversation()
            .is_none_or(|known| thread.is_empty() || known == thread);
        if !is_own_thread {
            self.on_other_thread(json, method, out);
            return;
        }
        let item = params.get("item").unwrap_or(&Value::Null);
        match method {
            "turn/started" => {
                self.on_turn_id(text_at(params, "/turn/id"));
                self.turn.mark_active(out);
            }
            "item/started" => {
                self.totals.on_item(item);
                self.remember_item(item);
                on_item(&mut self.turn, item, false, false, out);
                self.track_helper(item);
            }
            "item/completed" => {
                self.totals.on_item(item);
                let streamed = self.streamed_items.remove(text_at(item, "/id"));
                self.file_changes.remove(text_at(item, "/id"));
                self.command_lines.remove(text_at(item, "/id"));
                self.helpers.remove(text_at(item, "/id"));
                on_item(&mut self.turn, item, true, streamed, out);
            }
            _ if method.starts_with("item/") => self.on_delta(json, method, params, out),
            "thread/tokenUsage/updated" => {
                let this_turn = self.turn_id.as_deref() == Some(text_at(params, "/turnId"));
                let resumed = self.opening.resume.is_some();
                self.totals.on_usage(params, this_turn, resumed);
            }
            "serverRequest/resolved" => {
                let id = params.get("requestId").unwrap_or(&Value::Null);
                let key = InputKey(id.to_string());
                self.turn
                    .close_withdrawn(&key, "the agent withdrew it", out);
            }
            "turn/completed" if self.is_this_turn(params) => self.on_turn_completed(params, out),
            "turn/plan/updated" => {
                let plan = params.get("plan").unwrap_or(&Value::Null);
                self.turn
                    .push_output(OutputKind::System, true, plan.to_string(), None, out);
            }
            "model/rerouted" => {
                self.model = Some(text_at(params, "/toModel").to_owned());
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            "error" | "thread/status/changed" => {
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            _ if method.starts_with("turn/") || method.starts_with("hook/") => {
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            _ if is_program_notice(method) => self.turn.push_aside(json, out),
            _ => self
                .turn
                .push_output(OutputKind::Opaque, false, json, None, out),
        }
    }

    /// Notifications of other threads, which belong to agents started by this one. They count
    /// as activity of the tools that wait for them.
    fn on_other_thread(&mut self, json: &str, method: &str, out: &mut Vec<AgentEvent>) {
        if self.helpers.is_empty() {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
        }
        let is_delta = method.to_lowercase().ends_with("delta");
        for tool in &self.helpers {
            if is_delta {
                self.turn.push_silent_activity(json, Some(tool), out);
            } else {
                self.turn
                    .push_output(OutputKind::System, false, json, Some(tool), out);
            }
        }
    }

    /// Remembers what an item would do, for an approval request that does not repeat it.
    fn remember_item(&mut self, item: &Value) {
        let id = text_at(item, "/id");
        if let Some(changes) = item.get("changes") {
            self.file_changes.insert(id, changes.to_string());
        }
        if text_at(item, "/type") == "commandExecution" {
            let command = json!({"command": item.get("command"), "cwd": item.get("cwd")});
            self.command_lines.insert(id, command.to_string());
        }
    }

    /// Remembers an open tool that runs other agents.
    fn track_helper(&mut self, item: &Value) {
        let id = text_at(item, "/id");
        if text_at(item, "/type").starts_with("collab") && self.turn.is_tool_open(id) {
            self.helpers.insert(id.to_owned());
        }
    }

    /// Whether this belongs to the running turn, as far as the ids show.
    fn is_this_turn(&self, params: &Value) -> bool {
        let turn_id = text_at(params, "/turn/id");
        let current = self.turn_id.as_deref().unwrap_or(turn_id);
        self.turn.is_running() && (turn_id.is_empty() || turn_id == current)
    }

    /// A piece of an item.
    fn on_delta(&mut self, json: &str, method: &str, params: &Value, out: &mut Vec<AgentEvent>) {
        let (item, piece) = (text_at(params, "/itemId"), text_at(params, "/delta"));
        match method {
            "item/agentMessage/delta" => {
                self.streamed_items.insert(item);
                self.turn.push_text(piece, Some(item), out);
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.streamed_items.insert(item);
                self.turn
                    .push_output(OutputKind::Thinking, false, piece, None, out);
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.streamed_items.insert(item);
                self.turn
                    .push_output(OutputKind::ToolResult, true, piece, Some(item), out);
            }
            // The change to approve may still be updated before the approval request.
            "item/fileChange/patchUpdated" => {
                let changes = params.get("changes").unwrap_or(&Value::Null);
                self.file_changes.insert(item, changes.to_string());
                on_progress(&mut self.turn, json, item, out);
            }
            _ => on_progress(&mut self.turn, json, item, out),
        }
    }

    fn on_turn_completed(&mut self, params: &Value, out: &mut Vec<AgentEvent>) {
        let usage = self.totals.end_turn().map(|tokens| TurnUsage {
            tokens,
            model: self.model.clone().or_else(|| self.opening.model.clone()),
            ..TurnUsage::default()
        });
        let outcome = match text_at(params, "/turn/status") {
            "completed" => TurnOutcome::Result(self.turn.last_text().to_owned()),
            "interrupted" => TurnOutcome::Interrupted,
            "failed" => TurnOutcome::Failed(turn_failure(params.pointer("/turn/error"))),
            other => TurnOutcome::Failed(TurnFailure::new(
                FailureClass::OutputInvalid,
                format!("codex ended the turn as {other:?}"),
            )),
        };
        self.file_changes.clear();
        self.command_lines.clear();
        self.helpers.clear();
        self.streamed_items.clear();
        self.turn.end_turn(outcome, usage, out);
    }
}

/// Notifications about the program, the account or the whole thread. Some come right after the
/// response that opens a thread, when the prompt has just been written.
fn is_program_notice(method: &str) -> bool {
    let prefixes = [
        "thread/",
        "account/",
        "model/",
        "mcpServer/",
        "remoteControl/",
    ];
    let methods = [
        "warning",
        "configWarning",
        "guardianWarning",
        "deprecationNotice",
    ];
    methods.contains(&method) || prefixes.iter().any(|prefix| method.starts_with(prefix))
}

/// `codexErrorInfo` is a string, or an object with one key and possibly a status below it.
fn turn_failure(error: Option<&Value>) -> TurnFailure {
    let error = error.unwrap_or(&Value::Null);
    let (kind, status) = match error.get("codexErrorInfo") {
        Some(Value::String(kind)) => (kind.as_str(), None),
        Some(Value::Object(info)) => info.iter().next().map_or(("", None), |(kind, details)| {
            let status = details.get("httpStatusCode").and_then(Value::as_u64);
            (kind.as_str(), status)
        }),
        Some(_) | None => ("", None),
    };
    provider_failure(status, kind, text_at(error, "/message"))
}
