//! Messages as JSON for people and scripts: proto-JSON field names (`taskId`) with four
//! simplifications.
//!
//! - Enums are short lower-case names, and null if unspecified.
//! - 64-bit integers are JSON numbers.
//! - Timestamps are always present, and null if unset.
//! - Repeated fields, maps and plain scalars are always present. Optional fields and messages
//!   that are absent are left out.
//!
//! Bytes are base64, except in fields that contain text.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey,
    ReflectMessage as _, Value as Field,
};
use serde_json::{Map, Value};

use crate::{FILE_DESCRIPTOR_SET, short_name::find_short_name, v1::ENUM_NAMES};

static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET)
        .expect("the build script wrote a valid descriptor set")
});

/// Byte fields that contain text. They are shown as text, with invalid UTF-8 replaced.
const TEXT_FIELDS: [&str; 7] = [
    "baton.v1.OutputChunk.data",
    "baton.v1.Stream.chunk",
    "baton.v1.PermissionRequest.tool_input",
    "baton.v1.TaskComplete.result",
    "baton.v1.AgentCompleteRequest.result",
    "baton.v1.CompleteTaskRequest.result",
    "baton.v1.Task.result",
];

/// One message of `baton.v1` as a JSON object. Lease tokens are redacted.
pub fn to_json<M: prost::Message + prost::Name>(message: &M) -> Value {
    let descriptor = DESCRIPTORS
        .get_message_by_name(&M::full_name())
        .expect("every message is in its own descriptor set");
    let bytes = message.encode_to_vec();
    let dynamic = DynamicMessage::decode(descriptor, bytes.as_slice())
        .expect("a message decodes what it encoded");
    message_to_json(&dynamic)
}

/// Bytes as text, with invalid UTF-8 replaced.
pub fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn message_to_json(message: &DynamicMessage) -> Value {
    let mut out = Map::new();
    for field in message.descriptor().fields() {
        if message.has_field(&field) || !field.supports_presence() {
            out.insert(
                field.json_name().to_owned(),
                field_to_json(&field, &message.get_field(&field)),
            );
        } else if is_timestamp(&field) {
            out.insert(field.json_name().to_owned(), Value::Null);
        }
    }
    Value::Object(out)
}

fn field_to_json(field: &FieldDescriptor, value: &Field) -> Value {
    match value {
        Field::Bool(flag) => Value::from(*flag),
        Field::I32(number) => Value::from(*number),
        Field::I64(number) => Value::from(*number),
        Field::U32(number) => Value::from(*number),
        Field::U64(number) => Value::from(*number),
        Field::F32(number) => Value::from(*number),
        Field::F64(number) => Value::from(*number),
        Field::String(text) => Value::from(text.as_str()),
        Field::Bytes(bytes) if TEXT_FIELDS.contains(&field.full_name()) => {
            Value::from(lossy_text(bytes))
        }
        Field::Bytes(bytes) => Value::from(BASE64_STANDARD.encode(bytes)),
        Field::EnumNumber(number) => enum_name(field, *number),
        Field::Message(message) => nested_message_to_json(message),
        Field::List(items) => items
            .iter()
            .map(|item| field_to_json(field, item))
            .collect(),
        Field::Map(entries) => map_to_json(field, entries.iter()),
    }
}

fn enum_name(field: &FieldDescriptor, number: i32) -> Value {
    let Kind::Enum(descriptor) = field.kind() else {
        return Value::from(number);
    };
    let names = ENUM_NAMES
        .iter()
        .find(|(name, _)| *name == descriptor.full_name());
    match names.and_then(|(_, names)| find_short_name(names, number)) {
        Some(_) if number == 0 => Value::Null,
        Some(name) => Value::from(name),
        None => Value::from(number),
    }
}

fn nested_message_to_json(message: &DynamicMessage) -> Value {
    match message.descriptor().full_name() {
        "google.protobuf.Timestamp" => message
            .transcode_to::<prost_types::Timestamp>()
            .map_or(Value::Null, timestamp_to_json),
        "baton.v1.LeaseToken" => Value::from("redacted"),
        _ => message_to_json(message),
    }
}

/// RFC 3339 in UTC, as prost-types writes it.
fn timestamp_to_json(time: prost_types::Timestamp) -> Value {
    Value::from(time.to_string())
}

fn map_to_json<'a>(
    field: &FieldDescriptor,
    entries: impl Iterator<Item = (&'a MapKey, &'a Field)>,
) -> Value {
    let Kind::Message(entry) = field.kind() else {
        return Value::Null;
    };
    let item = entry.map_entry_value_field();
    let sorted = entries.map(|(key, content)| (key_text(key), field_to_json(&item, content)));
    Value::Object(sorted.collect())
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

fn is_timestamp(field: &FieldDescriptor) -> bool {
    let single = field.cardinality() != Cardinality::Repeated;
    single
        && matches!(field.kind(), Kind::Message(message) if message.full_name() == "google.protobuf.Timestamp")
}
