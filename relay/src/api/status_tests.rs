//! Every fault has a machine code of its own that PROTOCOL.md lists, and tells what to do.

use std::collections::BTreeMap;

use super::super::limits::Size;
use super::super::validate::invalid;
use super::*;
use crate::auth::Role;
use baton_core::reject::Full;

const REGISTRY: &str = include_str!("../../../proto/PROTOCOL.md");

const EVERY_REJECTION: [Rejection; 49] = [
    Rejection::ReasonMissing,
    Rejection::RateLimited,
    Rejection::NotHeld,
    Rejection::NotOpen,
    Rejection::NotBegun,
    Rejection::UnsafeRetry,
    Rejection::Unreadable,
    Rejection::DaemonConnected,
    Rejection::DaemonHolds,
    Rejection::UnknownTask,
    Rejection::UnknownAttempt,
    Rejection::UnknownInput,
    Rejection::UnknownDaemon,
    Rejection::AmbiguousDaemon,
    Rejection::UnknownSession,
    Rejection::AlreadyFinished,
    Rejection::NotFinished,
    Rejection::BeingCanceled,
    Rejection::QueueFull(Full::Tasks),
    Rejection::TenantQueueFull(Full::Bytes),
    Rejection::IdempotencyConflict,
    Rejection::NoDaemon,
    Rejection::NotPaused,
    Rejection::NotClaimable,
    Rejection::AlreadyTaken,
    Rejection::DispatchLimit,
    Rejection::InputClosed,
    Rejection::AnswerConflict,
    Rejection::StaleAttempt,
    Rejection::StaleIncarnation,
    Rejection::BadProof,
    Rejection::NotLeased,
    Rejection::LeaseExpired,
    Rejection::Superseded,
    Rejection::TaskTerminal,
    Rejection::WrongOrder,
    Rejection::Gap,
    Rejection::TooManyTools,
    Rejection::TooManyInputs,
    Rejection::TooManyPauses,
    Rejection::DuplicateInput,
    Rejection::DuplicateTool,
    Rejection::UnknownTool,
    Rejection::ContractUnmet,
    Rejection::BeingEnded,
    Rejection::AlreadyParked,
    Rejection::NotParked,
    Rejection::HandedOff,
    Rejection::OutputGap,
];

fn every_shape_fault() -> Vec<Fault> {
    let whys = vec![
        Why::Missing,
        Why::Blank,
        Why::TooLong {
            limit: Size::Bytes(1),
        },
        Why::TooMany { items: 2, limit: 1 },
        Why::OutOfRange {
            value: 3,
            low: 1,
            high: 2,
        },
        Why::MalformedId,
        Why::MalformedName {
            rule: "use letters",
        },
        Why::BadLabel {
            rule: "use letters",
        },
        Why::BadPath {
            rule: "use letters",
        },
        Why::BadDigest,
        Why::BadTime,
        Why::ZeroByte,
        Why::UnknownEnumValue { number: 77 },
        Why::Conflict {
            with: "spec.profile",
        },
        Why::Duplicate,
        Why::NotOffered,
        Why::OnceOnly,
        Why::BadPageToken,
    ];
    whys.into_iter()
        .map(|why| invalid("spec.prompt", why).into())
        .collect()
}

