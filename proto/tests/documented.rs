//! The protocol is fully documented: every item has a comment, and PROTOCOL.md mentions every
//! name and code.

use std::collections::BTreeSet;

use baton_proto::v1::{
    AttemptState, FenceCode, GoodbyeCode, LifecyclePhase, RejectCode, TaskState, TimerKind,
    TurnKind,
};
use baton_proto::{FILE_DESCRIPTOR_SET, ShortName};
use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const PROTOCOL: &str = include_str!("../PROTOCOL.md");

fn own_files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)
        .expect("the build script wrote a valid descriptor set");
    set.file
        .into_iter()
        .filter(|file| file.package() == "baton.v1")
        .collect()
}

/// Every (path in the file, readable name) that needs a leading comment.
fn documented_items(file: &FileDescriptorProto) -> Vec<(Vec<i32>, String)> {
    let mut items = Vec::new();
    for (index, service) in (0..).zip(&file.service) {
        items.push((vec![6, index], service.name().to_owned()));
        let methods = (0..).zip(&service.method);
        items.extend(methods.map(|(m, method)| {
            (
                vec![6, index, 2, m],
                format!("{}.{}", service.name(), method.name()),
            )
        }));
    }
    for (index, message) in (0..).zip(&file.message_type) {
        message_items(&[4, index], message, &mut items);
    }
    for (index, values) in (0..).zip(&file.enum_type) {
        enum_items(&[5, index], values, &mut items);
    }
    items
}

fn message_items(path: &[i32], message: &DescriptorProto, items: &mut Vec<(Vec<i32>, String)>) {
    items.push((path.to_vec(), message.name().to_owned()));
    for (index, field) in (0..).zip(&message.field) {
        items.push((
            [path, &[2, index]].concat(),
            format!("{}.{}", message.name(), field.name()),
        ));
    }
}

fn enum_items(path: &[i32], values: &EnumDescriptorProto, items: &mut Vec<(Vec<i32>, String)>) {
    items.push((path.to_vec(), values.name().to_owned()));
    for (index, value) in (0..).zip(&values.value) {
        items.push(([path, &[2, index]].concat(), value.name().to_owned()));
    }
}

#[test]
fn every_service_rpc_message_field_and_enum_value_has_a_comment() {
    let mut seen = 0;
    for file in own_files() {
        let info = file
            .source_code_info
            .as_ref()
            .expect("the descriptor set contains comments for reflection");
        let with_comment = info
            .location
            .iter()
            .filter(|at| !at.leading_comments().trim().is_empty());
        let commented: BTreeSet<&[i32]> = with_comment.map(|at| at.path.as_slice()).collect();
        let items = documented_items(&file);
        seen += items.len();
        let undocumented: Vec<&String> = items
            .iter()
            .filter(|(path, _)| !commented.contains(path.as_slice()))
            .map(|(_, name)| name)
            .collect();
        assert!(
            undocumented.is_empty(),
            "without a comment in {}: {undocumented:?}",
            file.name()
        );
    }
    assert!(seen > 900, "only {seen} items were checked");
}

#[test]
fn every_enum_begins_unspecified_and_no_rpc_is_called_connect() {
    for file in own_files() {
        for values in &file.enum_type {
            assert!(
                values.value[0].name().ends_with("_UNSPECIFIED"),
                "{}",
                values.name()
            );
            assert_eq!(values.value[0].number(), 0);
        }
        let mut methods = file.service.iter().flat_map(|service| &service.method);
        assert!(methods.all(|method| method.name() != "Connect"));
    }
}

#[test]
fn each_rpc_has_a_request_and_response_of_its_own() {
    let files = own_files();
    let services = files.iter().flat_map(|file| &file.service);
    let methods: Vec<_> = services.flat_map(|service| &service.method).collect();
    let types = methods
        .iter()
        .flat_map(|method| [method.input_type(), method.output_type()]);
    assert_eq!(types.collect::<BTreeSet<_>>().len(), 2 * methods.len());
}

#[test]
fn protocol_document_names_every_state_phase_timer_and_code() {
    let failure_codes = include_str!("../src/codes.rs")
        .lines()
        .filter_map(|line| line.split('"').nth(1));
    let words = TaskState::short_names()
        .chain(AttemptState::short_names())
        .chain(LifecyclePhase::short_names())
        .chain(TimerKind::short_names())
        .chain(TurnKind::short_names())
        .chain(RejectCode::short_names())
        .chain(FenceCode::short_names())
        .chain(GoodbyeCode::short_names())
        .chain(failure_codes);
    let missing: BTreeSet<&str> = words
        .filter(|word| !PROTOCOL.contains(&format!("`{word}`")))
        .collect();
    assert!(missing.is_empty(), "not in PROTOCOL.md: {missing:?}");
}

#[test]
fn protocol_document_names_every_rpc_and_frame() {
    let files = own_files();
    let methods = files
        .iter()
        .flat_map(|file| &file.service)
        .flat_map(|service| &service.method);
    let methods = methods.map(|method| method.name().to_owned());
    let carriers = [
        "DaemonFrame",
        "RelayFrame",
        "AttemptFrame",
        "AttemptCommand",
    ];
    let messages = files.iter().flat_map(|file| &file.message_type);
    let frames = messages.filter(|message| carriers.contains(&message.name()));
    let arms = frames.flat_map(|frame| {
        frame
            .field
            .iter()
            .filter(|field| field.oneof_index.is_some())
    });
    let arms = arms.filter_map(|field| field.type_name().rsplit('.').next().map(str::to_owned));
    let missing: BTreeSet<String> = methods
        .chain(arms)
        .filter(|name| !PROTOCOL.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in PROTOCOL.md: {missing:?}");
}
