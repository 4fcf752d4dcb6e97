//! The synthetic next version: every message has one more field, every oneof one more arm,
//! every enum one more value. Its peers send more than this version defines, everywhere.

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
};

use crate::releases::{current_protocol, descriptor_pool};

const EXTRA_FIELD: &str = "note_of_the_future";
const EXTRA_FIELD_NUMBER: i32 = 1_900;
const FIRST_EXTRA_ARM_NUMBER: i32 = 1_901;
/// A value that no enum defines.
pub(crate) const UNKNOWN_ENUM_VALUE: i32 = 77;
/// A feature that no version defines.
pub(crate) const UNKNOWN_FEATURE: &str = "telepathy";

/// The current protocol with these additions.
pub(crate) fn next_version_pool() -> &'static DescriptorPool {
    static NEXT: OnceLock<DescriptorPool> = OnceLock::new();
    NEXT.get_or_init(|| {
        let mut files = current_protocol().clone();
        let ours = files
            .file
            .iter_mut()
            .filter(|file| file.package().starts_with("baton."));
        for file in ours {
            file.message_type.iter_mut().for_each(add_fields_to_message);
            file.enum_type.iter_mut().for_each(add_value_to_enum);
        }
        descriptor_pool(files)
    })
}

fn add_fields_to_message(message: &mut DescriptorProto) {
    let is_map = message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry());
    if is_map {
        return;
    }
    message
        .nested_type
        .iter_mut()
        .for_each(add_fields_to_message);
    message.enum_type.iter_mut().for_each(add_value_to_enum);
    message.field.push(extra_field(
        EXTRA_FIELD.to_owned(),
        EXTRA_FIELD_NUMBER,
        None,
    ));
    // proto3's `optional` is a oneof with one field, which gets no further arm.
    let optional: Vec<i32> = message
        .field
        .iter()
        .filter(|field| field.proto3_optional())
        .map(FieldDescriptorProto::oneof_index)
        .collect();
    for (index, oneof) in (0..).zip(&message.oneof_decl) {
        if !optional.contains(&index) {
            let name = extra_arm_name(oneof.name());
            message.field.push(extra_field(
                name,
                FIRST_EXTRA_ARM_NUMBER + index,
                Some(index),
            ));
        }
    }
}

/// The additional arm of a oneof.
pub(crate) fn extra_arm_name(oneof: &str) -> String {
    format!("{oneof}_of_the_future")
}

fn extra_field(name: String, number: i32, oneof: Option<i32>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::String.into()),
        oneof_index: oneof,
        ..FieldDescriptorProto::default()
    }
}

fn add_value_to_enum(values: &mut EnumDescriptorProto) {
    values.value.push(EnumValueDescriptorProto {
        name: Some(format!("{}_OF_THE_FUTURE", values.name().to_uppercase())),
        number: Some(UNKNOWN_ENUM_VALUE),
        options: None,
    });
}

/// The same message as the next version would send it: with the extra field set in it and in
/// every nested message.
pub(crate) fn as_next_version(message: &DynamicMessage) -> DynamicMessage {
    let name = message.descriptor().full_name().to_owned();
    let mut extended = crate::dynamic_frames::decode(
        next_version_pool(),
        &name,
        &crate::dynamic_frames::encode(message),
    );
    set_extra_fields(&mut extended);
    extended
}

fn set_extra_fields(message: &mut DynamicMessage) {
    for (_, value) in message.fields_mut() {
        match value {
            Value::Message(inner) => set_extra_fields(inner),
            Value::List(items) => items
                .iter_mut()
                .filter_map(Value::as_message_mut)
                .for_each(set_extra_fields),
            _ => {}
        }
    }
    if message
        .descriptor()
        .get_field_by_name(EXTRA_FIELD)
        .is_some()
    {
        message.set_field_by_name(
            EXTRA_FIELD,
            Value::String("text of the next version".to_owned()),
        );
    }
}

#[test]
fn the_next_version_extends_every_message() {
    let hello = next_version_pool()
        .get_message_by_name("baton.v1.Hello")
        .unwrap();
    assert!(hello.get_field_by_name(EXTRA_FIELD).is_some());
    let frame = next_version_pool()
        .get_message_by_name("baton.v1.DaemonFrame")
        .unwrap();
    assert!(frame.get_field_by_name(&extra_arm_name("frame")).is_some());
    let kinds = next_version_pool()
        .get_enum_by_name("baton.v1.AgentKind")
        .unwrap();
    assert!(kinds.get_value(UNKNOWN_ENUM_VALUE).is_some());
}
