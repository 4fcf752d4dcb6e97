//! Frames decoded with the descriptors of a peer's version, never with the code's own types.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};

pub(crate) const DAEMON_FRAME: &str = "baton.v1.DaemonFrame";
pub(crate) const RELAY_FRAME: &str = "baton.v1.RelayFrame";

pub(crate) fn decode(pool: &DescriptorPool, name: &str, bytes: &[u8]) -> DynamicMessage {
    let message = pool.get_message_by_name(name).expect("a known message");
    DynamicMessage::decode(message, bytes).unwrap_or_else(|error| panic!("no {name}: {error}"))
}

pub(crate) fn encode(message: &DynamicMessage) -> Bytes {
    message.encode_to_vec().into()
}

/// The value at a path of field names; none if a field on the path is unset.
pub(crate) fn value_at(message: &DynamicMessage, path: &[&str]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    let field = message.descriptor().get_field_by_name(first)?;
    if !message.has_field(&field) && field.supports_presence() {
        return None;
    }
    let value = message.get_field(&field).into_owned();
    if rest.is_empty() {
        Some(value)
    } else {
        value_at(value.as_message()?, rest)
    }
}

pub(crate) fn number_at(message: &DynamicMessage, path: &[&str]) -> u64 {
    value_at(message, path)
        .and_then(|value| value.as_u64())
        .unwrap_or(0)
}

pub(crate) fn text_at(message: &DynamicMessage, path: &[&str]) -> String {
    let value = value_at(message, path);
    let text = value.as_ref().and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

pub(crate) fn messages_at(message: &DynamicMessage, path: &[&str]) -> Vec<DynamicMessage> {
    let value = value_at(message, path);
    let items = value.as_ref().and_then(Value::as_list).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item.as_message().cloned())
        .collect()
}

/// Changes the value at a path that is set.
pub(crate) fn change_at(message: &mut DynamicMessage, path: &[&str], set: impl FnOnce(&mut Value)) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let Some(value) = message.get_field_by_name_mut(first) else {
        panic!("no field {first}");
    };
    if rest.is_empty() {
        set(value);
    } else {
        let inner = value.as_message_mut().expect("a message on the way");
        change_at(inner, rest, set);
    }
}

pub(crate) fn set_at(message: &mut DynamicMessage, path: &[&str], to: Value) {
    change_at(message, path, |value| *value = to);
}

/// Appends to the list at a path.
pub(crate) fn push_at(message: &mut DynamicMessage, path: &[&str], item: Value) {
    change_at(message, path, |value| {
        value.as_list_mut().expect("a list").push(item);
    });
}

/// Changes every message of the list at a path.
pub(crate) fn change_each_at(
    message: &mut DynamicMessage,
    path: &[&str],
    mut one: impl FnMut(&mut DynamicMessage),
) {
    change_at(message, path, |value| {
        let items = value.as_list_mut().expect("a list").iter_mut();
        items.filter_map(Value::as_message_mut).for_each(&mut one);
    });
}

/// The arm of a oneof that is set; none also for an arm that this version does not define.
pub(crate) fn oneof_arm(message: &DynamicMessage, oneof: &str) -> Option<String> {
    let set = message.fields().find(|(field, _)| {
        let of = field.containing_oneof();
        of.is_some_and(|of| of.name() == oneof)
    });
    set.map(|(field, _)| field.name().to_owned())
}

/// Kind of a frame, for output and matching: `hello`, `attempt/accepted`,
/// `attempt/lifecycle/prompt_written`.
pub(crate) fn frame_kind(frame: &DynamicMessage) -> String {
    let Some(outer) = oneof_arm(frame, "frame") else {
        return "unknown".to_owned();
    };
    let inner = value_at(frame, &[&outer]);
    let inner = inner.as_ref().and_then(Value::as_message);
    let body = inner.and_then(|inner| oneof_arm(inner, "body"));
    match (outer.as_str(), body) {
        ("attempt", Some(body)) if body == "lifecycle" => {
            let phase = value_at(frame, &["attempt", "lifecycle", "phase"]);
            let phase = phase.and_then(|phase| phase.as_enum_number()).unwrap_or(0);
            format!("attempt/lifecycle/{}", phase_name(frame, phase))
        }
        ("attempt", Some(body)) => format!("attempt/{body}"),
        ("attempt", None) => "attempt/unknown".to_owned(),
        (outer, _) => outer.to_owned(),
    }
}

fn phase_name(frame: &DynamicMessage, number: i32) -> String {
    let descriptor = frame.descriptor();
    let phases = descriptor
        .parent_pool()
        .get_enum_by_name("baton.v1.LifecyclePhase");
    let value = phases.and_then(|phases| phases.get_value(number));
    value.map_or_else(
        || number.to_string(),
        |value| {
            value
                .name()
                .trim_start_matches("LIFECYCLE_PHASE_")
                .to_lowercase()
        },
    )
}

pub(crate) fn attempt_id_of(frame: &DynamicMessage) -> String {
    text_at(frame, &["attempt", "ref", "attempt_id"])
}

/// Recorded ids and tokens, each with the current one.
#[derive(Debug, Default)]
pub(crate) struct RecordedNames {
    ids: HashMap<String, String>,
    tokens: HashMap<Bytes, Bytes>,
}

impl RecordedNames {
    /// Adds the ids and tokens of a recorded message and its current counterpart.
    pub(crate) fn learn_message(&mut self, recorded: &DynamicMessage, now: &DynamicMessage) {
        for (field, was) in recorded.fields() {
            if let Some(is) = now.get_field_by_number(field.number()) {
                self.learn_value(was, &is);
            }
        }
    }

    fn learn_value(&mut self, was: &Value, is: &Value) {
        match (was, is) {
            (Value::String(was), Value::String(is)) if uuid::Uuid::parse_str(was).is_ok() => {
                self.ids.entry(was.clone()).or_insert_with(|| is.clone());
            }
            (Value::Bytes(was), Value::Bytes(is)) if was.len() == 32 && is.len() == 32 => {
                self.tokens.entry(was.clone()).or_insert_with(|| is.clone());
            }
            (Value::Message(was), Value::Message(is)) => self.learn_message(was, is),
            (Value::List(was), Value::List(is)) => {
                let pairs = was.iter().zip(is);
                pairs.for_each(|(was, is)| self.learn_value(was, is));
            }
            (_, _) => {}
        }
    }

    pub(crate) fn current_id<'a>(&'a self, recorded: &'a str) -> &'a str {
        self.ids.get(recorded).map_or(recorded, String::as_str)
    }

    /// Replaces every recorded id and token with the current one.
    pub(crate) fn replace_in_message(&self, message: &mut DynamicMessage) {
        message
            .fields_mut()
            .for_each(|(_, value)| self.replace_in_value(value));
    }

    fn replace_in_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(now) = self.ids.get(text) {
                    text.clone_from(now);
                }
            }
            Value::Bytes(bytes) => {
                if let Some(now) = self.tokens.get(bytes) {
                    bytes.clone_from(now);
                }
            }
            Value::Message(message) => self.replace_in_message(message),
            Value::List(items) => items
                .iter_mut()
                .for_each(|item| self.replace_in_value(item)),
            Value::Map(entries) => entries
                .values_mut()
                .for_each(|item| self.replace_in_value(item)),
            Value::Bool(_)
            | Value::I32(_)
            | Value::I64(_)
            | Value::U32(_)
            | Value::U64(_)
            | Value::F32(_)
            | Value::F64(_)
            | Value::EnumNumber(_) => {}
        }
    }
}
