//! Permissions with the agent's own options, and forms; and how each is answered. An option is chosen by its kind,
//! never by its name or its place.

use std::borrow::Cow;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::event::{AgentEvent, Answer, Ask, Input, InputKey, Message};
use super::super::form::Form;
use super::super::turn::permission;
use super::super::wire::{exact, list, text};
use super::{Acp, WIRE};

const REQUEST_CANCELED: i64 = -32800;

/// What the answer needs of the request.
#[derive(Serialize, Deserialize)]
struct Needs {
    id: Value,
    /// The tool that it is about.
    #[serde(default)]
    tool: String,
    kind: Kind,
}

impl Needs {
    fn can_allow(&self) -> bool {
        match &self.kind {
            Kind::Permission { allow_once, .. } => allow_once.is_some(),
            Kind::Form(_) => true,
        }
    }
}

/// The ids of options. "Always" is how the agent remembers, and that may outlive the attempt: nobody is offered it here.
struct Options {
    allow_once: Option<String>,
    reject: Option<String>,
    /// What the agent calls the first one, where there are others that allow it once too.
    choice: Option<String>,
}

impl Options {
    fn read(options: &[Value]) -> Self {
        let of = |kind: &'static str| {
            let of_kind = options.iter();
            of_kind.filter(move |option| text(option, "/kind") == kind)
        };
        let id = |option: &Value| text(option, "/optionId").to_owned();
        let reject = of("reject_once").chain(of("reject_always")).next();
        let several = of("allow_once").count() > 1;
        let choice = of("allow_once").next().filter(|_| several);
        Self {
            allow_once: of("allow_once").next().map(id),
            reject: reject.map(id),
            choice: choice.map(|option| text(option, "/name").to_owned()),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Kind {
    Permission {
        allow_once: Option<String>,
        reject: Option<String>,
    },
    Form(Form),
}

impl Acp {
    pub(super) fn on_permission(
        &mut self,
        json: &str,
        id: &Value,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let call = params.get("toolCall").unwrap_or(&Value::Null);
        let tool = text(call, "/toolCallId");
        self.on_tool(call, out);
        let options = Options::read(list(params, "/options"));
        let needs = Needs {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: Kind::Permission {
                allow_once: options.allow_once,
                reject: options.reject,
            },
        };
        // Leave for ever may outlive the attempt, so nobody can give that.
        if !needs.can_allow() {
            self.turn.say(OutputKind::System, false, json, None, out);
            let why = "denied: the agent offers no way to allow this just once";
            self.turn.say(OutputKind::System, false, why, None, out);
            self.deny(&needs, out);
            return;
        }
        let lacks = self.calls.lacks(call);
        let whole = self.calls.completed(call);
        let shown = match (&whole, options.choice) {
            // More than one way to allow it once: a person sees which one it would be.
            (whole, Some(name)) => {
                let shown = whole.as_ref().unwrap_or(call).as_object();
                let mut shown = shown.cloned().unwrap_or_default();
                shown.insert("option".to_owned(), json!(name));
                Cow::Owned(Value::Object(shown).to_string())
            }
            (Some(whole), None) => Cow::Owned(whole.to_string()),
            (None, None) => Cow::Borrowed(exact(json, &["params", "toolCall"]).unwrap_or("{}")),
        };
        let call = whole.as_ref().unwrap_or(call);
        let (name, title) = (self.calls.name(call), text(call, "/title"));
        match permission(name, &shown, title, false) {
            Some(ask) if !lacks => self.put(id, tool, ask, &needs, out),
            Some(_) | None => self.deny(&needs, out),
        }
    }

    /// At once, without asking anybody.
    fn deny(&mut self, needs: &Needs, out: &mut Vec<AgentEvent>) {
        out.push(AgentEvent::Write(decided(needs, false)));
        self.denied = true;
        self.turn.tool_finished(&needs.tool, true, out);
    }

    /// The agent wants no answer any more, but every request gets one.
    pub(super) fn on_cancel_request(&mut self, params: &Value, out: &mut Vec<AgentEvent>) {
        let id = params.get("requestId").unwrap_or(&Value::Null);
        let key = InputKey(id.to_string());
        if self.turn.needs(&key).is_none() {
            return;
        }
        self.turn.withdrawn(&key, "the agent withdrew it", out);
        let canceled = WIRE.refuse(id, REQUEST_CANCELED, "the request was canceled");
        out.push(AgentEvent::Write(canceled));
    }

    pub(super) fn on_elicitation(
        &mut self,
        json: &str,
        id: &Value,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let form = Form::read(params);
        let asked = form.and_then(|form| Some((form.ask(params, false)?, form)));
        let Some((ask, form)) = asked else {
            // A page to visit, or fields that cannot be put as questions: nobody will fill it in.
            self.turn.say(OutputKind::Opaque, false, json, None, out);
            let declined = json!({"action": "decline"});
            out.push(AgentEvent::Write(WIRE.result(id, declined)));
            return;
        };
        let tool = text(params, "/toolCallId");
        let needs = Needs {
            id: id.clone(),
            tool: tool.to_owned(),
            kind: Kind::Form(form),
        };
        self.put(id, tool, ask, &needs, out);
    }

    fn put(&mut self, id: &Value, tool: &str, ask: Ask, needs: &Needs, out: &mut Vec<AgentEvent>) {
        let input = Input {
            key: InputKey(id.to_string()),
            tool_call_id: Some(tool.to_owned()).filter(|tool| !tool.is_empty()),
            ask,
        };
        let needs = serde_json::to_string(needs).unwrap_or_default();
        self.turn.ask(input, needs, out);
    }
}

pub(super) fn answer(needs: &str, answer: &Answer) -> Option<Message> {
    let needs: Needs = serde_json::from_str(needs).ok()?;
    let allowed = matches!(answer, Answer::Allow { .. });
    Some(match &needs.kind {
        Kind::Permission { .. } => decided(&needs, allowed),
        Kind::Form(form) => WIRE.result(&needs.id, form.answer(answer)),
    })
}

fn decided(needs: &Needs, allowed: bool) -> Message {
    let chosen = match &needs.kind {
        Kind::Permission { allow_once, .. } if allowed => allow_once.as_ref(),
        Kind::Permission { reject, .. } => reject.as_ref(),
        Kind::Form(_) => None,
    };
    let outcome = chosen.map_or(
        json!({"outcome": "cancelled"}),
        |option| json!({"outcome": "selected", "optionId": option}),
    );
    WIRE.result(&needs.id, json!({"outcome": outcome}))
}

/// The answer to whatever is open when the turn is canceled.
pub(super) fn canceled(needs: &str) -> Option<Message> {
    let needs: Needs = serde_json::from_str(needs).ok()?;
    Some(match &needs.kind {
        Kind::Permission { .. } => {
            WIRE.result(&needs.id, json!({"outcome": {"outcome": "cancelled"}}))
        }
        Kind::Form(form) => WIRE.result(&needs.id, form.answer(&Answer::None)),
    })
}

/// The tool that this answer to a request forbids.
pub(super) fn denied(needs: &str, result: &Value) -> Option<String> {
    let needs: Needs = serde_json::from_str(needs).ok()?;
    let no = match needs.kind {
        Kind::Permission { reject, .. } => {
            let chosen = text(result, "/outcome/optionId");
            text(result, "/outcome/outcome") == "cancelled" || reject.as_deref() == Some(chosen)
        }
        Kind::Form(_) => false,
    };
    no.then_some(needs.tool)
}
