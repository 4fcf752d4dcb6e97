//! From the first word to the prompt: versions, the session, and the options that the task asks for.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::agent_event::{AgentEvent, StdinMessage};
use super::super::json_rpc::{METHOD_NOT_FOUND, list_at, text_at};
use super::{AcpAdapter, WIRE};
use crate::agents::launch::agent_launch::{TOOL_SERVER_NAME, ToolServer};
use crate::agents::outcome::failure::{FailureClass, TurnFailure};

const PROTOCOL_VERSION: u64 = 1;

/// What the session is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcpOpening {
    pub(crate) prompt: String,
    pub(crate) cwd: String,
    pub(crate) resume: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) effort: Option<String>,
    /// The session's mode: how much it may do without asking.
    pub(crate) mode: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) context: Vec<LinkedFile>,
    /// Baton's own tools, where the task asks for them.
    #[serde(default)]
    pub(crate) tools: Option<ToolServer>,
}

/// A file that goes with the prompt, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkedFile {
    pub(crate) uri: String,
    pub(crate) name: String,
}

/// What the task asks for: its name, the category that a session offers it under, what is wanted.
const CATEGORIES: [(&str, &str); 3] = [
    ("model", "model"),
    ("effort", "thought_level"),
    ("permission_mode", "mode"),
];

/// Values of an option that an error names.
const MAX_OFFERS_SHOWN: usize = 24;

impl AcpAdapter {
    pub(in crate::agents) fn initialize_request() -> StdinMessage {
        let capabilities = json!({
            "fs": {"readTextFile": false, "writeTextFile": false},
            "terminal": false,
            "elicitation": {"form": {}},
        });
        let client =
            json!({"name": "baton", "title": "Baton", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": capabilities,
            "clientInfo": client,
        });
        WIRE.request(0, "initialize", params)
    }

    pub(super) fn on_initialized(&mut self, result: &Value, out: &mut Vec<AgentEvent>) {
        let version = result.get("protocolVersion").and_then(Value::as_u64);
        if version != Some(PROTOCOL_VERSION) {
            let spoken = version.map_or("none".to_owned(), |version| version.to_string());
            let message =
                format!("the agent speaks protocol version {spoken}, not {PROTOCOL_VERSION}");
            self.turn
                .fail_turn(TurnFailure::new(FailureClass::OutputInvalid, message), out);
            return;
        }
        let can = |path| result.pointer(path).is_some_and(|offer| !offer.is_null());
        let loads = result.pointer("/agentCapabilities/loadSession") == Some(&Value::Bool(true));
        let resumes = can("/agentCapabilities/sessionCapabilities/resume");
        let method = match (&self.opening.resume, resumes, loads) {
            (None, _, _) => "session/new",
            (Some(_), true, _) => "session/resume",
            (Some(_), false, true) => "session/load",
            (Some(_), false, false) => {
                let message = "the agent cannot take a session up again";
                self.turn
                    .fail_turn(TurnFailure::new(FailureClass::ResumeFailed, message), out);
                return;
            }
        };
        self.loads_instead = loads && method == "session/resume";
        out.push(AgentEvent::Write(self.open_request(method)));
    }

    fn open_request(&self, method: &str) -> StdinMessage {
        let mut params = json!({"cwd": self.opening.cwd, "mcpServers": self.mcp_servers()});
        if let Some(session) = &self.opening.resume {
            params["sessionId"] = json!(session);
        }
        WIRE.request(self.next_id, method, params)
    }

    /// Some offer to resume and do not know the method, where another one would do. True if that is tried now.
    pub(super) fn retry_with_load(&mut self, error: &Value, out: &mut Vec<AgentEvent>) -> bool {
        let unknown = error.get("code").and_then(Value::as_i64) == Some(METHOD_NOT_FOUND);
        let tries = std::mem::take(&mut self.loads_instead) && unknown;
        if tries {
            out.push(AgentEvent::Write(self.open_request("session/load")));
        }
        tries
    }

    pub(super) fn on_session(&mut self, result: &Value, out: &mut Vec<AgentEvent>) {
        let resumed = self.opening.resume.as_deref();
        let session = Some(text_at(result, "/sessionId")).filter(|session| !session.is_empty());
        let Some(session) = session.or(resumed).map(str::to_owned) else {
            let message = "the agent opened a session without an id";
            self.turn
                .fail_turn(TurnFailure::new(FailureClass::OutputInvalid, message), out);
            return;
        };
        self.turn.set_conversation(&session, out);
        let model = text_at(result, "/models/currentModelId");
        self.model = Some(model.to_owned()).filter(|model| !model.is_empty());
        match self.settings(&session, result) {
            Ok(settings) => {
                self.settings = settings;
                self.settings.reverse();
                self.send_next_setting(out);
            }
            Err(option) => {
                let message = format!("the agent offers no way to set {option} as the task asks");
                let message = match offered_values(result, option) {
                    values if values.is_empty() => message,
                    values => format!("{message}; it takes {}", values.join(", ")),
                };
                self.turn.fail_turn(
                    TurnFailure::new(FailureClass::UnsupportedOption, message),
                    out,
                );
            }
        }
    }

