//! Permission requests with the agent's own options, and forms; and how each is answered. An
//! option is chosen by its kind, never by its name or position.

use std::borrow::Cow;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::agent_event::{
    AgentEvent, AgentInput, AgentInputAnswer, AgentInputKind, InputKey, StdinMessage,
};
use super::super::elicitation_form::ElicitationForm;
use super::super::json_rpc::{exact_text, list_at, text_at};
use super::super::turn_state::permission_input;
use super::{AcpAdapter, WIRE};

const REQUEST_CANCELED: i64 = -32800;

/// What the answer needs from the request.
#[derive(Serialize, Deserialize)]
struct AcpAnswerContext {
    id: Value,
    /// The tool call that it belongs to.
    #[serde(default)]
    tool: String,
    kind: AcpInputKind,
}

impl AcpAnswerContext {
    fn can_allow(&self) -> bool {
        match &self.kind {
            AcpInputKind::Permission { allow_once, .. } => allow_once.is_some(),
            AcpInputKind::Form(_) => true,
        }
    }
}

/// Ids of the options. Options that allow "always" are not offered: the agent may remember them
/// beyond the attempt.
struct PermissionOptions {
    allow_once: Option<String>,
    reject: Option<String>,
    /// Name of the first option, if several options allow it once.
    option_name: Option<String>,
}

