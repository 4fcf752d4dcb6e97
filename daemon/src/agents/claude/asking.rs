//! What Claude asks for leave to do, and what it asks people; and how each is answered.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::event::{
    AgentEvent, Answer, Ask, Choice, Input, InputKey, Message, Question, Reply,
};
use super::super::form::Form;
use super::super::turn::{TOO_LONG_TO_SHOW, permission};
use super::super::wire::{exact, list, scalar, text};
use super::Claude;

const QUESTION_TOOL: &str = "AskUserQuestion";

/// What the answer needs of the request.
#[derive(Serialize, Deserialize)]
enum Needs {
    Tool(ToolNeeds),
    /// A tool server wants a form to be filled in.
    Form(Form),
}

#[derive(Serialize, Deserialize)]
struct ToolNeeds {
    /// Exactly as they were shown.
    arguments: String,
    /// Rules that would allow the like of it from now on.
    suggestions: Vec<Value>,
    questions: Vec<String>,
}

impl Claude {
    pub(super) fn on_control_request(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        match text(message, "/request/subtype") {
            "can_use_tool" => self.on_tool_request(json, message, out),
            "elicitation" => self.on_form(json, message, out),
            _ => {
                self.turn.say(OutputKind::Opaque, false, json, None, out);
                let problem = "this client serves no such request";
                let refusal = refusal(text(message, "/request_id"), problem);
                out.push(AgentEvent::Write(refusal));
            }
        }
    }

    /// One that cannot be put to a person, such as a page to visit, is declined.
    fn on_form(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let id = text(message, "/request_id");
        let request = message.get("request").unwrap_or(&Value::Null);
        let form = Form::read(request);
        let asked = form.and_then(|form| Some((form.ask(request, false)?, form)));
        let Some((ask, form)) = asked else {
            self.turn.say(OutputKind::Opaque, false, json, None, out);
            out.push(AgentEvent::Write(success(id, json!({"action": "decline"}))));
            return;
        };
        let input = Input {
            key: InputKey(id.to_owned()),
            tool_call_id: None,
            ask,
        };
        let needs = serde_json::to_string(&Needs::Form(form)).unwrap_or_default();
        self.turn.ask(input, needs, out);
    }

    fn on_tool_request(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let id = text(message, "/request_id");
        let arguments = exact(json, &["request", "input"]).unwrap_or("{}");
        let suggestions = list(message, "/request/permission_suggestions");
        let questions = questions(message);
        let ask = if questions.is_empty() {
            permission(
                text(message, "/request/tool_name"),
                arguments,
                text(message, "/request/description"),
                !suggestions.is_empty(),
            )
        } else {
            Some(Ask::Questions(questions.clone()))
        };
        let Some(ask) = ask else {
            out.push(AgentEvent::Write(denial(id, TOO_LONG_TO_SHOW)));
            return;
        };
        let needs = ToolNeeds {
            arguments: arguments.to_owned(),
            suggestions: suggestions.to_vec(),
            questions: questions
                .into_iter()
                .map(|question| question.text)
                .collect(),
        };
        let tool = text(message, "/request/tool_use_id");
        let input = Input {
            key: InputKey(id.to_owned()),
            tool_call_id: Some(tool.to_owned()).filter(|tool| !tool.is_empty()),
            ask,
        };
        let needs = serde_json::to_string(&Needs::Tool(needs)).unwrap_or_default();
        self.turn.ask(input, needs, out);
    }
}

/// The answer to a request that was too long to be read: without one the agent would wait for ever.
pub(super) fn cut(beginning: &str) -> Option<Message> {
    let kind = scalar(beginning, "type")?;
    let id = scalar(beginning, "request_id")?;
    (kind == "control_request").then(|| refusal(id.as_str().unwrap_or_default(), TOO_LONG_TO_SHOW))
}

