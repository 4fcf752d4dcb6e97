//! From initialization to the prompt: protocol version, session, and the options that the task
//! requests.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::agent_event::{AgentEvent, StdinMessage};
use super::super::json_rpc::{METHOD_NOT_FOUND, list_at, text_at};
use super::{AcpAdapter, WIRE};
use crate::agents::launch::agent_launch::{TOOL_SERVER_NAME, ToolServer};
use crate::agents::outcome::failure::{FailureClass, TurnFailure};

const PROTOCOL_VERSION: u64 = 1;

/// Parameters for opening the session.
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
    /// Baton's own tools, if the task requests them.
    #[serde(default)]
    pub(crate) tools: Option<ToolServer>,
}

/// A file that is linked to the prompt by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkedFile {
    pub(crate) uri: String,
    pub(crate) name: String,
}

/// Options that a task can request: the name, and the category under which a session offers it.
const CATEGORIES: [(&str, &str); 3] = [
    ("model", "model"),
    ("effort", "thought_level"),
    ("permission_mode", "mode"),
];

/// Number of supported values that an error message lists.
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
            let offered = version.map_or("none".to_owned(), |version| version.to_string());
            let message = format!(
                "the agent uses protocol version {offered}, but {PROTOCOL_VERSION} is required"
            );
            self.turn
                .fail_turn(TurnFailure::new(FailureClass::OutputInvalid, message), out);
            return;
        }
        let offers = |path| {
            result
                .pointer(path)
                .is_some_and(|capability| !capability.is_null())
        };
        let loads = result.pointer("/agentCapabilities/loadSession") == Some(&Value::Bool(true));
        let resumes = offers("/agentCapabilities/sessionCapabilities/resume");
        let method = match (&self.opening.resume, resumes, loads) {
            (None, _, _) => "session/new",
            (Some(_), true, _) => "session/resume",
            (Some(_), false, true) => "session/load",
            (Some(_), false, false) => {
                let message = "the agent cannot resume a session";
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

    /// Some agents advertise resuming but do not implement the method. True if loading is tried
    /// instead.
    pub(super) fn retry_with_load(&mut self, error: &Value, out: &mut Vec<AgentEvent>) -> bool {
        let is_unknown_method = error.get("code").and_then(Value::as_i64) == Some(METHOD_NOT_FOUND);
        let retries = std::mem::take(&mut self.loads_instead) && is_unknown_method;
        if retries {
            out.push(AgentEvent::Write(self.open_request("session/load")));
        }
        retries
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
                let message = format!("the agent cannot set {option} to the requested value");
                let message = match offered_values(result, option) {
                    values if values.is_empty() => message,
                    values => format!("{message}; supported values: {}", values.join(", ")),
                };
                self.turn.fail_turn(
                    TurnFailure::new(FailureClass::UnsupportedOption, message),
                    out,
                );
            }
        }
    }

    /// The requests that set the task's options, or the name of an option that this session
    /// does not offer.
    fn settings(&self, session: &str, offer: &Value) -> Result<Vec<(String, Value)>, &'static str> {
        let AcpOpening {
            model,
            effort,
            mode,
            ..
        } = &self.opening;
        let requested = CATEGORIES.into_iter().zip([model, effort, mode]);
        let requested =
            requested.filter_map(|(names, value)| value.as_deref().map(|value| (names, value)));
        let mut settings = Vec::new();
        for ((option, category), value) in requested {
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

    /// Sends the next setting; after the last one, the prompt.
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

    /// The capability secret is not part of this message, which is stored on disk. The tool
    /// server finds it in the environment of the agent that starts it.
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

/// Lists outside the config options: modes have a list of their own, and models had one before
/// config options existed.
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

/// Values that an option accepts.
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

/// Id of the option of this category that accepts `value`.
fn config_option<'a>(offer: &'a Value, category: &'a str, value: &str) -> Option<&'a str> {
    let mut options = options_of_category(offer, category);
    let option = options.find(|option| option_values(option).any(|one| one == value));
    option.map(|option| text_at(option, "/id"))
}

/// Some of the values that the session offers.
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