    /// The requests that set what the task asks for, or the option that this session does not offer.
    fn settings(&self, session: &str, offer: &Value) -> Result<Vec<(String, Value)>, &'static str> {
        let AcpOpening {
            model,
            effort,
            mode,
            ..
        } = &self.opening;
        let wanted = CATEGORIES.into_iter().zip([model, effort, mode]);
        let wanted =
            wanted.filter_map(|(names, value)| value.as_deref().map(|value| (names, value)));
        let mut settings = Vec::new();
        for ((option, category), value) in wanted {
            let by_option = config_option(offer, category, value).map(|id| {
                (
                    "session/set_config_option",
                    json!({"sessionId": session, "configId": id, "value": value}),
                )
            });
            let by_list = || list_setting(offer, category, session, value);
            let (method, params) = by_option.or_else(by_list).ok_or(option)?;
            settings.push((method.to_owned(), params));
        }
        Ok(settings)
    }

    /// One setting after the other, then the prompt.
    pub(super) fn send_next_setting(&mut self, out: &mut Vec<AgentEvent>) {
        let Some(session) = self.turn.conversation().map(str::to_owned) else {
            return;
        };
        let message = match self.settings.pop() {
            Some((method, params)) => WIRE.request(self.next_id, &method, params),
            None => {
                let params = json!({"sessionId": session, "prompt": self.prompt_blocks()});
                WIRE.request(self.next_id, "session/prompt", params)
            }
        };
        out.push(AgentEvent::Write(message));
    }

    /// The secret that goes with the tools is not in the message, which is kept on the disk: the server finds it in the
    /// environment of the agent that starts it.
    fn mcp_servers(&self) -> Vec<Value> {
        let tools = self.opening.tools.iter();
        let servers = tools.map(|tools| {
            json!({"name": TOOL_SERVER_NAME, "command": tools.program, "args": tools.args, "env": []})
        });
        servers.collect()
    }

    fn prompt_blocks(&self) -> Vec<Value> {
        let AcpOpening {
            prompt,
            instructions,
            context,
            ..
        } = &self.opening;
        let texts = instructions.iter().chain([prompt]);
        let texts = texts.map(|text| json!({"type": "text", "text": text}));
        let links = context
            .iter()
            .map(|linked| json!({"type": "resource_link", "uri": linked.uri, "name": linked.name}));
        texts.chain(links).collect()
    }
}

/// Lists that are no options: modes have one of their own, and models had one before there were options.
fn category_list(category: &str) -> Option<(&'static str, &'static str, &'static str)> {
    match category {
        "mode" => Some(("/modes/availableModes", "/id", "session/set_mode")),
        "model" => Some(("/models/availableModels", "/modelId", "session/set_model")),
        _ => None,
    }
}

fn list_setting(
    offer: &Value,
    category: &str,
    session: &str,
    value: &str,
) -> Option<(&'static str, Value)> {
    let (path, id, method) = category_list(category)?;
    let offered = list_at(offer, path)
        .iter()
        .any(|one| text_at(one, id) == value);
    let name = if category == "mode" {
        "modeId"
    } else {
        "modelId"
    };
    offered.then(|| (method, json!({"sessionId": session, name: value})))
}

/// What an option of this category can be.
fn option_values(option: &Value) -> impl Iterator<Item = &str> {
    let direct = list_at(option, "/options").iter();
    // Options may be grouped.
    let all = direct.flat_map(|entry| std::iter::once(entry).chain(list_at(entry, "/options")));
    let values = all.map(|entry| text_at(entry, "/value"));
    values.filter(|value| !value.is_empty())
}

fn options_of_category<'a>(offer: &'a Value, category: &'a str) -> impl Iterator<Item = &'a Value> {
    let offered = list_at(offer, "/configOptions").iter();
    offered.filter(move |option| text_at(option, "/category") == category)
}

/// Id of the option of this category that can take `value`.
fn config_option<'a>(offer: &'a Value, category: &'a str, value: &str) -> Option<&'a str> {
    let mut options = options_of_category(offer, category);
    let found = options.find(|option| option_values(option).any(|one| one == value));
    found.map(|option| text_at(option, "/id"))
}

/// Some of what could have been asked for.
fn offered_values<'a>(offer: &'a Value, option: &str) -> Vec<&'a str> {
    let names = CATEGORIES.into_iter().find(|(name, _)| *name == option);
    let category = names.map_or("", |(_, category)| category);
    let listed = category_list(category)
        .into_iter()
        .flat_map(|(path, id, _)| {
            let listed = list_at(offer, path).iter();
            listed.map(move |one| text_at(one, id))
        });
    let options = options_of_category(offer, category).flat_map(option_values);
    let mut all: Vec<&str> = options.chain(listed).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(MAX_OFFERS_SHOWN);
    all
}
