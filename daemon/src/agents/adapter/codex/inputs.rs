//! Approval requests of Codex (commands, file changes, more permissions) and its questions.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::agent_event::{
    AgentEvent, AgentInput, AgentInputAnswer, AgentInputKind, AgentQuestion, InputKey,
    QuestionChoice, QuestionResponse, StdinMessage,
};
use super::super::elicitation_form::ElicitationForm;
use super::super::json_rpc::{METHOD_NOT_FOUND, list_at, text_at};
use super::super::recent_memory::RecalledText;
use super::super::turn_state::{TOO_LONG_TO_SHOW, permission_input};
use super::app_server::{CodexAppServer, WIRE};

/// What the answer needs from the request.
#[derive(Serialize, Deserialize)]
struct CodexAnswerContext {
    id: Value,
    kind: CodexInputKind,
}

#[derive(Serialize, Deserialize)]
enum CodexInputKind {
    /// `decision` is one of a few fixed strings.
    Decision,
    /// The requested permissions are granted by repeating them.
    Rights {
        #[serde(rename = "asked")]
        requested: Value,
    },
    /// Ids of the questions.
    Questions {
        ids: Vec<String>,
    },
    Form(ElicitationForm),
}

/// Fields that route a request and do not describe it.
const ROUTING_FIELDS: [&str; 4] = ["threadId", "turnId", "itemId", "startedAtMs"];

/// Longest scope of a permission for a server's tool: it ends with the process.
const SESSION_SCOPE: &str = "session";

const COMMAND_TOOL: &str = "commandExecution";
const FILE_CHANGE_TOOL: &str = "fileChange";

impl CodexAppServer {
    pub(super) fn on_request(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let parsed = match method {
            "item/commandExecution/requestApproval" => self.approval_input(params, COMMAND_TOOL),
            "item/fileChange/requestApproval" => self.approval_input(params, FILE_CHANGE_TOOL),
            "item/permissions/requestApproval" => permissions_input(params),
            "item/tool/requestUserInput" | "tool/requestUserInput" => questions_input(params),
            "mcpServer/elicitation/request" => form_input(params),
            _ => None,
        };
        let (input_kind, kind) = match parsed {
            Some((Some(input), kind)) => (input, kind),
            Some((None, kind)) => {
                let needs = CodexAnswerContext {
                    id: id.clone(),
                    kind,
                };
                let denied = AgentInputAnswer::Deny {
                    message: TOO_LONG_TO_SHOW.to_owned(),
                };
                out.push(AgentEvent::Write(answer_for_context(&needs, &denied)));
                return;
            }
            None => {
                let request = json!({"method": method, "params": params}).to_string();
                self.turn
                    .push_output(OutputKind::Opaque, false, request, None, out);
                let refusal =
                    WIRE.error_response(id, METHOD_NOT_FOUND, "this client serves no such request");
                out.push(AgentEvent::Write(refusal));
                return;
            }
        };
        let item = text_at(params, "/itemId");
        let input = AgentInput {
            key: InputKey(id.to_string()),
            tool_call_id: Some(item.to_owned()).filter(|item| !item.is_empty()),
            kind: input_kind,
        };
        let needs = CodexAnswerContext {
            id: id.clone(),
            kind,
        };
        let needs = serde_json::to_string(&needs).unwrap_or_default();
        self.turn.open_input(input, needs, out);
    }

    fn approval_input(
        &self,
        params: &Value,
        tool: &str,
    ) -> Option<(Option<AgentInputKind>, CodexInputKind)> {
        let mut shown = without_routing(params);
        let item = text_at(params, "/itemId");
        match self.command_lines.get(item) {
            RecalledText::Text(command) => {
                let command: Map<String, Value> = serde_json::from_str(command).unwrap_or_default();
                for (name, value) in command.into_iter().filter(|(_, value)| !value.is_null()) {
                    shown.entry(name).or_insert(value);
                }
            }
            RecalledText::Forgotten if tool == COMMAND_TOOL && !shown.contains_key("command") => {
                return Some((None, CodexInputKind::Decision));
            }
            RecalledText::Forgotten | RecalledText::NeverSeen => {}
        }
        match self.file_changes.get(item) {
            RecalledText::Text(changes) => {
                let changes = serde_json::from_str(changes).unwrap_or(Value::Null);
                shown.insert("changes".to_owned(), changes);
            }
            // The latest version of the change would be approved, and it is not known.
            RecalledText::Forgotten if tool == FILE_CHANGE_TOOL => {
                return Some((None, CodexInputKind::Decision));
            }
            RecalledText::Forgotten | RecalledText::NeverSeen => {}
        }
        // Without any of these fields a person could not see what the approval allows.
        let described_by = [
            "command",
            "networkApprovalContext",
            "additionalPermissions",
            "changes",
            "grantRoot",
        ];
        if !described_by.iter().any(|name| shown.contains_key(*name)) {
            return Some((None, CodexInputKind::Decision));
        }
        // Other decisions would last longer than the attempt.
        let offered = params.get("availableDecisions").and_then(Value::as_array);
        let for_session = json!("acceptForSession");
        let can_allow_for_attempt = offered.is_none_or(|offered| offered.contains(&for_session));
        shown.remove("availableDecisions");
        shown.remove("proposedExecpolicyAmendment");
        let shown = Value::Object(shown).to_string();
        let input = permission_input(
            tool,
            &shown,
            text_at(params, "/reason"),
            can_allow_for_attempt,
        );
        Some((input, CodexInputKind::Decision))
    }
}

