//! Permission requests and questions of Claude, and how each is answered.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::agent_event::{
    AgentEvent, AgentInput, AgentInputAnswer, AgentInputKind, AgentQuestion, InputKey,
    QuestionChoice, QuestionResponse, StdinMessage,
};
use super::super::elicitation_form::ElicitationForm;
use super::super::json_rpc::{exact_text, list_at, scalar_field, text_at};
use super::super::turn_state::{TOO_LONG_TO_SHOW, permission_input};
use super::ClaudeAdapter;

const QUESTION_TOOL: &str = "AskUserQuestion";

/// What the answer needs from the request.
#[derive(Serialize, Deserialize)]
enum ClaudeAnswerContext {
    Tool(ToolAnswerContext),
    /// A tool server wants a form to be filled in.
    Form(ElicitationForm),
}

#[derive(Serialize, Deserialize)]
struct ToolAnswerContext {
    /// Exactly as they were shown.
    arguments: String,
    /// Rules that would allow similar calls from now on.
    suggestions: Vec<Value>,
    questions: Vec<String>,
}

impl ClaudeAdapter {
    pub(super) fn on_control_request(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        match text_at(message, "/request/subtype") {
            "can_use_tool" => self.on_tool_request(json, message, out),
            "elicitation" => self.on_form(json, message, out),
            _ => {
                self.turn
                    .push_output(OutputKind::Opaque, false, json, None, out);
                let problem = "this client serves no such request";
                let refusal = error_response(text_at(message, "/request_id"), problem);
                out.push(AgentEvent::Write(refusal));
            }
        }
    }

    /// A form that cannot be shown to a person, such as a URL to visit, is declined.
    fn on_form(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let id = text_at(message, "/request_id");
        let request = message.get("request").unwrap_or(&Value::Null);
        let form = ElicitationForm::read(request);
        let parsed = form.and_then(|form| Some((form.to_input(request, false)?, form)));
        let Some((input_kind, form)) = parsed else {
            self.turn
                .push_output(OutputKind::Opaque, false, json, None, out);
            out.push(AgentEvent::Write(success_response(
                id,
                json!({"action": "decline"}),
            )));
            return;
        };
        let input = AgentInput {
            key: InputKey(id.to_owned()),
            tool_call_id: None,
            kind: input_kind,
        };
        let needs = serde_json::to_string(&ClaudeAnswerContext::Form(form)).unwrap_or_default();
        self.turn.open_input(input, needs, out);
    }

    fn on_tool_request(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let id = text_at(message, "/request_id");
        let arguments = exact_text(json, &["request", "input"]).unwrap_or("{}");
        let suggestions = list_at(message, "/request/permission_suggestions");
        let questions = askable_questions(message);
        let input_kind = if questions.is_empty() {
            permission_input(
                text_at(message, "/request/tool_name"),
                arguments,
                text_at(message, "/request/description"),
                !suggestions.is_empty(),
            )
        } else {
            Some(AgentInputKind::Questions(questions.clone()))
        };
        let Some(input_kind) = input_kind else {
            out.push(AgentEvent::Write(deny_response(id, TOO_LONG_TO_SHOW)));
            return;
        };
        let needs = ToolAnswerContext {
            arguments: arguments.to_owned(),
            suggestions: suggestions.to_vec(),
            questions: questions
                .into_iter()
                .map(|question| question.text)
                .collect(),
        };
        let tool = text_at(message, "/request/tool_use_id");
        let input = AgentInput {
            key: InputKey(id.to_owned()),
            tool_call_id: Some(tool.to_owned()).filter(|tool| !tool.is_empty()),
            kind: input_kind,
        };
        let needs = serde_json::to_string(&ClaudeAnswerContext::Tool(needs)).unwrap_or_default();
        self.turn.open_input(input, needs, out);
    }
}

/// The response to a request that was too long to be read. Without a response the agent would
/// wait forever.
pub(super) fn oversized_response(beginning: &str) -> Option<StdinMessage> {
    let kind = scalar_field(beginning, "type")?;
    let id = scalar_field(beginning, "request_id")?;
    (kind == "control_request")
        .then(|| error_response(id.as_str().unwrap_or_default(), TOO_LONG_TO_SHOW))
}