/// Empty unless all of them can be put to a person: then it is a permission like any other.
fn questions(message: &Value) -> Vec<Question> {
    if text(message, "/request/tool_name") != QUESTION_TOOL {
        return Vec::new();
    }
    let questions: Vec<Question> = list(message, "/request/input/questions")
        .iter()
        .map(question)
        .collect();
    let usable = |question: &Question| {
        let labels = question.options.iter().map(|option| &option.label);
        let distinct: std::collections::BTreeSet<_> = labels.clone().collect();
        !question.text.trim().is_empty()
            && distinct.len() == labels.clone().count()
            && labels.into_iter().all(|label| !label.trim().is_empty())
    };
    if questions.iter().all(usable) {
        questions
    } else {
        Vec::new()
    }
}

fn question(value: &Value) -> Question {
    let options = list(value, "/options").iter().map(|option| Choice {
        label: text(option, "/label").to_owned(),
        description: text(option, "/description").to_owned(),
    });
    Question {
        text: text(value, "/question").to_owned(),
        header: text(value, "/header").to_owned(),
        multi_select: value.get("multiSelect") == Some(&Value::Bool(true)),
        options: options.collect(),
        // Its own dialog always has a line for another answer.
        allow_free_text: true,
    }
}

pub(super) fn answer(needs: &str, key: &InputKey, answer: &Answer) -> Option<Message> {
    let needs = match serde_json::from_str(needs).ok()? {
        Needs::Tool(needs) => needs,
        Needs::Form(form) => return Some(success(&key.0, form.answer(answer))),
    };
    let message = match answer {
        Answer::Allow { for_attempt } => allowance(
            &key.0,
            &needs.arguments,
            for_attempt.then_some(&needs.suggestions[..]),
        ),
        Answer::Deny { message } if message.is_empty() => denial(&key.0, "Permission was denied."),
        Answer::Deny { message } => denial(&key.0, message),
        Answer::None => denial(&key.0, "Nobody answered in time."),
        Answer::Replies(replies) => {
            let input = answered_input(&needs, replies)?;
            allowance(&key.0, &input, None)
        }
    };
    Some(message)
}

/// The question's own input, and what was answered to each of them.
fn answered_input(needs: &ToolNeeds, replies: &[Reply]) -> Option<String> {
    let mut input: Map<String, Value> = serde_json::from_str(&needs.arguments).ok()?;
    let answers = needs
        .questions
        .iter()
        .zip(replies)
        .map(|(question, reply)| {
            let mut words = reply.labels.clone();
            words.extend(Some(reply.text.clone()).filter(|text| !text.is_empty()));
            (question.clone(), Value::String(words.join(", ")))
        });
    input.insert("answers".to_owned(), Value::Object(answers.collect()));
    Some(Value::Object(input).to_string())
}

/// Allows what was shown, byte for byte. Rules that come with it hold for this process only, wherever the agent would
/// have kept them.
fn allowance(id: &str, arguments: &str, suggestions: Option<&[Value]>) -> Message {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Allow<'a> {
        behavior: &'static str,
        updated_input: &'a RawValue,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        updated_permissions: Vec<Value>,
    }
    let for_session = |suggestion: &Value| {
        let mut suggestion = suggestion.clone();
        suggestion["destination"] = json!("session");
        suggestion
    };
    let suggestions = suggestions.unwrap_or_default().iter();
    let usable = suggestions.filter(|suggestion| suggestion.is_object());
    let updated_input: &RawValue = serde_json::from_str(arguments).unwrap_or(RawValue::NULL);
    let allow = Allow {
        behavior: "allow",
        updated_input,
        updated_permissions: usable.map(for_session).collect(),
    };
    let allow = serde_json::to_string(&allow).unwrap_or_default();
    let id = Value::from(id);
    Message::text_line(format!(
        r#"{{"type":"control_response","response":{{"subtype":"success","request_id":{id},"response":{allow}}}}}"#
    ))
}

fn denial(id: &str, message: &str) -> Message {
    success(id, json!({"behavior": "deny", "message": message}))
}

fn success(id: &str, response: Value) -> Message {
    respond(json!({"subtype": "success", "request_id": id, "response": response}))
}

fn refusal(id: &str, problem: &str) -> Message {
    respond(json!({"subtype": "error", "request_id": id, "error": problem}))
}

fn respond(response: Value) -> Message {
    Message::line(&json!({"type": "control_response", "response": response}))
}
