//! JSON as agents write it: lenient reading, the exact text of a part, and JSON-RPC with its two directions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::agent_event::{AgentEvent, StdinMessage};
use super::turn_state::TOO_LONG_TO_SHOW;

/// A message and its text. JavaScript cuts strings between the two halves of a character and writes half of it, which is
/// no text: it is read as U+FFFD, and the text comes back mended.
pub(crate) fn parse_json(json: &str) -> Option<(Cow<'_, str>, Value)> {
    if let Ok(message) = serde_json::from_str(json) {
        return Some((Cow::Borrowed(json), message));
    }
    let mended = replace_lone_surrogates(json)?;
    let message = serde_json::from_str(&mended).ok()?;
    Some((Cow::Owned(mended), message))
}

/// None when there are none in it.
fn replace_lone_surrogates(json: &str) -> Option<String> {
    let mut mended = String::new();
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        mended.push_str(before);
        let (length, half) = match (utf16_unit(escape), escape.get(6..).and_then(utf16_unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            // What is escaped is no escape itself.
            _ => (1 + escape.chars().nth(1).map_or(0, char::len_utf8), false),
        };
        let (escape, after) = escape.split_at(length);
        mended.push_str(if half { "\\ufffd" } else { escape });
        rest = after;
    }
    (!mended.is_empty()).then(|| mended + rest)
}

/// The UTF-16 unit of the escape that this begins with.
fn utf16_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Text at a path; empty when there is none.
pub(crate) fn text_at<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn list_at<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    let found = value.pointer(path).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// The bytes of a part of `json`, exactly as they are there.
pub(crate) fn exact_text<'a>(json: &'a str, path: &[&str]) -> Option<&'a str> {
    let Some((first, rest)) = path.split_first() else {
        return Some(json);
    };
    let fields: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(json).ok()?;
    exact_text(fields.get(*first)?.get(), rest)
}

/// A message of a JSON-RPC peer. One with a method is a request or a notification, whatever its id: each side
/// counts its own.
#[derive(Debug, PartialEq)]
pub(crate) enum RpcMessage<'a> {
    Request {
        /// As it has to be sent back.
        id: &'a Value,
        method: &'a str,
        params: &'a Value,
    },
    Notification {
        method: &'a str,
        params: &'a Value,
    },
    Result {
        id: &'a Value,
        result: &'a Value,
    },
    Error {
        id: &'a Value,
        error: &'a Value,
    },
}

