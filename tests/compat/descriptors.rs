//! Within a protocol version, changes only add. Every item of a release must still exist with
//! the same number, type and name.

use std::fmt::Write as _;

use prost_reflect::{
    DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, ServiceDescriptor,
};

use crate::releases::{current_protocol, descriptor_pool, releases};

/// Items of `then` that `now` removed or changed, one sentence each.
fn breaking_changes(then: &DescriptorPool, now: &DescriptorPool) -> Vec<String> {
    let mut found = Vec::new();
    for message in then.all_messages().filter(|one| is_ours(one.full_name())) {
        match now.get_message_by_name(message.full_name()) {
            Some(same) => compare_messages(&message, &same, &mut found),
            None => found.push(format!("message {} was removed", message.full_name())),
        }
    }
    for values in then.all_enums().filter(|one| is_ours(one.full_name())) {
        match now.get_enum_by_name(values.full_name()) {
            Some(same) => compare_enums(&values, &same, &mut found),
            None => found.push(format!("enum {} was removed", values.full_name())),
        }
    }
    for service in then.services().filter(|one| is_ours(one.full_name())) {
        match now.get_service_by_name(service.full_name()) {
            Some(same) => compare_services(&service, &same, &mut found),
            None => found.push(format!("service {} was removed", service.full_name())),
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    name.starts_with("baton.")
}

fn compare_messages(then: &MessageDescriptor, now: &MessageDescriptor, found: &mut Vec<String>) {
    for field in then.fields() {
        let was = field_shape(&field);
        match now.get_field(field.number()).map(|same| field_shape(&same)) {
            Some(is) if is == was => {}
            Some(is) => found.push(format!("{}: {was} became {is}", then.full_name())),
            None => found.push(format!("{}: {was} was removed", then.full_name())),
        }
    }
    for field in now.fields() {
        let is_new = then.get_field(field.number()).is_none();
        let number = then
            .reserved_ranges()
            .any(|range| range.contains(&field.number()));
        let name = then.reserved_names().any(|name| name == field.name());
        // A reserved field may only be used again with its reserved name and number together.
        if is_new && number != name {
            let is = field_shape(&field);
            found.push(format!(
                "{}: {is} uses a reserved name or number",
                then.full_name()
            ));
        }
    }
}

/// All properties of a field that a peer relies on.
fn field_shape(field: &FieldDescriptor) -> String {
    let mut shape = String::new();
    let oneof = field.containing_oneof();
    if field.is_map() {
        shape.push_str("map ");
    } else if field.is_list() {
        shape.push_str("repeated ");
    } else if let Some(oneof) = &oneof {
        // proto3's `optional` is a oneof with one field.
        let _ = write!(shape, "{} ", oneof.name());
    }
    let kind = match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(values) => values.full_name().to_owned(),
        scalar => format!("{scalar:?}"),
    };
    let _ = write!(shape, "{kind} {} = {}", field.name(), field.number());
    shape
}

fn compare_enums(then: &EnumDescriptor, now: &EnumDescriptor, found: &mut Vec<String>) {
    for value in then.values() {
        let same = now.get_value(value.number());
        if same.as_ref().map(|same| same.name().to_owned()) != Some(value.name().to_owned()) {
            let is = same.map_or_else(|| "removed".to_owned(), |same| same.name().to_owned());
            found.push(format!(
                "{} = {} is {is}",
                value.full_name(),
                value.number()
            ));
        }
    }
}

fn compare_services(then: &ServiceDescriptor, now: &ServiceDescriptor, found: &mut Vec<String>) {
    for method in then.methods() {
        let same = now.methods().find(|same| same.name() == method.name());
        let signature = |one: &prost_reflect::MethodDescriptor| {
            (
                one.input().full_name().to_owned(),
                one.is_client_streaming(),
                one.output().full_name().to_owned(),
                one.is_server_streaming(),
            )
        };
        if same.as_ref().map(signature) != Some(signature(&method)) {
            found.push(format!("rpc {} was removed or changed", method.full_name()));
        }
    }
}

#[test]
fn no_release_item_changed_number_type_or_name() {
    let now = descriptor_pool(current_protocol().clone());
    for release in releases() {
        let found = breaking_changes(&release.pool, &now);
        assert!(
            found.is_empty(),
            "the protocol no longer works with peers of release {}: {found:#?}",
            release.name
        );
    }
}

/// Changes that would break peers, each with the expected message.
mod mistakes {
    use prost_types::field_descriptor_proto::Type;
    use prost_types::{FieldDescriptorProto, FileDescriptorSet};

    type DescriptorChange = fn(&mut FileDescriptorSet);

    pub(super) const ALL_CHANGES: [(&str, DescriptorChange, &str); 7] = [
        ("a removed field", remove_field, "slots = 9 was removed"),
        (
            "another number",
            |files| edit_field(files, |it| it.number = Some(99)),
            "slots = 9 was removed",
        ),
        (
            "another type",
            |files| edit_field(files, |it| it.r#type = Some(Type::Sint32.into())),
            "became",
        ),
        (
            "another name",
            |files| edit_field(files, |it| rename_field(it, "places")),
            "became",
        ),
        (
            "a reserved number for something else",
            reuse_field_number,
            "uses a reserved name or number",
        ),
        (
            "a renamed enum value",
            rename_value,
            "AGENT_KIND_COMMAND = 1 is AGENT_KIND_PROGRAM",
        ),
        ("a removed rpc", remove_rpc, "Tasks.Cancel was removed"),
    ];

    fn hello_fields(files: &mut FileDescriptorSet) -> &mut Vec<FieldDescriptorProto> {
        let mut messages = files
            .file
            .iter_mut()
            .flat_map(|file| &mut file.message_type);
        let hello = messages.find(|message| message.name() == "Hello");
        &mut hello.expect("a message of the protocol").field
    }

    fn remove_field(files: &mut FileDescriptorSet) {
        hello_fields(files).retain(|field| field.name() != "slots");
    }

    fn edit_field(files: &mut FileDescriptorSet, change: fn(&mut FieldDescriptorProto)) {
        let slots = hello_fields(files)
            .iter_mut()
            .filter(|field| field.name() == "slots");
        slots.for_each(change);
    }

    fn rename_field(field: &mut FieldDescriptorProto, name: &str) {
        field.name = Some(name.to_owned());
        field.json_name = None;
    }

    fn reuse_field_number(files: &mut FileDescriptorSet) {
        let mut reused = hello_fields(files)[0].clone();
        rename_field(&mut reused, "other");
        reused.number = Some(15);
        let messages = files
            .file
            .iter_mut()
            .flat_map(|file| &mut file.message_type);
        for message in messages.filter(|message| message.name() == "Welcome") {
            message.reserved_range.clear();
            message.field.push(reused.clone());
        }
    }

    fn rename_value(files: &mut FileDescriptorSet) {
        let enums = files.file.iter_mut().flat_map(|file| &mut file.enum_type);
        for one in enums.filter(|one| one.name() == "AgentKind") {
            one.value[1].name = Some("AGENT_KIND_PROGRAM".to_owned());
        }
    }

    fn remove_rpc(files: &mut FileDescriptorSet) {
        let services = files.file.iter_mut().flat_map(|file| &mut file.service);
        for one in services.filter(|one| one.name() == "Tasks") {
            one.method.retain(|method| method.name() != "Cancel");
        }
    }
}

#[test]
fn the_comparison_finds_only_breaking_changes() {
    let then = descriptor_pool(current_protocol().clone());
    for (what, change, expected) in mistakes::ALL_CHANGES {
        let mut files = current_protocol().clone();
        change(&mut files);
        let found = breaking_changes(&then, &descriptor_pool(files));
        assert!(
            found.iter().any(|line| line.contains(expected)),
            "{what}: {found:#?}"
        );
    }
    let added = breaking_changes(&then, crate::next_version::next_version_pool());
    assert!(added.is_empty(), "additions are compatible: {added:#?}");
}
