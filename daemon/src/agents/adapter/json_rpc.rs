//! JSON as agents write it: lenient parsing, the exact text of a part, and JSON-RPC messages in
//! both directions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::agent_event::{AgentEvent, StdinMessage};
use super::turn_state::TOO_LONG_TO_SHOW;

/// Parses a message and returns it with its text. JavaScript may cut a string between two
/// UTF-16 surrogates and write only one of them, which is not valid text. It is read as U+FFFD,
/// and the repaired text is returned.
pub(crate) fn parse_json(json: &str) -> Option<(Cow<'_, str>, Value)> {
    if let Ok(message) = serde_json::from_str(json) {
        return Some((Cow::Borrowed(json), message));
    }
    let repaired = replace_lone_surrogates(json)?;
    let message = serde_json::from_str(&repaired).ok()?;
    Some((Cow::Owned(repaired), message))
}

/// `None` if there are none.
fn replace_lone_surrogates(json: &str) -> Option<String> {
    let mut repaired = String::new();
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        repaired.push_str(before);
        let (length, is_lone) = match (utf16_unit(escape), escape.get(6..).and_then(utf16_unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            // An escaped backslash or other character: skip both.
            _ => (1 + escape.chars().nth(1).map_or(0, char::len_utf8), false),
        };
        let (escape, after) = escape.split_at(length);
        repaired.push_str(if is_lone { "\\ufffd" } else { escape });
        rest = after;
    }
    (!repaired.is_empty()).then(|| repaired + rest)
}

/// The UTF-16 unit of the escape at the start of the text.
fn utf16_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Text at a path; empty if there is none.
pub(crate) fn text_at<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn list_at<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    let list = value.pointer(path).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// The bytes of a part of `json`, exactly as they were written.
pub(crate) fn exact_text<'a>(json: &'a str, path: &[&str]) -> Option<&'a str> {
    let Some((first, rest)) = path.split_first() else {
        return Some(json);
    };
    let fields: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(json).ok()?;
    exact_text(fields.get(*first)?.get(), rest)
}

/// A message of a JSON-RPC peer. A message with a method is a request or notification, whatever
/// its id, because each side numbers its own requests.
#[derive(Debug, PartialEq)]
pub(crate) enum RpcMessage<'a> {
    Request {
        /// Must be sent back unchanged.
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
        // Some agents write every possible field and set unused fields to null.
        let given = |name| object.get(name).filter(|value| !value.is_null());
        let params = object.get("params").unwrap_or(NULL);
        if let Some(method) = given("method") {
            let method = method.as_str()?;
            return Some(match given("id") {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        // The response to an unreadable request has a null id.
        let id = object.get("id")?;
        match (object.get("result"), given("error")) {
            (_, Some(error)) => Some(Self::Error { id, error }),
            (Some(result), None) => Some(Self::Result { id, result }),
            (None, None) => None,
        }
    }
}

/// What can be derived from the beginning of a JSON-RPC message that was too long.
#[derive(Debug, PartialEq)]
pub(crate) enum OversizedMessage {
    Request(Value),
    /// A response with its id, unless the id comes later in the message.
    Answer(Option<Value>),
    /// A notification, or unknown.
    Other,
}

impl OversizedMessage {
    pub(crate) fn read(beginning: &str) -> Self {
        let at = |name: &str| beginning.find(name);
        let params = at("\"params\"");
        let answer = at("\"result\"").or(at("\"error\""));
        // After these fields, ids belong to other objects.
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
    /// Handles a message that was too long to be read. A request is refused, because the peer
    /// waits for a response. For a response, the request that it belongs to is removed from
    /// `waiting` and returned.
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
            // Only one request is open, so the response belongs to it.
            Self::Answer(None) if waiting.len() == 1 => {
                waiting.pop_first().map(|(_, request)| request)
            }
            Self::Answer(None) | Self::Other => None,
        }
    }
}

/// The value of a field in the beginning of a message, if it is complete.
pub(crate) fn scalar_field(beginning: &str, name: &str) -> Option<Value> {
    let (_, rest) = beginning.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let mut values = serde_json::Deserializer::from_str(rest).into_iter();
    values.next()?.ok()
}

/// Whether JSON-RPC messages carry a version field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcDialect {
    /// With `"jsonrpc":"2.0"`.
    Standard,
    /// Without a version field.
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

    /// Refuses a request.
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
    fn the_exact_text_of_a_part_is_returned() {
        let json = r#"{"a":{ "b" : {"z":1.0, "y": "\u00e9"} },"c":2}"#;
        assert_eq!(
            exact_text(json, &["a", "b"]),
            Some(r#"{"z":1.0, "y": "\u00e9"}"#)
        );
        assert_eq!(exact_text(json, &["a", "x"]), None);
        assert_eq!(exact_text("not json", &["a"]), None);
    }

    #[test]
    fn a_message_with_a_method_is_a_request_whatever_its_id() {
        let request = json!({"id": 0, "method": "m"});
        assert!(matches!(
            RpcMessage::read(&request),
            Some(RpcMessage::Request { method: "m", .. })
        ));
        let message = json!({"id": 0, "result": null});
        assert!(matches!(
            RpcMessage::read(&message),
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
    fn null_fields_count_as_absent() {
        let message = json!({"id": null, "method": "m", "params": {}});
        assert!(matches!(
            RpcMessage::read(&message),
            Some(RpcMessage::Notification { method: "m", .. })
        ));
        let response = json!({"id": 0, "method": null, "result": {"a": 1}, "error": null});
        assert!(matches!(
            RpcMessage::read(&response),
            Some(RpcMessage::Result { .. })
        ));
        let failed = json!({"id": 0, "method": null, "result": null, "error": {"code": 1}});
        assert!(matches!(
            RpcMessage::read(&failed),
            Some(RpcMessage::Error { .. })
        ));
    }

    #[test]
    fn the_beginning_of_a_message_shows_its_kind_and_id() {
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
    fn a_lone_surrogate_is_replaced_and_the_message_is_read() {
        let read = |json: &str| parse_json(json).map(|(_, message)| message);
        let repaired_text = |json: &str| read(json).unwrap().as_str().unwrap().to_owned();
        assert_eq!(repaired_text(r#""a\ud83d""#), "a\u{fffd}");
        assert_eq!(repaired_text(r#""\uDE00b""#), "\u{fffd}b");
        assert_eq!(
            repaired_text(r#""\ud83d\ud83d\ude00""#),
            "\u{fffd}\u{1f600}"
        );
        assert_eq!(
            repaired_text(r#""\ud83d\n\\ud83d é""#),
            "\u{fffd}\n\\ud83d é"
        );
        for broken in [r#""\ud83d"#, r#""\ud8"#, r#""\"#, "\"\\é\"", "\"\\u00é\""] {
            assert_eq!(read(broken), None, "{broken}");
        }
        let (text, _) = parse_json(r#"{"a":"\ud83d"}"#).unwrap();
        assert_eq!(exact_text(&text, &["a"]), Some(r#""\ufffd""#));
    }
}
