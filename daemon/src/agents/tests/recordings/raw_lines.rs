//! The independent reader: facts of a recording's raw lines for each wire, by the field names
//! of the report. It does not use the adapters.

use std::collections::BTreeMap;

use serde_json::Value;

use super::claude_lines::{claude_block, claude_request};
use super::codex_lines::{CAMEL, SNAKE, codex_item, codex_request, codex_tokens};
use super::turn_facts::StatedOutcome;
use crate::agents::outcome::turn_usage::{DollarAmount, TokenCounts};
use crate::config::AgentWire;

/// One fact of a line.
#[derive(Debug)]
pub(super) enum LineFact {
    Prompt,
    /// Output that a person would see.
    Visible,
    ToolBegan(String, String),
    ToolEnded(String, bool),
    Asked(String, String),
    Answered(String),
    Withdrawn(String),
    /// Usage of the turn so far, and its cost; replaces earlier usage.
    Used(TokenCounts, Option<DollarAmount>),
    /// Text of the agent that may become its result, by message; `None` drops it.
    Text(Option<(String, String)>),
    End(StatedOutcome),
}

/// State that is kept between lines.
#[derive(Debug, Default)]
pub(super) struct RawLineReader {
    /// Ids of the client's prompt requests.
    prompts: Vec<String>,
    /// Ids of requests that open a conversation, and whether they resume one.
    openings: Vec<(String, bool)>,
    /// The conversation to resume. If set, totals are older than the process.
    resuming: Option<String>,
    cost: DollarAmount,
    cost_known: bool,
    cost_before: Option<DollarAmount>,
    turn_used: TokenCounts,
    /// The last reported usage of the whole thread.
    thread_used: Option<TokenCounts>,
    /// The model has answered in this turn.
    answered: bool,
    /// Usage that an ACP agent reports after each request.
    by_request: Option<TokenCounts>,
    turn: String,
    /// Names and kinds of tool calls by id, where they were reported.
    names: BTreeMap<String, (String, String)>,
}

impl RawLineReader {
    pub(super) fn new(resuming: Option<String>) -> Self {
        Self {
            cost_known: resuming.is_none(),
            resuming,
            ..Self::default()
        }
    }

    /// A line that was written to the agent.
    pub(super) fn facts_of_stdin_line(&mut self, wire: AgentWire, line: &Value) -> Vec<LineFact> {
        let id = line["id"].to_string();
        match (wire, text_field(line, "/method"), text_field(line, "/type")) {
            (AgentWire::Claude, _, "user") => vec![LineFact::Prompt],
            (AgentWire::Claude, _, "control_response") => {
                vec![LineFact::Answered(
                    text_field(line, "/response/request_id").to_owned(),
                )]
            }
            (_, "turn/start" | "session/prompt", _) => {
                self.prompts.push(id);
                self.cost_before = self.cost_known.then_some(self.cost);
                vec![LineFact::Prompt]
            }
            (_, "session/load" | "session/resume" | "thread/resume", _) => {
                self.openings.push((id, true));
                Vec::new()
            }
            (_, "initialize" | "session/new" | "thread/start", _) => {
                self.openings.push((id, false));
                Vec::new()
            }
            (AgentWire::CodexAppServer | AgentWire::Acp, "", _) => vec![LineFact::Answered(id)],
            _ => Vec::new(),
        }
    }

    /// A line of the agent's output.
    pub(super) fn facts_of_stdout_line(&mut self, wire: AgentWire, line: &Value) -> Vec<LineFact> {
        match wire {
            AgentWire::Claude => self.claude(line),
            AgentWire::CodexExec => self.exec(line),
            AgentWire::CodexAppServer => self.app_server(line),
            AgentWire::Acp => self.acp(line),
        }
    }

    fn claude(&mut self, line: &Value) -> Vec<LineFact> {
        match (
            text_field(line, "/type"),
            text_field(line, "/event/delta/type"),
        ) {
            ("stream_event", "text_delta") => visible_text(text_field(line, "/event/delta/text")),
            (role @ ("assistant" | "user"), _) if line["is_api_error_message"] != true => {
                let blocks = items(line, "/message/content").iter();
                blocks.flat_map(|block| claude_block(role, block)).collect()
            }
            ("control_request", _) => claude_request(line),
            ("control_cancel_request", _) => {
                vec![LineFact::Withdrawn(
                    text_field(line, "/request_id").to_owned(),
                )]
            }
            ("result", _) => self.claude_result(line),
            _ => Vec::new(),
        }
    }