impl<'a> RpcMessage<'a> {
    pub(crate) fn read(message: &'a Value) -> Option<Self> {
        const NULL: &Value = &Value::Null;
        let object = message.as_object()?;
        // Some write every field that a message could have, and null for those that it has not.
        let given = |name| object.get(name).filter(|value| !value.is_null());
        let params = object.get("params").unwrap_or(NULL);
        if let Some(method) = given("method") {
            let method = method.as_str()?;
            return Some(match given("id") {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        // An answer to what could not be read has null for its id.
        let id = object.get("id")?;
        match (object.get("result"), given("error")) {
            (_, Some(error)) => Some(Self::Error { id, error }),
            (Some(result), None) => Some(Self::Result { id, result }),
            (None, None) => None,
        }
    }
}

/// What can be known of a JSON-RPC message of which only the beginning was read.
#[derive(Debug, PartialEq)]
pub(crate) enum OversizedMessage {
    Request(Value),
    /// With its id, unless that comes later.
    Answer(Option<Value>),
    /// A notification, or nobody knows.
    Other,
}

impl OversizedMessage {
    pub(crate) fn read(beginning: &str) -> Self {
        let at = |name: &str| beginning.find(name);
        let params = at("\"params\"");
        let answer = at("\"result\"").or(at("\"error\""));
        // Behind these, ids are those of other things.
        let head = params.into_iter().chain(answer).min();
        let head = head
            .and_then(|end| beginning.get(..end))
            .unwrap_or_default();
        match (params, answer, scalar_field(head, "id")) {
            (Some(params), Some(answer), id) if answer < params => Self::Answer(id),
            (None, Some(_), id) => Self::Answer(id),
            (Some(_), _, Some(id)) if !id.is_null() => Self::Request(id),
            _ => Self::Other,
        }
    }
}

impl OversizedMessage {
    /// A message was too long to be read. A request is refused, for its peer waits; of an answer, the request of ours that it
    /// belongs to is taken out of those that wait.
    pub(crate) fn resolve_waiting<R>(
        &self,
        wire: RpcDialect,
        waiting: &mut BTreeMap<String, R>,
        out: &mut Vec<AgentEvent>,
    ) -> Option<R> {
        match self {
            Self::Request(id) => {
                let refusal = wire.error_response(id, INVALID_REQUEST, TOO_LONG_TO_SHOW);
                out.push(AgentEvent::Write(refusal));
                None
            }
            Self::Answer(Some(id)) => waiting.remove(&id.to_string()),
            // There is only one that it can belong to.
            Self::Answer(None) if waiting.len() == 1 => {
                waiting.pop_first().map(|(_, request)| request)
            }
            Self::Answer(None) | Self::Other => None,
        }
    }
}

/// What a field has in the beginning of a message, where that is whole.
pub(crate) fn scalar_field(beginning: &str, name: &str) -> Option<Value> {
    let (_, rest) = beginning.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let mut values = serde_json::Deserializer::from_str(rest).into_iter();
    values.next()?.ok()
}

/// How a JSON-RPC peer wants to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcDialect {
    /// With `"jsonrpc":"2.0"`.
    Standard,
    /// Without.
    Bare,
}

impl RpcDialect {
    pub(crate) fn request(self, id: u64, method: &str, params: Value) -> StdinMessage {
        self.message_line(json!({"id": id, "method": method, "params": params}))
    }

    pub(crate) fn notification(self, method: &str, params: Option<Value>) -> StdinMessage {
        let mut message = json!({"method": method});
        if let Some(params) = params {
            message["params"] = params;
        }
        self.message_line(message)
    }

    pub(crate) fn result(self, id: &Value, result: Value) -> StdinMessage {
        self.message_line(json!({"id": id, "result": result}))
    }

    /// The request is not served.
    pub(crate) fn error_response(self, id: &Value, code: i64, message: &str) -> StdinMessage {
        self.message_line(json!({"id": id, "error": {"code": code, "message": message}}))
    }

    fn message_line(self, mut message: Value) -> StdinMessage {
        if self == Self::Standard {
            message["jsonrpc"] = json!("2.0");
        }
        StdinMessage::json_line(&message)
    }
}

const INVALID_REQUEST: i64 = -32600;
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_as_it_was_written() {
        let json = r#"{"a":{ "b" : {"z":1.0, "y": "\u00e9"} },"c":2}"#;
        assert_eq!(
            exact_text(json, &["a", "b"]),
            Some(r#"{"z":1.0, "y": "\u00e9"}"#)
        );
        assert_eq!(exact_text(json, &["a", "x"]), None);
        assert_eq!(exact_text("not json", &["a"]), None);
    }

    #[test]
    fn a_method_makes_a_request_even_with_an_id_that_is_pending_here() {
        let asked = json!({"id": 0, "method": "m"});
        assert!(matches!(
            RpcMessage::read(&asked),
            Some(RpcMessage::Request { method: "m", .. })
        ));
        let told = json!({"id": 0, "result": null});
        assert!(matches!(
            RpcMessage::read(&told),
            Some(RpcMessage::Result { .. })
        ));
        let failed = json!({"id": null, "error": {"code": -32700}});
        assert!(matches!(
            RpcMessage::read(&failed),
            Some(RpcMessage::Error { .. })
        ));
        for nonsense in [
            json!(1),
            json!({"id": 1}),
            json!({"method": 1}),
            json!({"method": null}),
            json!([]),
        ] {
            assert_eq!(RpcMessage::read(&nonsense), None);
        }
    }

    #[test]
    fn what_is_null_is_not_there() {
        let told = json!({"id": null, "method": "m", "params": {}});
        assert!(matches!(
            RpcMessage::read(&told),
            Some(RpcMessage::Notification { method: "m", .. })
        ));
        let answered = json!({"id": 0, "method": null, "result": {"a": 1}, "error": null});
        assert!(matches!(
            RpcMessage::read(&answered),
            Some(RpcMessage::Result { .. })
        ));
        let failed = json!({"id": 0, "method": null, "result": null, "error": {"code": 1}});
        assert!(matches!(
            RpcMessage::read(&failed),
            Some(RpcMessage::Error { .. })
        ));
    }

    #[test]
    fn the_beginning_of_a_message_says_who_waits() {
        let read = OversizedMessage::read;
        assert_eq!(
            read(r#"{"id": 1, "result": {"id": 2"#),
            OversizedMessage::Answer(Some(json!(1)))
        );
        assert_eq!(
            read(r#"{"result":{"params":{"id":2"#),
            OversizedMessage::Answer(None)
        );
        assert_eq!(
            read(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"result":"#),
            OversizedMessage::Request(json!("a"))
        );
        for other in [
            r#"{"method":"m","params":{"item":{"id":"x""#,
            "[[[",
            r#"{"id":12"#,
        ] {
            assert_eq!(read(other), OversizedMessage::Other, "{other}");
        }
    }

    #[test]
    fn half_a_character_costs_itself_and_not_its_message() {
        let read = |json: &str| parse_json(json).map(|(_, message)| message);
        let mended = |json: &str| read(json).unwrap().as_str().unwrap().to_owned();
        assert_eq!(mended(r#""a\ud83d""#), "a\u{fffd}");
        assert_eq!(mended(r#""\uDE00b""#), "\u{fffd}b");
        assert_eq!(mended(r#""\ud83d\ud83d\ude00""#), "\u{fffd}\u{1f600}");
        assert_eq!(mended(r#""\ud83d\n\\ud83d é""#), "\u{fffd}\n\\ud83d é");
        for broken in [r#""\ud83d"#, r#""\ud8"#, r#""\"#, "\"\\é\"", "\"\\u00é\""] {
            assert_eq!(read(broken), None, "{broken}");
        }
        let (text, _) = parse_json(r#"{"a":"\ud83d"}"#).unwrap();
        assert_eq!(exact_text(&text, &["a"]), Some(r#""\ufffd""#));
    }
}
