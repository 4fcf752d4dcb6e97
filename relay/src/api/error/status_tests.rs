//! Every fault has its own machine code, listed in PROTOCOL.md, and a hint.

use std::collections::BTreeMap;

use super::*;
use crate::api::request::limits::TextLimit;
use crate::api::request::validate::invalid_field;
use crate::auth::Role;
use baton_core::io::rejection::ExceededBound;

const REGISTRY: &str = include_str!("../../../../proto/PROTOCOL.md");

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
    Rejection::QueueFull(ExceededBound::Tasks),
    Rejection::TenantQueueFull(ExceededBound::Bytes),
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

fn every_shape_fault() -> Vec<ApiFault> {
    let whys = vec![
        InvalidReason::Missing,
        InvalidReason::Blank,
        InvalidReason::TooLong {
            limit: TextLimit::Bytes(1),
        },
        InvalidReason::TooMany { items: 2, limit: 1 },
        InvalidReason::OutOfRange {
            value: 3,
            low: 1,
            high: 2,
        },
        InvalidReason::MalformedId,
        InvalidReason::MalformedName {
            rule: "use letters",
        },
        InvalidReason::BadLabel {
            rule: "use letters",
        },
        InvalidReason::BadPath {
            rule: "use letters",
        },
        InvalidReason::BadDigest,
        InvalidReason::BadTime,
        InvalidReason::ZeroByte,
        InvalidReason::UnknownEnumValue { number: 77 },
        InvalidReason::Conflict {
            with: "spec.profile",
        },
        InvalidReason::Duplicate,
        InvalidReason::NotOffered,
        InvalidReason::OnceOnly,
        InvalidReason::BadPageToken,
    ];
    whys.into_iter()
        .map(|why| invalid_field("spec.prompt", why).into())
        .collect()
}

fn every_other_fault() -> Vec<ApiFault> {
    vec![
        ApiFault::Auth(AuthFault::Unauthenticated),
        ApiFault::Auth(AuthFault::Forbidden {
            role: Role::ReadOnly,
            may: &[Role::Admin],
        }),
        ApiFault::Auth(AuthFault::CredentialEnded),
        ApiFault::NotFound(EntityKind::Task),
        ApiFault::NotFound(EntityKind::Attempt),
        ApiFault::NotFound(EntityKind::Input),
        ApiFault::NotFound(EntityKind::Daemon),
        ApiFault::NotFound(EntityKind::Profile),
        ApiFault::NotFound(EntityKind::Token),
        ApiFault::ForeignTenant,
        ApiFault::TooManyProfiles { limit: 1 },
        ApiFault::StaleAnswer,
        ApiFault::NotImplemented {
            what: "spec.max_output_bytes",
        },
        ApiFault::OutcomeUnknown,
        ApiFault::Link(LinkFault::HelloTimeout(10)),
        ApiFault::Link(LinkFault::HelloNotFirst),
        ApiFault::Link(LinkFault::EndedBeforeHello),
        ApiFault::Link(LinkFault::BadHello {
            field: "name",
            what: "is blank",
        }),
        ApiFault::Link(LinkFault::Version(2)),
        ApiFault::Link(LinkFault::ForeignDaemon),
        ApiFault::UnknownRpc,
        ApiFault::MessageTooLarge,
        ApiFault::Undecodable,
        ApiFault::Overloaded,
        ApiFault::TooManyStreams { limit: 1 },
        ApiFault::TooManyUpdates,
        ApiFault::DiskFull,
        ApiFault::Stopping,
        ApiFault::TimedOut,
        ApiFault::TransferBusy,
        ApiFault::ExportBehind,
        ApiFault::RelayNotEmpty,
        bad_export("not_an_export"),
        bad_export("newer_export"),
        bad_export("export_cut_short"),
        bad_export("export_altered"),
        bad_export("export_unreadable"),
        ApiFault::ImportFailed {
            message: "the disk is full".into(),
        },
        ApiFault::Unreadable,
        ApiFault::Internal,
    ]
}

fn bad_export(code: &'static str) -> ApiFault {
    ApiFault::InvalidArchive {
        code,
        message: "it was cut short".into(),
    }
}

#[test]
fn every_fault_has_its_own_machine_code_and_a_hint() {
    let rejections = EVERY_REJECTION.into_iter().map(ApiFault::from);
    // The other rejections map to faults of `every_other_fault`.
    let refused = rejections.filter(|fault| matches!(fault, ApiFault::Refused(_)));
    let faults = every_shape_fault()
        .into_iter()
        .chain(every_other_fault())
        .chain(refused);
    let mut seen = BTreeMap::new();
    for fault in faults {
        let (code, detail) = code_and_detail(&fault);
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
fn an_answer_conflict_names_the_earlier_answerer_time_and_decision() {
    let fault = ApiFault::AnsweredOtherwise {
        by: "bob".into(),
        at: baton_core::time::WallTime(1_763_427_600_000),
        decision: baton_core::record::InputDecision::Denied,
    };
    let (code, detail) = code_and_detail(&fault);
    assert_eq!(
        (code, detail.code.as_str()),
        (Code::AlreadyExists, "answer_conflict")
    );
    assert_eq!(detail.holder, "bob");
    let message = "already answered by bob at 2025-11-18T01:00:00Z: denied";
    assert_eq!(detail.message, message);
}

#[test]
fn a_status_contains_the_error_detail() {
    let status = status(&invalid_field("spec.prompt", InvalidReason::Blank).into());
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
fn foreign_and_unknown_ids_get_the_same_error() {
    let (core, edge) = (
        Rejection::UnknownTask.into(),
        ApiFault::NotFound(EntityKind::Task),
    );
    assert_eq!(detail(&core), detail(&edge));
    assert_eq!(status(&core).details(), status(&edge).details());
}
