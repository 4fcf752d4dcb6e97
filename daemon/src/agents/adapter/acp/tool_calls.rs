//! What is known of tool calls. An agent may describe a call once, when it begins, and name
//! only its id in a permission request.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::json_rpc::text_at;
use super::super::recent_memory::RecentIds;
use super::super::turn_state::truncate;

/// Fields of a call that describe what it would do.
const CALL_PARTS: [&str; 6] = ["name", "title", "kind", "rawInput", "content", "locations"];

/// Where a tool's name is: in its own field, or in the metadata of Claude's adapter, Qwen Code
/// or Mistral Vibe.
const TOOL_NAMES: [&str; 4] = [
    "/name",
    "/_meta/claudeCode/toolName",
    "/_meta/toolName",
    "/_meta/tool_name",
];

/// Bytes that are kept of one call, and number of calls. They are part of every snapshot, so
/// the limits are small.
const MAX_CALL_BYTES: usize = 64 * 1024;
const MAX_CALLS: usize = 16;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct AcpToolCalls {
    known: BTreeMap<String, KnownToolCall>,
    /// Calls whose output was forwarded.
    #[serde(default)]
    shown: RecentIds,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct KnownToolCall {
    name: String,
    parts: Map<String, Value>,
    /// Fields that were too long to be kept.
    dropped: BTreeSet<String>,
}

/// The name of the called tool. Its kind and title are not names; the title describes the call.
fn named_tool(call: &Value) -> &str {
    let mut names = TOOL_NAMES.into_iter().map(|path| text_at(call, path));
    names.find(|name| !name.is_empty()).unwrap_or_default()
}

impl AcpToolCalls {
    /// Each update contains only what changed.
    pub(super) fn record_update(&mut self, id: &str, call: &Value) {
        if id.is_empty() || self.known.len() >= MAX_CALLS && !self.known.contains_key(id) {
            return;
        }
        let KnownToolCall {
            name,
            parts: known,
            dropped,
        } = self.known.entry(id.to_owned()).or_default();
        if !named_tool(call).is_empty() {
            *name = truncate(named_tool(call), MAX_CALL_BYTES).to_owned();
        }
        for part in CALL_PARTS {
            if let Some(value) = call.get(part).filter(|value| !value.is_null()) {
                known.insert(part.to_owned(), value.clone());
                dropped.remove(part);
            }
        }
        let size = |value: &Value| value.to_string().len();
        while known.values().map(size).sum::<usize>() > MAX_CALL_BYTES {
            let largest = known.iter().max_by_key(|(_, value)| size(value));
            let Some(largest) = largest.map(|(part, _)| part.clone()) else {
                return;
            };
            known.remove(&largest);
            dropped.insert(largest);
        }
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.known.remove(id);
    }

    /// True the first time.
    pub(super) fn mark_shown(&mut self, id: &str) -> bool {
        self.shown.insert(id)
    }

    /// Whether a field of the call was dropped and is missing here too, so that the call cannot
    /// be shown completely.
    pub(super) fn is_incomplete(&self, call: &Value) -> bool {
        let known = self.known.get(text_at(call, "/toolCallId"));
        let mut dropped = known.into_iter().flat_map(|known| &known.dropped);
        dropped.any(|part| call.get(part).is_none_or(Value::is_null))
    }

    /// The call completed with fields from earlier updates; `None` if it already has all of
    /// them.
    pub(super) fn completed_call(&self, call: &Value) -> Option<Value> {
        let known = &self.known.get(text_at(call, "/toolCallId"))?.parts;
        let mut whole = call.as_object()?.clone();
        whole.retain(|_, value| !value.is_null());
        let before = whole.len();
        for (part, value) in known {
            whole.entry(part.clone()).or_insert_with(|| value.clone());
        }
        (whole.len() > before).then_some(Value::Object(whole))
    }

    /// By its name, or else by its kind.
    pub(super) fn tool_name<'a>(&'a self, call: &'a Value) -> &'a str {
        let known = self.known.get(text_at(call, "/toolCallId"));
        let kind = known.and_then(|known| known.parts.get("kind"));
        let names = [
            named_tool(call),
            known.map_or("", |known| &known.name),
            text_at(call, "/kind"),
            kind.and_then(Value::as_str).unwrap_or_default(),
        ];
        let mut names = names.into_iter();
        names.find(|name| !name.is_empty()).unwrap_or("tool")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_is_shown_with_its_earlier_description() {
        let mut calls = AcpToolCalls::default();
        let started = json!({"toolCallId": "t", "title": "ls", "kind": "execute",
            "rawInput": {"command": "ls"}, "_meta": {"claudeCode": {"toolName": "Bash"}}});
        calls.record_update("t", &started);
        calls.record_update(
            "t",
            &json!({"toolCallId": "t", "title": "ls -a", "kind": null}),
        );
        let request = json!({"toolCallId": "t", "status": "pending", "rawInput": null});
        let whole = json!({"toolCallId": "t", "status": "pending", "title": "ls -a",
            "kind": "execute", "rawInput": {"command": "ls"}});
        assert_eq!(calls.completed_call(&request), Some(whole.clone()));
        assert_eq!(calls.completed_call(&whole), None);
        assert_eq!(calls.tool_name(&request), "Bash");
        assert_eq!(
            calls.tool_name(&json!({"toolCallId": "u", "title": "x"})),
            "tool"
        );
    }

    #[test]
    fn remembered_calls_and_their_size_are_limited() {
        let mut calls = AcpToolCalls::default();
        let long = "x".repeat(MAX_CALL_BYTES);
        calls.record_update("t", &json!({"title": "write", "content": [long]}));
        let request = json!({"toolCallId": "t"});
        let whole = json!({"toolCallId": "t", "title": "write"});
        assert_eq!(calls.completed_call(&request), Some(whole));
        assert!(calls.is_incomplete(&request));
        calls.record_update("t", &json!({"content": []}));
        assert!(!calls.is_incomplete(&request));
        for number in 0..2 * MAX_CALLS {
            calls.record_update(&number.to_string(), &json!({"title": "x"}));
        }
        assert_eq!(calls.known.len(), MAX_CALLS);
    }
}
