//! The synthetic next version: every message has one more field, every oneof one more arm, every enum one more value.
//! Whoever speaks it says more than this version knows, everywhere it can.

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
};

use crate::releases::{head, pool};

const NOTE: &str = "note_of_the_future";
const NOTE_NUMBER: i32 = 1_900;
const FIRST_ARM: i32 = 1_901;
/// A value that no enum has yet.
pub(crate) const VALUE: i32 = 77;
/// A feature that nobody has yet.
pub(crate) const FEATURE: &str = "telepathy";

/// The protocol as it stands, and more.
pub(crate) fn next() -> &'static DescriptorPool {
    static NEXT: OnceLock<DescriptorPool> = OnceLock::new();
    NEXT.get_or_init(|| {
        let mut files = head().clone();
        let ours = files
            .file
            .iter_mut()
            .filter(|file| file.package().starts_with("baton."));
        for file in ours {
            file.message_type.iter_mut().for_each(grow_message);
            file.enum_type.iter_mut().for_each(grow_enum);
        }
        pool(files)
    })
}

fn grow_message(message: &mut DescriptorProto) {
    let is_map = message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry());
    if is_map {
        return;
    }
    message.nested_type.iter_mut().for_each(grow_message);
    message.enum_type.iter_mut().for_each(grow_enum);
    message
        .field
        .push(field(NOTE.to_owned(), NOTE_NUMBER, None));
    // proto3's `optional` is a oneof of one, which stays one.
    let optional: Vec<i32> = message
        .field
        .iter()
        .filter(|field| field.proto3_optional())
        .map(FieldDescriptorProto::oneof_index)
        .collect();
    for (index, oneof) in (0..).zip(&message.oneof_decl) {
        if !optional.contains(&index) {
            let name = arm_name(oneof.name());
            message
                .field
                .push(field(name, FIRST_ARM + index, Some(index)));
        }
    }
}

/// The arm that a oneof gets.
pub(crate) fn arm_name(oneof: &str) -> String {
    format!("{oneof}_of_the_future")
}

fn field(name: String, number: i32, oneof: Option<i32>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::String.into()),
        oneof_index: oneof,
        ..FieldDescriptorProto::default()
    }
}

fn grow_enum(values: &mut EnumDescriptorProto) {
    values.value.push(EnumValueDescriptorProto {
        name: Some(format!("{}_OF_THE_FUTURE", values.name().to_uppercase())),
        number: Some(VALUE),
        options: None,
    });
}

/// The same message as the next version would say it: with a note in it and in everything it holds.
pub(crate) fn grown(message: &DynamicMessage) -> DynamicMessage {
    let name = message.descriptor().full_name().to_owned();
    let mut grown = crate::frames::decode(next(), &name, &crate::frames::encode(message));
    annotate(&mut grown);
    grown
}

fn annotate(message: &mut DynamicMessage) {
    for (_, value) in message.fields_mut() {
        match value {
            Value::Message(inner) => annotate(inner),
            Value::List(items) => items
                .iter_mut()
                .filter_map(Value::as_message_mut)
                .for_each(annotate),
            _ => {}
        }
    }
    if message.descriptor().get_field_by_name(NOTE).is_some() {
        message.set_field_by_name(NOTE, Value::String("more than you know".to_owned()));
    }
}

#[test]
fn the_next_version_says_more_in_every_message() {
    let hello = next().get_message_by_name("baton.v1.Hello").unwrap();
    assert!(hello.get_field_by_name(NOTE).is_some());
    let frame = next().get_message_by_name("baton.v1.DaemonFrame").unwrap();
    assert!(frame.get_field_by_name(&arm_name("frame")).is_some());
    let kinds = next().get_enum_by_name("baton.v1.AgentKind").unwrap();
    assert!(kinds.get_value(VALUE).is_some());
}
