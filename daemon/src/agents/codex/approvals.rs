//! What Codex asks: leave for commands, for changes of files and for more rights, and questions.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::event::{
    AgentEvent, Answer, Ask, Choice, Input, InputKey, Message, Question, Reply,
};
use super::super::form::Form;
use super::super::memory::Known;
use super::super::turn::{TOO_LONG_TO_SHOW, permission};
use super::super::wire::{METHOD_NOT_FOUND, list, text};
use super::app_server::{AppServer, WIRE};

/// What the answer needs of the request.
#[derive(Serialize, Deserialize)]
struct Needs {
    id: Value,
    kind: Kind,
}

#[derive(Serialize, Deserialize)]
enum Kind {
    /// `decision` is one of a few words.
    Decision,
    /// What is asked for is given by repeating it.
    Rights {
        asked: Value,
    },
    /// Ids of the questions.
    Questions {
        ids: Vec<String>,
    },
    Form(Form),
}

/// Parts of a request that say where it belongs, not what it is about.
const ROUTING: [&str; 4] = ["threadId", "turnId", "itemId", "startedAtMs"];

/// How long leave for a server's tool holds: not longer than the process.
const SESSION: &str = "session";

const COMMAND: &str = "commandExecution";
const CHANGE: &str = "fileChange";

impl AppServer {
    pub(super) fn on_request(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let asked = match method {
            "item/commandExecution/requestApproval" => self.leave(params, COMMAND),
            "item/fileChange/requestApproval" => self.leave(params, CHANGE),
            "item/permissions/requestApproval" => rights(params),
            "item/tool/requestUserInput" | "tool/requestUserInput" => questions(params),
            "mcpServer/elicitation/request" => form(params),
            _ => None,
        };
        let (ask, kind) = match asked {
            Some((Some(ask), kind)) => (ask, kind),
            Some((None, kind)) => {
                let needs = Needs {
                    id: id.clone(),
                    kind,
                };
                let denied = Answer::Deny {
                    message: TOO_LONG_TO_SHOW.to_owned(),
                };
                out.push(AgentEvent::Write(answer_to(&needs, &denied)));
                return;
            }
            None => {
                let told = json!({"method": method, "params": params}).to_string();
                self.turn.say(OutputKind::Opaque, false, told, None, out);
                let refusal =
                    WIRE.refuse(id, METHOD_NOT_FOUND, "this client serves no such request");
                out.push(AgentEvent::Write(refusal));
                return;
            }
        };
        let item = text(params, "/itemId");
        let input = Input {
            key: InputKey(id.to_string()),
            tool_call_id: Some(item.to_owned()).filter(|item| !item.is_empty()),
            ask,
        };
        let needs = Needs {
            id: id.clone(),
            kind,
        };
        let needs = serde_json::to_string(&needs).unwrap_or_default();
        self.turn.ask(input, needs, out);
    }

    fn leave(&self, params: &Value, tool: &str) -> Option<(Option<Ask>, Kind)> {
        let mut shown = without_routing(params);
        let item = text(params, "/itemId");
        match self.command_lines.get(item) {
            Known::Text(command) => {
                let command: Map<String, Value> = serde_json::from_str(command).unwrap_or_default();
                for (name, value) in command.into_iter().filter(|(_, value)| !value.is_null()) {
                    shown.entry(name).or_insert(value);
                }
            }
            Known::Forgotten if tool == COMMAND && !shown.contains_key("command") => {
                return Some((None, Kind::Decision));
            }
            Known::Forgotten | Known::Nothing => {}
        }
        match self.file_changes.get(item) {
            Known::Text(changes) => {
                let changes = serde_json::from_str(changes).unwrap_or(Value::Null);
                shown.insert("changes".to_owned(), changes);
            }
            // What is allowed is what was said last, and that is not known.
            Known::Forgotten if tool == CHANGE => return Some((None, Kind::Decision)),
            Known::Forgotten | Known::Nothing => {}
        }
        // Without any of these nobody would know what he allows.
        let what = [
            "command",
            "networkApprovalContext",
            "additionalPermissions",
            "changes",
            "grantRoot",
        ];
        if !what.iter().any(|name| shown.contains_key(*name)) {
            return Some((None, Kind::Decision));
        }
        // Decisions beyond these would hold for longer than the attempt.
        let offered = params.get("availableDecisions").and_then(Value::as_array);
        let for_session = json!("acceptForSession");
        let can = offered.is_none_or(|offered| offered.contains(&for_session));
        shown.remove("availableDecisions");
        shown.remove("proposedExecpolicyAmendment");
        let shown = Value::Object(shown).to_string();
        let ask = permission(tool, &shown, text(params, "/reason"), can);
        Some((ask, Kind::Decision))
    }
}