fn every_other_fault() -> Vec<Fault> {
    vec![
        Fault::Auth(AuthFault::Unauthenticated),
        Fault::Auth(AuthFault::Forbidden {
            role: Role::ReadOnly,
            may: &[Role::Admin],
        }),
        Fault::Auth(AuthFault::Ended),
        Fault::NotFound(Thing::Task),
        Fault::NotFound(Thing::Attempt),
        Fault::NotFound(Thing::Input),
        Fault::NotFound(Thing::Daemon),
        Fault::NotFound(Thing::Profile),
        Fault::NotFound(Thing::Token),
        Fault::ForeignTenant,
        Fault::TooManyProfiles { limit: 1 },
        Fault::StaleAnswer,
        Fault::NotBuilt {
            what: "spec.max_output_bytes",
        },
        Fault::OutcomeUnknown,
        Fault::Link(LinkFault::HelloTimeout(10)),
        Fault::Link(LinkFault::HelloNotFirst),
        Fault::Link(LinkFault::EndedBeforeHello),
        Fault::Link(LinkFault::BadHello {
            field: "name",
            what: "is blank",
        }),
        Fault::Link(LinkFault::Version(2)),
        Fault::Link(LinkFault::ForeignDaemon),
        Fault::UnknownRpc,
        Fault::MessageTooLarge,
        Fault::Undecodable,
        Fault::Overloaded,
        Fault::TooManyStreams { limit: 1 },
        Fault::TooManyUpdates,
        Fault::DiskFull,
        Fault::Stopping,
        Fault::TimedOut,
        Fault::TransferBusy,
        Fault::ExportBehind,
        Fault::NotEmpty,
        bad_export("not_an_export"),
        bad_export("newer_export"),
        bad_export("export_cut_short"),
        bad_export("export_altered"),
        bad_export("export_unreadable"),
        Fault::ImportFailed {
            message: "the disk is full".into(),
        },
        Fault::Unreadable,
        Fault::Internal,
    ]
}

fn bad_export(code: &'static str) -> Fault {
    Fault::BadExport {
        code,
        message: "it was cut short".into(),
    }
}

#[test]
fn every_fault_has_a_machine_code_of_its_own_and_tells_what_to_do() {
    let rejections = EVERY_REJECTION.into_iter().map(Fault::from);
    // The others are the same as a fault of the API's own.
    let refused = rejections.filter(|fault| matches!(fault, Fault::Refused(_)));
    let faults = every_shape_fault()
        .into_iter()
        .chain(every_other_fault())
        .chain(refused);
    let mut seen = BTreeMap::new();
    for fault in faults {
        let (code, detail) = explain(&fault);
        assert_ne!(code, Code::Ok);
        assert!(
            !detail.hint.is_empty() && !detail.message.is_empty(),
            "{fault:?}"
        );
        let lower = |b: u8| b.is_ascii_lowercase() || b == b'_';
        assert!(detail.code.bytes().all(lower), "{fault:?}");
        assert!(!detail.message.ends_with('.'), "{fault:?}");
        let registered = REGISTRY.contains(&format!("`{}`", detail.code));
        assert!(registered, "PROTOCOL.md does not list {}", detail.code);
        if let Some(other) = seen.insert(detail.code, fault.clone()) {
            panic!("{fault:?} and {other:?} share a machine code");
        }
    }
}

#[test]
fn whoever_was_slower_is_told_who_answered_when_and_what() {
    let fault = Fault::AnsweredOtherwise {
        by: "bob".into(),
        at: baton_core::time::Wall(1_763_427_600_000),
        decision: baton_core::record::Decision::Denied,
    };
    let (code, detail) = explain(&fault);
    assert_eq!(
        (code, detail.code.as_str()),
        (Code::AlreadyExists, "answer_conflict")
    );
    assert_eq!(detail.holder, "bob");
    let told = "bob has answered it at 2025-11-18T01:00:00Z: denied";
    assert_eq!(detail.message, told);
}

#[test]
fn details_travel_with_the_status() {
    let status = status(&invalid("spec.prompt", Why::Blank).into());
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "spec.prompt is blank")
    );
    let detail = baton_proto::unpack_error_detail(&status).unwrap();
    assert_eq!(
        (detail.code.as_str(), detail.field.as_str()),
        ("blank", "spec.prompt")
    );
    assert!(!detail.retryable);
}

#[test]
fn foreign_and_unknown_look_alike() {
    let (core, edge) = (Rejection::UnknownTask.into(), Fault::NotFound(Thing::Task));
    assert_eq!(detail(&core), detail(&edge));
    assert_eq!(status(&core).details(), status(&edge).details());
}