fn without_routing(params: &Value) -> Map<String, Value> {
    let mut shown = params.as_object().cloned().unwrap_or_default();
    shown.retain(|name, value| !ROUTING_FIELDS.contains(&name.as_str()) && !value.is_null());
    shown
}

fn permissions_input(params: &Value) -> Option<(Option<AgentInputKind>, CodexInputKind)> {
    let requested = params.get("permissions")?.clone();
    let shown = Value::Object(without_routing(params)).to_string();
    let input = permission_input("permissions", &shown, text_at(params, "/reason"), true);
    Some((input, CodexInputKind::Rights { requested }))
}

fn questions_input(params: &Value) -> Option<(Option<AgentInputKind>, CodexInputKind)> {
    let listed = list_at(params, "/questions");
    let question = |value: &Value| {
        let options = list_at(value, "/options")
            .iter()
            .map(|option| QuestionChoice {
                label: text_at(option, "/label").to_owned(),
                description: text_at(option, "/description").to_owned(),
            });
        let options: Vec<QuestionChoice> =
            options.filter(|option| !option.label.is_empty()).collect();
        let other = value.get("isOther") == Some(&Value::Bool(true));
        AgentQuestion {
            text: text_at(value, "/question").to_owned(),
            header: text_at(value, "/header").to_owned(),
            multi_select: false,
            allow_free_text: other || options.is_empty(),
            options,
        }
    };
    let ids: Vec<String> = listed
        .iter()
        .map(|value| text_at(value, "/id").to_owned())
        .collect();
    let questions: Vec<AgentQuestion> = listed.iter().map(question).collect();
    if questions.is_empty()
        || questions
            .iter()
            .any(|question| question.text.trim().is_empty())
    {
        return None;
    }
    Some((
        Some(AgentInputKind::Questions(questions)),
        CodexInputKind::Questions { ids },
    ))
}

/// A form that cannot be shown to a person, such as a URL to visit, is declined. A form without
/// fields asks for permission to use a server's tool and states how long the answer may last.
fn form_input(params: &Value) -> Option<(Option<AgentInputKind>, CodexInputKind)> {
    let form = ElicitationForm::read(params);
    let can_allow_for_attempt = text_at(params, "/_meta/persist") == SESSION_SCOPE
        || list_at(params, "/_meta/persist").contains(&json!(SESSION_SCOPE));
    let input = form
        .as_ref()
        .and_then(|form| form.to_input(params, can_allow_for_attempt));
    Some((input, CodexInputKind::Form(form.unwrap_or_default())))
}

pub(super) fn answer_message(needs: &str, answer: &AgentInputAnswer) -> Option<StdinMessage> {
    let needs: CodexAnswerContext = serde_json::from_str(needs).ok()?;
    Some(answer_for_context(&needs, answer))
}

fn answer_for_context(context: &CodexAnswerContext, answer: &AgentInputAnswer) -> StdinMessage {
    let result = match &context.kind {
        CodexInputKind::Decision => json!({"decision": match answer {
            AgentInputAnswer::Allow { for_attempt: true } => "acceptForSession",
            AgentInputAnswer::Allow { for_attempt: false } => "accept",
            AgentInputAnswer::Deny { .. } | AgentInputAnswer::None | AgentInputAnswer::Replies(_) => "decline",
        }}),
        CodexInputKind::Rights { requested } => match answer {
            AgentInputAnswer::Allow { for_attempt } => {
                let scope = if *for_attempt { "session" } else { "turn" };
                json!({"permissions": requested, "scope": scope})
            }
            AgentInputAnswer::Deny { .. }
            | AgentInputAnswer::None
            | AgentInputAnswer::Replies(_) => {
                json!({"permissions": {}, "scope": "turn"})
            }
        },
        CodexInputKind::Questions { ids } => {
            let empty = Vec::new();
            let replies = match answer {
                AgentInputAnswer::Replies(replies) => replies,
                AgentInputAnswer::Allow { .. }
                | AgentInputAnswer::Deny { .. }
                | AgentInputAnswer::None => &empty,
            };
            json!({"answers": answers_json(ids, replies)})
        }
        CodexInputKind::Form(form) => {
            let mut result = form.answer_json(answer);
            if matches!(answer, AgentInputAnswer::Allow { for_attempt: true }) {
                result["_meta"] = json!({"persist": SESSION_SCOPE});
            }
            result
        }
    };
    WIRE.result(&context.id, result)
}

fn answers_json(ids: &[String], replies: &[QuestionResponse]) -> Map<String, Value> {
    let answers = ids.iter().zip(replies).map(|(id, reply)| {
        let mut texts = reply.labels.clone();
        texts.extend(Some(reply.text.clone()).filter(|text| !text.is_empty()));
        (id.clone(), json!({"answers": texts}))
    });
    answers.collect()
}