    /// Totals are cumulative; `model_usage_since_last_result` and `usage` are of the turn.
    fn claude_result(&mut self, line: &Value) -> Vec<LineFact> {
        let since = line["model_usage_since_last_result"].as_object();
        let by_model = since.map(|models| {
            let models = models.values();
            let sum = |name| models.clone().map(|model| number(&model[name])).sum();
            TokenCounts {
                input: sum("inputTokens"),
                output: sum("outputTokens"),
                cache_read: sum("cacheReadInputTokens"),
                cache_write: sum("cacheCreationInputTokens"),
            }
        });
        let usage = &line["usage"];
        let tokens = by_model.unwrap_or(TokenCounts {
            input: number(&usage["input_tokens"]),
            output: number(&usage["output_tokens"]),
            cache_read: number(&usage["cache_read_input_tokens"]),
            cache_write: number(&usage["cache_creation_input_tokens"]),
        });
        let total = DollarAmount::from_json(&line["total_cost_usd"]).unwrap_or_default();
        let prices = since.map(|models| {
            let prices = models
                .values()
                .filter_map(|model| DollarAmount::from_json(&model["costUSD"]));
            prices.fold(DollarAmount::default(), DollarAmount::plus)
        });
        let before = std::mem::replace(&mut self.cost, total);
        let known = std::mem::replace(&mut self.cost_known, true);
        let whole = line["modelUsage"].as_object().map(|models| {
            let inputs = models.values().map(|model| number(&model["inputTokens"]));
            inputs.sum::<u64>()
        });
        // If the total's tokens are this turn's, so is its cost.
        let new = whole.is_some_and(|whole| whole > 0 && whole == tokens.input);
        let known = known || new;
        let price = prices.or_else(|| known.then(|| total.since(before)));
        let well = line["is_error"] == false && text_field(line, "/subtype") == "success";
        let end = match well {
            true => StatedOutcome::Result(text_field(line, "/result").to_owned()),
            false => StatedOutcome::NotSuccessful,
        };
        vec![LineFact::Used(tokens, price), LineFact::End(end)]
    }

    fn app_server(&mut self, line: &Value) -> Vec<LineFact> {
        let params = &line["params"];
        let item = text_field(params, "/itemId").to_owned();
        match text_field(line, "/method") {
            "turn/started" => {
                self.turn = text_field(params, "/turn/id").to_owned();
                self.turn_used = TokenCounts::default();
                self.answered = false;
                Vec::new()
            }
            "item/agentMessage/delta" => message_text(item, text_field(params, "/delta")),
            "turn/plan/updated" => vec![LineFact::Visible],
            "item/started" => {
                self.answered |= text_field(params, "/item/type") != "userMessage";
                codex_item(&params["item"], false)
            }
            "item/completed" => codex_item(&params["item"], true),
            "thread/tokenUsage/updated" => {
                let usage = &params["tokenUsage"];
                // A repeated total is not new usage, nor is the earlier usage of a resumed
                // thread before the turn's first output.
                let old = self.resuming.is_some() && self.thread_used.is_none() && !self.answered;
                let total = Some(codex_tokens(&usage["total"], CAMEL));
                let again = std::mem::replace(&mut self.thread_used, total) == total;
                if text_field(params, "/turnId") != self.turn {
                    return Vec::new();
                }
                if !again && !old {
                    let last = codex_tokens(&usage["last"], CAMEL);
                    self.turn_used = self.turn_used.plus(last);
                }
                vec![LineFact::Used(self.turn_used, None)]
            }
            "serverRequest/resolved" => vec![LineFact::Withdrawn(params["requestId"].to_string())],
            "turn/completed" => vec![LineFact::End(match text_field(params, "/turn/status") {
                "completed" => StatedOutcome::Result(String::new()),
                "interrupted" => StatedOutcome::Interrupted,
                _ => StatedOutcome::NotSuccessful,
            })],
            "" => self.failed(line),
            _ if line.get("id").is_some() => codex_request(line),
            _ => Vec::new(),
        }
    }

    /// An error response to a request without which there is no turn.
    fn failed(&self, line: &Value) -> Vec<LineFact> {
        let id = line["id"].to_string();
        let opening = self.openings.iter().find(|(opening, _)| *opening == id);
        let outcome = match opening {
            Some((_, true)) => StatedOutcome::Failed("resume_failed".to_owned()),
            Some((_, false)) => StatedOutcome::NotSuccessful,
            None if self.prompts.contains(&id) => StatedOutcome::NotSuccessful,
            None => return Vec::new(),
        };
        let failed = line.get("error").is_some();
        failed
            .then_some(LineFact::End(outcome))
            .into_iter()
            .collect()
    }