impl PermissionOptions {
    fn read(options: &[Value]) -> Self {
        let with_kind = |kind: &'static str| {
            let options = options.iter();
            options.filter(move |option| text_at(option, "/kind") == kind)
        };
        let id = |option: &Value| text_at(option, "/optionId").to_owned();
        let reject = with_kind("reject_once")
            .chain(with_kind("reject_always"))
            .next();
        let several = with_kind("allow_once").count() > 1;
        let choice = with_kind("allow_once").next().filter(|_| several);
        Self {
            allow_once: with_kind("allow_once").next().map(id),
            reject: reject.map(id),
            option_name: choice.map(|option| text_at(option, "/name").to_owned()),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum AcpInputKind {
    Permission {
        allow_once: Option<String>,
        reject: Option<String>,
    },
    Form(ElicitationForm),
}

impl AcpAdapter {
    pub(super) fn on_permission(
        &mut self,
        json: &str,
        id: &Value,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let call = params.get("toolCall").unwrap_or(&Value::Null);
        let tool = text_at(call, "/toolCallId");
        self.on_tool(call, out);
        let options = PermissionOptions::read(list_at(params, "/options"));
        let context = AcpAnswerContext {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: AcpInputKind::Permission {
                allow_once: options.allow_once,
                reject: options.reject,
            },
        };
        // A permanent permission may outlast the attempt, so it cannot be granted.
        if !context.can_allow() {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
            let reason = "denied: the agent offers no option to allow this only once";
            self.turn
                .push_output(OutputKind::System, false, reason, None, out);
            self.deny_at_once(&context, out);
            return;
        }
        let is_incomplete = self.calls.is_incomplete(call);
        let whole = self.calls.completed_call(call);
        let shown = match (&whole, options.option_name) {
            // Several options allow it once, so the person is shown which one is used.
            (whole, Some(name)) => {
                let shown = whole.as_ref().unwrap_or(call).as_object();
                let mut shown = shown.cloned().unwrap_or_default();
                shown.insert("option".to_owned(), json!(name));
                Cow::Owned(Value::Object(shown).to_string())
            }
            (Some(whole), None) => Cow::Owned(whole.to_string()),
            (None, None) => {
                Cow::Borrowed(exact_text(json, &["params", "toolCall"]).unwrap_or("{}"))
            }
        };
        let call = whole.as_ref().unwrap_or(call);
        let (name, title) = (self.calls.tool_name(call), text_at(call, "/title"));
        match permission_input(name, &shown, title, false) {
            Some(input_kind) if !is_incomplete => {
                self.open_input(id, tool, input_kind, &context, out)
            }
            Some(_) | None => self.deny_at_once(&context, out),
        }
    }

    /// Denies immediately, without asking a person.
    fn deny_at_once(&mut self, context: &AcpAnswerContext, out: &mut Vec<AgentEvent>) {
        out.push(AgentEvent::Write(decision_message(context, false)));
        self.denied = true;
        self.turn.on_tool_finished(&context.tool, true, out);
    }

    /// The agent no longer waits for an answer, but every request still gets a response.
    pub(super) fn on_cancel_request(&mut self, params: &Value, out: &mut Vec<AgentEvent>) {
        let id = params.get("requestId").unwrap_or(&Value::Null);
        let key = InputKey(id.to_string());
        if self.turn.answer_context(&key).is_none() {
            return;
        }
        self.turn
            .close_withdrawn(&key, "the agent withdrew it", out);
        let canceled = WIRE.error_response(id, REQUEST_CANCELED, "the request was canceled");
        out.push(AgentEvent::Write(canceled));
    }

    pub(super) fn on_elicitation(
        &mut self,
        json: &str,
        id: &Value,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let form = ElicitationForm::read(params);
        let parsed = form.and_then(|form| Some((form.to_input(params, false)?, form)));
        let Some((input_kind, form)) = parsed else {
            // A URL to visit, or fields that cannot be asked as questions: the form is
            // declined.
            self.turn
                .push_output(OutputKind::Opaque, false, json, None, out);
            let declined = json!({"action": "decline"});
            out.push(AgentEvent::Write(WIRE.result(id, declined)));
            return;
        };
        let tool = text_at(params, "/toolCallId");
        let context = AcpAnswerContext {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: AcpInputKind::Form(form),
        };
        self.open_input(id, tool, input_kind, &context, out);
    }

    fn open_input(
        &mut self,
        id: &Value,
        tool: &str,
        input_kind: AgentInputKind,
        context: &AcpAnswerContext,
        out: &mut Vec<AgentEvent>,
    ) {
        let input = AgentInput {
            key: InputKey(id.to_string()),
            tool_call_id: Some(tool.to_owned()).filter(|tool| !tool.is_empty()),
            kind: input_kind,
        };
        let context = serde_json::to_string(context).unwrap_or_default();
        self.turn.open_input(input, context, out);
    }
}

pub(super) fn answer_message(context: &str, answer: &AgentInputAnswer) -> Option<StdinMessage> {
    let context: AcpAnswerContext = serde_json::from_str(context).ok()?;
    let allowed = matches!(answer, AgentInputAnswer::Allow { .. });
    Some(match &context.kind {
        AcpInputKind::Permission { .. } => decision_message(&context, allowed),
        AcpInputKind::Form(form) => WIRE.result(&context.id, form.answer_json(answer)),
    })
}

fn decision_message(context: &AcpAnswerContext, allowed: bool) -> StdinMessage {
    let chosen = match &context.kind {
        AcpInputKind::Permission { allow_once, .. } if allowed => allow_once.as_ref(),
        AcpInputKind::Permission { reject, .. } => reject.as_ref(),
        AcpInputKind::Form(_) => None,
    };
    let outcome = chosen.map_or(
        json!({"outcome": "cancelled"}),
        |option| json!({"outcome": "selected", "optionId": option}),
    );
    WIRE.result(&context.id, json!({"outcome": outcome}))
}

/// The answer to an open request when the turn is canceled.
pub(super) fn cancel_message(context: &str) -> Option<StdinMessage> {
    let context: AcpAnswerContext = serde_json::from_str(context).ok()?;
    Some(match &context.kind {
        AcpInputKind::Permission { .. } => {
            WIRE.result(&context.id, json!({"outcome": {"outcome": "cancelled"}}))
        }
        AcpInputKind::Form(form) => {
            WIRE.result(&context.id, form.answer_json(&AgentInputAnswer::None))
        }
    })
}

/// The tool that this answer denies, if it is a denial.
pub(super) fn denied_tool(context: &str, result: &Value) -> Option<String> {
    let context: AcpAnswerContext = serde_json::from_str(context).ok()?;
    let is_denied = match context.kind {
        AcpInputKind::Permission { reject, .. } => {
            let chosen = text_at(result, "/outcome/optionId");
            text_at(result, "/outcome/outcome") == "cancelled" || reject.as_deref() == Some(chosen)
        }
        AcpInputKind::Form(_) => false,
    };
    is_denied.then_some(context.tool)
}
