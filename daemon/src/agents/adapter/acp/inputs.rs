//! Permissions with the agent's own options, and forms; and how each is answered. An option is chosen by its kind,
//! never by its name or its place.

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

/// What the answer needs of the request.
#[derive(Serialize, Deserialize)]
struct AcpAnswerContext {
    id: Value,
    /// The tool that it is about.
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

/// The ids of options. "Always" is how the agent remembers, and that may outlive the attempt: nobody is offered it here.
struct PermissionOptions {
    allow_once: Option<String>,
    reject: Option<String>,
    /// What the agent calls the first one, where there are others that allow it once too.
    option_name: Option<String>,
}

impl PermissionOptions {
    fn read(options: &[Value]) -> Self {
        let of = |kind: &'static str| {
            let of_kind = options.iter();
            of_kind.filter(move |option| text_at(option, "/kind") == kind)
        };
        let id = |option: &Value| text_at(option, "/optionId").to_owned();
        let reject = of("reject_once").chain(of("reject_always")).next();
        let several = of("allow_once").count() > 1;
        let choice = of("allow_once").next().filter(|_| several);
        Self {
            allow_once: of("allow_once").next().map(id),
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
        let needs = AcpAnswerContext {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: AcpInputKind::Permission {
                allow_once: options.allow_once,
                reject: options.reject,
            },
        };
        // Leave for ever may outlive the attempt, so nobody can give that.
        if !needs.can_allow() {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
            let why = "denied: the agent offers no way to allow this just once";
            self.turn
                .push_output(OutputKind::System, false, why, None, out);
            self.deny_at_once(&needs, out);
            return;
        }
        let lacks = self.calls.is_incomplete(call);
        let whole = self.calls.completed_call(call);
        let shown = match (&whole, options.option_name) {
            // More than one way to allow it once: a person sees which one it would be.
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
            Some(ask) if !lacks => self.open_input(id, tool, ask, &needs, out),
            Some(_) | None => self.deny_at_once(&needs, out),
        }
    }

    /// At once, without asking anybody.
    fn deny_at_once(&mut self, needs: &AcpAnswerContext, out: &mut Vec<AgentEvent>) {
        out.push(AgentEvent::Write(decision_message(needs, false)));
        self.denied = true;
        self.turn.on_tool_finished(&needs.tool, true, out);
    }

    /// The agent wants no answer any more, but every request gets one.
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
        let asked = form.and_then(|form| Some((form.to_input(params, false)?, form)));
        let Some((ask, form)) = asked else {
            // A page to visit, or fields that cannot be put as questions: nobody will fill it in.
            self.turn
                .push_output(OutputKind::Opaque, false, json, None, out);
            let declined = json!({"action": "decline"});
            out.push(AgentEvent::Write(WIRE.result(id, declined)));
            return;
        };
        let tool = text_at(params, "/toolCallId");
        let needs = AcpAnswerContext {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: AcpInputKind::Form(form),
        };
        self.open_input(id, tool, ask, &needs, out);
    }

    fn open_input(
        &mut self,
        id: &Value,
        tool: &str,
        ask: AgentInputKind,
        needs: &AcpAnswerContext,
        out: &mut Vec<AgentEvent>,
    ) {
        let input = AgentInput {
            key: InputKey(id.to_string()),
            tool_call_id: Some(tool.to_owned()).filter(|tool| !tool.is_empty()),
            kind: ask,
        };
        let needs = serde_json::to_string(needs).unwrap_or_default();
        self.turn.open_input(input, needs, out);
    }
}

pub(super) fn answer_message(needs: &str, answer: &AgentInputAnswer) -> Option<StdinMessage> {
    let needs: AcpAnswerContext = serde_json::from_str(needs).ok()?;
    let allowed = matches!(answer, AgentInputAnswer::Allow { .. });
    Some(match &needs.kind {
        AcpInputKind::Permission { .. } => decision_message(&needs, allowed),
        AcpInputKind::Form(form) => WIRE.result(&needs.id, form.answer_json(answer)),
    })
}

fn decision_message(needs: &AcpAnswerContext, allowed: bool) -> StdinMessage {
    let chosen = match &needs.kind {
        AcpInputKind::Permission { allow_once, .. } if allowed => allow_once.as_ref(),
        AcpInputKind::Permission { reject, .. } => reject.as_ref(),
        AcpInputKind::Form(_) => None,
    };
    let outcome = chosen.map_or(
        json!({"outcome": "cancelled"}),
        |option| json!({"outcome": "selected", "optionId": option}),
    );
    WIRE.result(&needs.id, json!({"outcome": outcome}))
}

/// The answer to whatever is open when the turn is canceled.
pub(super) fn cancel_message(needs: &str) -> Option<StdinMessage> {
    let needs: AcpAnswerContext = serde_json::from_str(needs).ok()?;
    Some(match &needs.kind {
        AcpInputKind::Permission { .. } => {
            WIRE.result(&needs.id, json!({"outcome": {"outcome": "cancelled"}}))
        }
        AcpInputKind::Form(form) => {
            WIRE.result(&needs.id, form.answer_json(&AgentInputAnswer::None))
        }
    })
}

/// The tool that this answer to a request forbids.
pub(super) fn denied_tool(needs: &str, result: &Value) -> Option<String> {
    let needs: AcpAnswerContext = serde_json::from_str(needs).ok()?;
    let no = match needs.kind {
        AcpInputKind::Permission { reject, .. } => {
            let chosen = text_at(result, "/outcome/optionId");
            text_at(result, "/outcome/outcome") == "cancelled" || reject.as_deref() == Some(chosen)
        }
        AcpInputKind::Form(_) => false,
    };
    no.then_some(needs.tool)
}
