//! Permissions with the agent's own options, and forms; and how each is answered. An option is chosen by its kind,
//! never by its name or its place.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::event::{AgentEvent, Answer, Ask, Input, InputKey, Message};
use super::super::form::Form;
use super::super::turn::permission;
use super::super::wire::{exact, list, text};
use super::{Acp, WIRE};

/// What the answer needs of the request.
#[derive(Serialize, Deserialize)]
struct Needs {
    id: Value,
    kind: Kind,
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
        self.on_tool(call, out);
        let option = |kinds: [&str; 2]| {
            let options = list(params, "/options");
            let found = kinds
                .into_iter()
                .find_map(|kind| options.iter().find(|option| text(option, "/kind") == kind));
            found.map(|option| text(option, "/optionId").to_owned())
        };
        // "Always" is how the agent remembers, and that may outlive the attempt: nobody is offered it here.
        let allow_once = option(["allow_once", "allow_once"]);
        let kind = Kind::Permission {
            reject: option(["reject_once", "reject_always"]),
            allow_once,
        };
        let needs = Needs {
            id: id.clone(),
            kind,
        };
        let shown = exact(json, &["params", "toolCall"]).unwrap_or("{}");
        let names = [
            text(call, "/name"),
            text(call, "/kind"),
            text(call, "/title"),
        ];
        let name = names
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("tool");
        let Some(ask) = permission(name, shown, text(call, "/title"), false) else {
            out.push(AgentEvent::Write(decided(&needs, false)));
            return;
        };
        let tool = text(call, "/toolCallId");
        self.put(id, tool, ask, &needs, out);
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
        let needs = Needs {
            id: id.clone(),
            kind: Kind::Form(form),
        };
        self.put(id, text(params, "/toolCallId"), ask, &needs, out);
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

/// Whether this answer to a request says no.
pub(super) fn denies(needs: &str, result: &Value) -> bool {
    let Ok(needs) = serde_json::from_str::<Needs>(needs) else {
        return false;
    };
    match needs.kind {
        Kind::Permission { reject, .. } => {
            let chosen = text(result, "/outcome/optionId");
            text(result, "/outcome/outcome") == "cancelled" || reject.as_deref() == Some(chosen)
        }
        Kind::Form(_) => false,
    }
}