    fn exec(&self, line: &Value) -> Vec<LineFact> {
        match text_field(line, "/type") {
            "thread.started" => {
                let another = |wanted: &String| wanted != text_field(line, "/thread_id");
                let anew = self.resuming.as_ref().is_some_and(another);
                let end = LineFact::End(StatedOutcome::Failed("resume_failed".to_owned()));
                anew.then_some(end).into_iter().collect()
            }
            "item.started" => codex_item(&line["item"], false),
            "item.completed" => codex_item(&line["item"], true),
            "turn.completed" => vec![
                LineFact::Used(codex_tokens(&line["usage"], SNAKE), None),
                LineFact::End(StatedOutcome::Result(String::new())),
            ],
            "turn.failed" => vec![LineFact::End(StatedOutcome::NotSuccessful)],
            _ => Vec::new(),
        }
    }

    fn acp(&mut self, line: &Value) -> Vec<LineFact> {
        let update = &line["params"]["update"];
        let id = line["id"].to_string();
        match (
            text_field(line, "/method"),
            text_field(update, "/sessionUpdate"),
        ) {
            ("session/update", "agent_message_chunk") => {
                let usage = &update["_meta"]["usage"];
                if usage.is_object() {
                    let before = self.by_request.unwrap_or_default();
                    self.by_request = Some(before.plus(acp_tokens(usage)));
                }
                let message = text_field(update, "/messageId").to_owned();
                match text_field(update, "/content/type") {
                    "text" => message_text(message, text_field(update, "/content/text")),
                    _ => vec![LineFact::Visible],
                }
            }
            ("session/update", "plan" | "notice") => vec![LineFact::Visible],
            ("session/update", "tool_call") => {
                let mut facts = self.acp_call(update);
                facts.push(LineFact::Visible);
                facts
            }
            ("session/update", "tool_call_update") => self.acp_call(update),
            ("session/update", "usage_update") => {
                if let Some(price) = DollarAmount::from_json(&update["cost"]["amount"]) {
                    (self.cost, self.cost_known) = (price, true);
                }
                Vec::new()
            }
            ("session/request_permission", _) => {
                let call = &line["params"]["toolCall"];
                let mut facts = self.acp_call(call);
                let name = self.acp_name(call);
                // A permission that the agent does not offer for one use is not asked.
                let mut options = items(line, "/params/options").iter();
                if options.any(|option| text_field(option, "/kind") == "allow_once") {
                    facts.push(LineFact::Asked(id, format!("permission({name})")));
                }
                facts
            }
            ("elicitation/create", _) => {
                let what = elicited(&line["params"]);
                what.map(|what| LineFact::Asked(id, what))
                    .into_iter()
                    .collect()
            }
            ("", _) if self.prompts.contains(&id) => self.acp_end(line),
            ("", _) => self.failed(line),
            _ => Vec::new(),
        }
    }

    fn acp_end(&mut self, line: &Value) -> Vec<LineFact> {
        let usage = &line["result"]["usage"];
        let quota = &line["result"]["_meta"]["quota"]["token_count"];
        let price = self.cost_before.map(|before| self.cost.since(before));
        let price = price.filter(|price| *price != DollarAmount::default());
        let by_request = self.by_request.take();
        let tokens = if usage.is_object() {
            Some(acp_tokens(usage))
        } else {
            quota.get("input_tokens").map(|input| TokenCounts {
                input: number(input),
                output: number(&quota["output_tokens"]),
                cache_read: number(&quota["cached_tokens"]),
                cache_write: 0,
            })
        };
        let tokens = tokens.or(by_request);
        let tokens = tokens.or(price.map(|_| TokenCounts::default()));
        let used = tokens.map(|tokens| LineFact::Used(tokens, price));
        let end = match text_field(line, "/result/stopReason") {
            "end_turn" => StatedOutcome::Result(String::new()),
            _ => StatedOutcome::NotSuccessful,
        };
        used.into_iter().chain([LineFact::End(end)]).collect()
    }

    /// By its name, or else by its kind; later updates of a call need not repeat them.
    fn acp_name(&self, call: &Value) -> String {
        let known = self.names.get(text_field(call, "/toolCallId"));
        let (name, kind) = known.map_or(("", ""), |(name, kind)| (name, kind));
        let names = [own_name(call), name, text_field(call, "/kind"), kind];
        let mut names = names.into_iter();
        names
            .find(|name| !name.is_empty())
            .unwrap_or("tool")
            .to_owned()
    }