fn without_routing(params: &Value) -> Map<String, Value> {
    let mut shown = params.as_object().cloned().unwrap_or_default();
    shown.retain(|name, value| !ROUTING.contains(&name.as_str()) && !value.is_null());
    shown
}

fn rights(params: &Value) -> Option<(Option<Ask>, Kind)> {
    let asked = params.get("permissions")?.clone();
    let shown = Value::Object(without_routing(params)).to_string();
    let ask = permission("permissions", &shown, text(params, "/reason"), true);
    Some((ask, Kind::Rights { asked }))
}

fn questions(params: &Value) -> Option<(Option<Ask>, Kind)> {
    let asked = list(params, "/questions");
    let question = |value: &Value| {
        let options = list(value, "/options").iter().map(|option| Choice {
            label: text(option, "/label").to_owned(),
            description: text(option, "/description").to_owned(),
        });
        let options: Vec<Choice> = options.filter(|option| !option.label.is_empty()).collect();
        let other = value.get("isOther") == Some(&Value::Bool(true));
        Question {
            text: text(value, "/question").to_owned(),
            header: text(value, "/header").to_owned(),
            multi_select: false,
            allow_free_text: other || options.is_empty(),
            options,
        }
    };
    let ids: Vec<String> = asked
        .iter()
        .map(|value| text(value, "/id").to_owned())
        .collect();
    let asked: Vec<Question> = asked.iter().map(question).collect();
    if asked.is_empty() || asked.iter().any(|question| question.text.trim().is_empty()) {
        return None;
    }
    Some((Some(Ask::Questions(asked)), Kind::Questions { ids }))
}

/// One that cannot be put to a person, such as a page to visit, is declined. One without fields asks for leave to use a
/// server's tool, and says how long an answer may hold.
fn form(params: &Value) -> Option<(Option<Ask>, Kind)> {
    let form = Form::read(params);
    let can = text(params, "/_meta/persist") == SESSION
        || list(params, "/_meta/persist").contains(&json!(SESSION));
    let ask = form.as_ref().and_then(|form| form.ask(params, can));
    Some((ask, Kind::Form(form.unwrap_or_default())))
}

pub(super) fn answer(needs: &str, answer: &Answer) -> Option<Message> {
    let needs: Needs = serde_json::from_str(needs).ok()?;
    Some(answer_to(&needs, answer))
}

fn answer_to(needs: &Needs, answer: &Answer) -> Message {
    let result = match &needs.kind {
        Kind::Decision => json!({"decision": match answer {
            Answer::Allow { for_attempt: true } => "acceptForSession",
            Answer::Allow { for_attempt: false } => "accept",
            Answer::Deny { .. } | Answer::None | Answer::Replies(_) => "decline",
        }}),
        Kind::Rights { asked } => match answer {
            Answer::Allow { for_attempt } => {
                let scope = if *for_attempt { "session" } else { "turn" };
                json!({"permissions": asked, "scope": scope})
            }
            Answer::Deny { .. } | Answer::None | Answer::Replies(_) => {
                json!({"permissions": {}, "scope": "turn"})
            }
        },
        Kind::Questions { ids } => {
            let empty = Vec::new();
            let replies = match answer {
                Answer::Replies(replies) => replies,
                Answer::Allow { .. } | Answer::Deny { .. } | Answer::None => &empty,
            };
            json!({"answers": answers(ids, replies)})
        }
        Kind::Form(form) => {
            let mut result = form.answer(answer);
            if matches!(answer, Answer::Allow { for_attempt: true }) {
                result["_meta"] = json!({"persist": SESSION});
            }
            result
        }
    };
    WIRE.result(&needs.id, result)
}

fn answers(ids: &[String], replies: &[Reply]) -> Map<String, Value> {
    let answers = ids.iter().zip(replies).map(|(id, reply)| {
        let mut words = reply.labels.clone();
        words.extend(Some(reply.text.clone()).filter(|text| !text.is_empty()));
        (id.clone(), json!({"answers": words}))
    });
    answers.collect()
}