/// Empty unless all questions can be shown to a person. Otherwise the request is treated as a
/// permission.
fn askable_questions(message: &Value) -> Vec<AgentQuestion> {
    if text_at(message, "/request/tool_name") != QUESTION_TOOL {
        return Vec::new();
    }
    let questions: Vec<AgentQuestion> = list_at(message, "/request/input/questions")
        .iter()
        .map(read_question)
        .collect();
    let is_usable = |question: &AgentQuestion| {
        let labels = question.options.iter().map(|option| &option.label);
        let distinct: std::collections::BTreeSet<_> = labels.clone().collect();
        !question.text.trim().is_empty()
            && distinct.len() == labels.clone().count()
            && labels.into_iter().all(|label| !label.trim().is_empty())
    };
    if questions.iter().all(is_usable) {
        questions
    } else {
        Vec::new()
    }
}

fn read_question(value: &Value) -> AgentQuestion {
    let options = list_at(value, "/options")
        .iter()
        .map(|option| QuestionChoice {
            label: text_at(option, "/label").to_owned(),
            description: text_at(option, "/description").to_owned(),
        });
    AgentQuestion {
        text: text_at(value, "/question").to_owned(),
        header: text_at(value, "/header").to_owned(),
        multi_select: value.get("multiSelect") == Some(&Value::Bool(true)),
        options: options.collect(),
        // Claude's own dialog always accepts another answer.
        allow_free_text: true,
    }
}

pub(super) fn answer_message(
    needs: &str,
    key: &InputKey,
    answer: &AgentInputAnswer,
) -> Option<StdinMessage> {
    let needs = match serde_json::from_str(needs).ok()? {
        ClaudeAnswerContext::Tool(needs) => needs,
        ClaudeAnswerContext::Form(form) => {
            return Some(success_response(&key.0, form.answer_json(answer)));
        }
    };
    let message = match answer {
        AgentInputAnswer::Allow { for_attempt } => allow_response(
            &key.0,
            &needs.arguments,
            for_attempt.then_some(&needs.suggestions[..]),
        ),
        AgentInputAnswer::Deny { message } if message.is_empty() => {
            deny_response(&key.0, "Permission was denied.")
        }
        AgentInputAnswer::Deny { message } => deny_response(&key.0, message),
        AgentInputAnswer::None => deny_response(&key.0, "No answer came in time."),
        AgentInputAnswer::Replies(replies) => {
            let input = answered_input(&needs, replies)?;
            allow_response(&key.0, &input, None)
        }
    };
    Some(message)
}

/// The question tool's input together with the answer to each question.
fn answered_input(needs: &ToolAnswerContext, replies: &[QuestionResponse]) -> Option<String> {
    let mut input: Map<String, Value> = serde_json::from_str(&needs.arguments).ok()?;
    let answers = needs
        .questions
        .iter()
        .zip(replies)
        .map(|(question, reply)| {
            let mut texts = reply.labels.clone();
            texts.extend(Some(reply.text.clone()).filter(|text| !text.is_empty()));
            (question.clone(), Value::String(texts.join(", ")))
        });
    input.insert("answers".to_owned(), Value::Object(answers.collect()));
    Some(Value::Object(input).to_string())
}

/// Allows exactly the input that was shown. Rules that are granted with it last only for this
/// process, wherever the agent would have stored them.
fn allow_response(id: &str, arguments: &str, suggestions: Option<&[Value]>) -> StdinMessage {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct AllowResponse<'a> {
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
    let rules = suggestions.filter(|suggestion| suggestion.is_object());
    let updated_input: &RawValue = serde_json::from_str(arguments).unwrap_or(RawValue::NULL);
    let allow = AllowResponse {
        behavior: "allow",
        updated_input,
        updated_permissions: rules.map(for_session).collect(),
    };
    let allow = serde_json::to_string(&allow).unwrap_or_default();
    let id = Value::from(id);
    StdinMessage::text_line(format!(
        r#"{{"type":"control_response","response":{{"subtype":"success","request_id":{id},"response":{allow}}}}}"#
    ))
}

fn deny_response(id: &str, message: &str) -> StdinMessage {
    success_response(id, json!({"behavior": "deny", "message": message}))
}

fn success_response(id: &str, response: Value) -> StdinMessage {
    control_response(json!({"subtype": "success", "request_id": id, "response": response}))
}

fn error_response(id: &str, problem: &str) -> StdinMessage {
    control_response(json!({"subtype": "error", "request_id": id, "error": problem}))
}

fn control_response(response: Value) -> StdinMessage {
    StdinMessage::json_line(&json!({"type": "control_response", "response": response}))
}