    /// Every message about a tool call is its start, and ends the agent's current text message.
    fn acp_call(&mut self, call: &Value) -> Vec<LineFact> {
        let id = text_field(call, "/toolCallId").to_owned();
        let name = self.acp_name(call);
        let known = self.names.entry(id.clone()).or_default();
        if !own_name(call).is_empty() {
            known.0 = own_name(call).to_owned();
        }
        if !text_field(call, "/kind").is_empty() {
            known.1 = text_field(call, "/kind").to_owned();
        }
        let mut facts = vec![LineFact::Text(None), LineFact::ToolBegan(id.clone(), name)];
        let status = text_field(call, "/status");
        if matches!(status, "completed" | "failed") {
            facts.push(LineFact::ToolEnded(id, status == "failed"));
        }
        facts
    }
}

fn own_name(call: &Value) -> &str {
    let notes = ["claudeCode/toolName", "toolName", "tool_name"];
    let notes = notes.map(|note| text_field(call, &format!("/_meta/{note}")));
    let mut names = [text_field(call, "/name")].into_iter().chain(notes);
    names.find(|name| !name.is_empty()).unwrap_or_default()
}

/// The parts add up to the total, with or without cached tokens in the input and thought tokens
/// in the output.
fn acp_tokens(usage: &Value) -> TokenCounts {
    let of = |name: &str| number(&usage[name]);
    let (input, output) = (of("inputTokens"), of("outputTokens"));
    let (cache_read, cache_write) = (of("cachedReadTokens"), of("cachedWriteTokens"));
    let (cached, thoughts) = (cache_read + cache_write, of("thoughtTokens"));
    let more = of("totalTokens").checked_sub(input + output);
    let apart = more == Some(cached) || more == Some(cached + thoughts);
    let within = !apart && (more == Some(0) || more == Some(thoughts));
    let beside = more == Some(thoughts + if apart { cached } else { 0 }) && more != Some(cached);
    TokenCounts {
        input: if within { input - cached } else { input },
        output: if beside { output + thoughts } else { output },
        cache_read,
        cache_write,
    }
}

/// Whether a line shows that the agent works on its prompt: not information about itself or the
/// session, and not the response to a request.
pub(super) fn is_event(wire: AgentWire, line: &Value) -> bool {
    let (method, update) = (
        text_field(line, "/method"),
        text_field(line, "/params/update/sessionUpdate"),
    );
    match wire {
        AgentWire::Claude | AgentWire::CodexExec => true,
        _ if method.is_empty() => line.get("error").is_some(),
        AgentWire::CodexAppServer => {
            let of_turn = ["turn/", "item/", "error", "thread/status/changed"];
            of_turn.iter().any(|kind| method.starts_with(kind))
        }
        AgentWire::Acp => {
            let of_session = [
                "available_commands_update",
                "current_mode_update",
                "config_option_update",
                "session_info_update",
                "user_message_chunk",
            ];
            let about_itself = ["auth/status_update", "elicitation/complete"];
            let own = method.starts_with('_') || about_itself.contains(&method);
            !own && !of_session.contains(&update)
        }
    }
}

/// A form to fill in, a form that asks for a yes or no, or a URL to visit, which is not asked.
pub(super) fn elicited(params: &Value) -> Option<String> {
    if text_field(params, "/mode") == "url" {
        return None;
    }
    let fields = ["requestedSchema", "requested_schema"].map(|name| &params[name]["properties"]);
    let fields = fields.into_iter().filter_map(Value::as_object).flatten();
    let asked = fields
        .filter(|(name, _)| !name.ends_with("_custom"))
        .count();
    let server = [
        text_field(params, "/serverName"),
        text_field(params, "/mcp_server_name"),
    ]
    .concat();
    Some(match (asked, server.as_str()) {
        (0, "") => "permission(confirmation)".to_owned(),
        (0, server) => format!("permission({server})"),
        (asked, _) => format!("questions({asked})"),
    })
}

/// An empty text is not visible.
pub(super) fn visible_text(text: &str) -> Vec<LineFact> {
    let visible_text = (!text.is_empty()).then_some(LineFact::Visible);
    visible_text.into_iter().collect()
}

pub(super) fn message_text(message: String, text: &str) -> Vec<LineFact> {
    let mut facts = visible_text(text);
    facts.push(LineFact::Text(Some((message, text.to_owned()))));
    facts
}

pub(super) fn text_field<'a>(line: &'a Value, path: &str) -> &'a str {
    let found = line.pointer(path).and_then(Value::as_str);
    found.unwrap_or_default()
}

pub(super) fn items<'a>(line: &'a Value, path: &str) -> &'a [Value] {
    let found = line.pointer(path).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
