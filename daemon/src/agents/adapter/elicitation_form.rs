//! An elicitation: a form that an agent wants filled in, translated into questions for a person
//! and back.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::agent_event::{
    AgentInputAnswer, AgentInputKind, AgentQuestion, QuestionChoice, QuestionResponse,
};
use super::json_rpc::{list_at, text_at};
use super::turn_state::permission_input;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ElicitationForm {
    fields: Vec<FormField>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FormField {
    name: String,
    question: AgentQuestion,
    kind: FormFieldKind,
    /// The value of each option, in the same order.
    values: Vec<Value>,
    /// The field for a free-text answer next to the options.
    beside: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FormFieldKind {
    Text,
    Number,
    One,
    Many,
    /// A list of free texts, one per line.
    Lines,
}

/// Suffix of a free-text field next to another field.
const FREE_TEXT_SUFFIX: &str = "_custom";

impl ElicitationForm {
    /// `None` for a form that cannot be asked as questions, such as a URL to visit.
    pub(crate) fn read(params: &Value) -> Option<Self> {
        if !matches!(
            text_at(params, "/mode"),
            "form" | "openai/form" | "openaiForm" | ""
        ) || !text_at(params, "/url").is_empty()
        {
            return None;
        }
        let empty = Map::new();
        let schema = params
            .get("requestedSchema")
            .or_else(|| params.get("requested_schema"))?;
        let properties = match schema.get("properties") {
            Some(Value::Null) | None => &empty,
            Some(properties) => properties.as_object()?,
        };
        let is_beside = |name: &str| {
            let main = name.strip_suffix(FREE_TEXT_SUFFIX);
            main.is_some_and(|main| properties.contains_key(main))
        };
        let message = text_at(params, "/message");
        let own: Vec<(&String, &Value)> = properties
            .iter()
            .filter(|(name, _)| !is_beside(name))
            .collect();
        let is_only_field = own.len() == 1;
        let fields = own.into_iter().map(|(name, property)| {
            let beside = format!("{name}{FREE_TEXT_SUFFIX}");
            let beside = properties.contains_key(&beside).then_some(beside);
            FormField::read(name, property, is_only_field, message, beside)
        });
        let fields = fields.collect::<Option<_>>()?;
        Some(Self { fields })
    }

    /// A form without fields asks for a yes or no, as the tool permissions of Codex do. It
    /// becomes a permission request with the content of the request. `None` if there is no
    /// content, or too much to be shown.
    pub(crate) fn to_input(
        &self,
        params: &Value,
        can_allow_for_attempt: bool,
    ) -> Option<AgentInputKind> {
        if !self.fields.is_empty() {
            return Some(AgentInputKind::Questions(self.questions()));
        }
        let names = ["serverName", "mcp_server_name", "message", "_meta"];
        let shown = names.into_iter().filter_map(|name| {
            let value = params.get(name).filter(|value| !value.is_null());
            value.map(|value| (name.to_owned(), value.clone()))
        });
        let shown: Map<String, Value> = shown.collect();
        if shown.is_empty() {
            return None;
        }
        let server = [
            text_at(params, "/serverName"),
            text_at(params, "/mcp_server_name"),
        ]
        .concat();
        let name = match (server.as_str(), text_at(params, "/_meta/tool_name")) {
            ("", "") => "confirmation".to_owned(),
            (server, "") => server.to_owned(),
            (server, tool) => format!("{server}.{tool}"),
        };
        let shown = Value::Object(shown).to_string();
        permission_input(
            &name,
            &shown,
            text_at(params, "/message"),
            can_allow_for_attempt,
        )
    }

    fn questions(&self) -> Vec<AgentQuestion> {
        self.fields
            .iter()
            .map(|field| field.question.clone())
            .collect()
    }

    pub(crate) fn answer_json(&self, answer: &AgentInputAnswer) -> Value {
        match answer {
            AgentInputAnswer::Replies(replies) => {
                let mut content = Map::new();
                for (field, reply) in self.fields.iter().zip(replies) {
                    field.fill_in(reply, &mut content);
                }
                json!({"action": "accept", "content": content})
            }
            AgentInputAnswer::Deny { .. } => json!({"action": "decline"}),
            AgentInputAnswer::Allow { .. } if self.fields.is_empty() => {
                json!({"action": "accept", "content": {}})
            }
            AgentInputAnswer::Allow { .. } | AgentInputAnswer::None => json!({"action": "cancel"}),
        }
    }
}

impl FormField {
    fn read(
        name: &str,
        property: &Value,
        is_only_field: bool,
        message: &str,
        beside: Option<String>,
    ) -> Option<Self> {
        let (kind, choices) = match text_at(property, "/type") {
            "string" if choices(property).is_empty() => (FormFieldKind::Text, Vec::new()),
            "string" => (FormFieldKind::One, choices(property)),
            "number" | "integer" => (FormFieldKind::Number, Vec::new()),
            "boolean" => {
                let yes_no = [("Yes", true), ("No", false)];
                (
                    FormFieldKind::One,
                    yes_no
                        .map(|(label, value)| choice(label, "", json!(value)))
                        .to_vec(),
                )
            }
            "array" => list_field(property.get("items")?)?,
            _ => return None,
        };
        let title = text_at(property, "/title");
        let description = text_at(property, "/description");
        let texts = [description, title, name];
        let own = texts
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or(name);
        let use_message = is_only_field && !message.is_empty();
        let (options, values): (Vec<QuestionChoice>, Vec<Value>) = choices.into_iter().unzip();
        Some(Self {
            name: name.to_owned(),
            question: AgentQuestion {
                text: if use_message { message } else { own }.to_owned(),
                header: title.to_owned(),
                multi_select: kind == FormFieldKind::Many,
                allow_free_text: options.is_empty() || beside.is_some(),
                options,
            },
            kind,
            values,
            beside,
        })
    }

    fn fill_in(&self, reply: &QuestionResponse, content: &mut Map<String, Value>) {
        let chosen = self.question.options.iter().zip(&self.values);
        let chosen = chosen.filter(|(option, _)| reply.labels.contains(&option.label));
        let mut chosen = chosen.map(|(_, value)| value.clone());
        let value = match self.kind {
            FormFieldKind::Text => Some(json!(reply.text)),
            // A value that is not a number is left out, and the agent reports that.
            FormFieldKind::Number => serde_json::from_str(reply.text.trim())
                .ok()
                .filter(Value::is_number),
            FormFieldKind::One => chosen.next(),
            FormFieldKind::Many => Some(Value::Array(chosen.collect())),
            FormFieldKind::Lines => {
                let lines = reply.text.lines().map(str::trim);
                Some(lines.filter(|line| !line.is_empty()).collect())
            }
        };
        if let Some(value) = value {
            content.insert(self.name.clone(), value);
        }
        if let Some(beside) = self.beside.as_ref().filter(|_| !reply.text.is_empty()) {
            content.insert(beside.clone(), json!(reply.text));
        }
    }
}

/// A choice of several values, or free texts. A person could not enter any other kind of list.
fn list_field(items: &Value) -> Option<(FormFieldKind, Vec<(QuestionChoice, Value)>)> {
    let choices = choices(items);
    if !choices.is_empty() {
        return Some((FormFieldKind::Many, choices));
    }
    (text_at(items, "/type") == "string").then(|| (FormFieldKind::Lines, Vec::new()))
}

/// Options from `oneOf` or `anyOf` with titles, or from a bare `enum`. Labels are made unique
/// because an answer names its option by the label.
fn choices(property: &Value) -> Vec<(QuestionChoice, Value)> {
    let titled = list_at(property, "/oneOf")
        .iter()
        .chain(list_at(property, "/anyOf"));
    let titled = titled.filter_map(|option| {
        let value = option.get("const")?;
        let title = text_at(option, "/title");
        let plain = value.as_str().unwrap_or_default();
        let label = if title.is_empty() { plain } else { title };
        Some(choice(
            label,
            text_at(option, "/description"),
            value.clone(),
        ))
    });
    let names = list_at(property, "/enumNames");
    let bare = list_at(property, "/enum")
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let name = names.get(at).and_then(Value::as_str);
            choice(
                name.or(value.as_str()).unwrap_or_default(),
                "",
                value.clone(),
            )
        });
    let mut unique: Vec<(QuestionChoice, Value)> = Vec::new();
    for (mut option, value) in titled.chain(bare) {
        if option.label.is_empty() {
            option.label = value.to_string();
        }
        if unique.iter().any(|(known, _)| known.label == option.label) {
            option.label = format!("{} ({value})", option.label);
        }
        unique.push((option, value));
    }
    unique
}

