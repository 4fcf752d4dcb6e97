//! JSON as agents write it: lenient reading, the exact text of a part, and JSON-RPC with its two directions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::event::Message;

/// Text at a path; empty when there is none.
pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    let found = value.pointer(path).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// The bytes of a part of `json`, exactly as they are there.
pub(super) fn exact<'a>(json: &'a str, path: &[&str]) -> Option<&'a str> {
    let Some((first, rest)) = path.split_first() else {
        return Some(json);
    };
    let fields: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(json).ok()?;
    exact(fields.get(*first)?.get(), rest)
}

/// A message of a JSON-RPC peer. One with a method is a request or a notification, whatever its id: each side
/// counts its own.
#[derive(Debug, PartialEq)]
pub(super) enum Rpc<'a> {
    Request {
        /// As it has to be sent back.
        id: &'a Value,
        method: &'a str,
        params: &'a Value,
    },
    Notice {
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

impl<'a> Rpc<'a> {
    pub(super) fn read(message: &'a Value) -> Option<Self> {
        const NULL: &Value = &Value::Null;
        let object = message.as_object()?;
        let id = object.get("id");
        let params = object.get("params").unwrap_or(NULL);
        if let Some(method) = object.get("method") {
            let method = method.as_str()?;
            return Some(match id {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notice { method, params },
            });
        }
        let id = id?;
        match (object.get("result"), object.get("error")) {
            (_, Some(error)) if !error.is_null() => Some(Self::Error { id, error }),
            (Some(result), _) => Some(Self::Result { id, result }),
            (None, _) => None,
        }
    }
}

/// How a JSON-RPC peer wants to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// With `"jsonrpc":"2.0"`.
    Standard,
    /// Without.
    Bare,
}

impl Dialect {
    pub(super) fn request(self, id: u64, method: &str, params: Value) -> Message {
        self.line(json!({"id": id, "method": method, "params": params}))
    }

    pub(super) fn notice(self, method: &str, params: Option<Value>) -> Message {
        let mut message = json!({"method": method});
        if let Some(params) = params {
            message["params"] = params;
        }
        self.line(message)
    }

    pub(super) fn result(self, id: &Value, result: Value) -> Message {
        self.line(json!({"id": id, "result": result}))
    }

    /// The request is not served.
    pub(super) fn refuse(self, id: &Value, code: i64, message: &str) -> Message {
        self.line(json!({"id": id, "error": {"code": code, "message": message}}))
    }

    fn line(self, mut message: Value) -> Message {
        if self == Self::Standard {
            message["jsonrpc"] = json!("2.0");
        }
        Message::line(&message)
    }
}

pub(super) const METHOD_NOT_FOUND: i64 = -32601;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_as_it_was_written() {
        let json = r#"{"a":{ "b" : {"z":1.0, "y": "\u00e9"} },"c":2}"#;
        assert_eq!(
            exact(json, &["a", "b"]),
            Some(r#"{"z":1.0, "y": "\u00e9"}"#)
        );
        assert_eq!(exact(json, &["a", "x"]), None);
        assert_eq!(exact("not json", &["a"]), None);
    }

    #[test]
    fn a_method_makes_a_request_even_with_an_id_that_is_pending_here() {
        let asked = json!({"id": 0, "method": "m"});
        assert!(matches!(
            Rpc::read(&asked),
            Some(Rpc::Request { method: "m", .. })
        ));
        let told = json!({"id": 0, "result": null});
        assert!(matches!(Rpc::read(&told), Some(Rpc::Result { .. })));
        let failed = json!({"id": null, "error": {"code": -32700}});
        assert!(matches!(Rpc::read(&failed), Some(Rpc::Error { .. })));
        for nonsense in [json!(1), json!({"id": 1}), json!({"method": 1}), json!([])] {
            assert_eq!(Rpc::read(&nonsense), None);
        }
    }
}