fn choice(label: &str, description: &str, value: Value) -> (QuestionChoice, Value) {
    let choice = QuestionChoice {
        label: label.to_owned(),
        description: description.to_owned(),
    };
    (choice, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_field_is_asked_and_filled_in_by_value() {
        let form = ElicitationForm::read(
            &json!({"mode": "form", "message": "About it", "requestedSchema": {
                "properties": {
                    "colour": {"type": "string", "title": "Colour", "oneOf": [
                        {"const": "r", "title": "Red"}, {"const": "b", "title": "Red"}]},
                    "colour_custom": {"type": "string"},
                    "sizes": {"type": "array", "items": {"enum": ["S", "M"]}},
                    "count": {"type": "integer"},
                    "sure": {"type": "boolean"},
                }
            }}),
        )
        .unwrap();
        let questions = form.questions();
        assert_eq!(questions.len(), 4);
        let colour = questions
            .iter()
            .find(|question| question.header == "Colour")
            .unwrap();
        assert!(colour.allow_free_text && !colour.multi_select);
        assert_eq!(colour.options[1].label, "Red (\"b\")");
        let reply = |labels: &[&str], text: &str| QuestionResponse {
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            text: text.to_owned(),
        };
        let replies = form.fields.iter().map(|field| match field.name.as_str() {
            "colour" => reply(&["Red (\"b\")"], "a note"),
            "sizes" => reply(&["S", "M"], ""),
            "count" => reply(&[], " 3 "),
            _ => reply(&["No"], ""),
        });
        let answer = form.answer_json(&AgentInputAnswer::Replies(replies.collect()));
        let content = json!({
            "colour": "b", "colour_custom": "a note", "sizes": ["S", "M"], "count": 3, "sure": false,
        });
        assert_eq!(answer, json!({"action": "accept", "content": content}));
        assert_eq!(
            form.answer_json(&AgentInputAnswer::None),
            json!({"action": "cancel"})
        );
    }

    #[test]
    fn a_list_without_choices_takes_one_text_per_line() {
        let form = |items: Value| {
            let tags = json!({"type": "array", "items": items});
            ElicitationForm::read(&json!({"requestedSchema": {"properties": {"tags": tags}}}))
        };
        let text_list = form(json!({"type": "string"})).unwrap();
        let question = &text_list.questions()[0];
        assert!(question.allow_free_text && !question.multi_select);
        let reply = QuestionResponse {
            text: "one thing\n\n another ".to_owned(),
            ..QuestionResponse::default()
        };
        let answer = text_list.answer_json(&AgentInputAnswer::Replies(vec![reply]));
        let content = json!({"tags": ["one thing", "another"]});
        assert_eq!(answer, json!({"action": "accept", "content": content}));
        assert_eq!(
            form(json!({"type": "object"})),
            None,
            "objects cannot be entered as text"
        );
    }

    #[test]
    fn an_elicitation_without_a_usable_form_is_none() {
        assert_eq!(
            ElicitationForm::read(&json!({"mode": "url", "url": "http://x"})),
            None
        );
        let odd = json!({"requestedSchema": {"properties": {"a": {"type": "object"}}}});
        assert_eq!(ElicitationForm::read(&odd), None);
    }

    #[test]
    fn a_form_without_fields_is_a_permission_request() {
        let params = json!({"mode": "form", "serverName": "files", "message": "Delete it?",
            "requestedSchema": {"type": "object", "properties": {}}});
        let form = ElicitationForm::read(&params).unwrap();
        let Some(AgentInputKind::Permission(permission)) = form.to_input(&params, false) else {
            panic!("the form is not a permission request");
        };
        assert_eq!(permission.tool_name, "files");
        assert_eq!(
            permission.arguments,
            r#"{"message":"Delete it?","serverName":"files"}"#
        );
        let allow = AgentInputAnswer::Allow { for_attempt: false };
        assert_eq!(
            form.answer_json(&allow),
            json!({"action": "accept", "content": {}})
        );
        assert_eq!(
            form.answer_json(&AgentInputAnswer::None),
            json!({"action": "cancel"})
        );
        // An empty request cannot be allowed.
        assert_eq!(form.to_input(&json!({}), false), None);
    }
}
