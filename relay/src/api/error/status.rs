//! Maps every `ApiFault` to its gRPC code, machine code, message and retry advice. Only this module
//! builds an error `Status`.
//!
//! | faults | gRPC code | may the same request be repeated? |
//! |---|---|---|
//! | malformed request (`Invalid`) | INVALID_ARGUMENT | no: it stays malformed |
//! | no or bad credential | UNAUTHENTICATED | no; unknown and wrong are not distinguished |
//! | role, foreign tenant | PERMISSION_DENIED | no |
//! | unknown or foreign id | NOT_FOUND | no; the two are not distinguished |
//! | wrong state | FAILED_PRECONDITION | after the state has changed |
//! | lost race | ABORTED | after reading the state again |
//! | same key, other content | ALREADY_EXISTS | no |
//! | limits (queues, streams, admission) | RESOURCE_EXHAUSTED | yes, later: nothing happened |
//! | no daemon, stopping, overload | UNAVAILABLE | yes, later: nothing happened |
//! | timeout | DEADLINE_EXCEEDED | with the same idempotency key: it may have happened |
//! | not implemented | UNIMPLEMENTED | no |
//! | relay stopped before the reply | UNKNOWN | with the same key: it may have happened |
//! | unreadable record | DATA_LOSS | no |
//!
//! The details are a `google.rpc.Status` with one `baton.v1.ErrorDetail`, which every gRPC library
//! can decode. Internal errors are logged where they happen; their status has no details of the
//! cause.

use baton_core::io::rejection::Rejection;
use baton_proto::codes::refusals;
use baton_proto::v1::ErrorDetail;
use tonic::{Code, Status};

use super::fault::{ApiFault, EntityKind};
use super::hint;
use crate::api::request::validate::InvalidReason;
use crate::auth::AuthFault;
use crate::session::{FrameFault, LinkFault};

/// Wait time advised to a caller that was refused because a limit was reached.
const RETRY_AFTER_MS: u64 = 500;

/// The error as the status of an RPC.
pub(crate) fn status(fault: &ApiFault) -> Status {
    let (code, detail) = code_and_detail(fault);
    let packed = baton_proto::pack_error_detail(code, &detail.message, &detail);
    Status::with_details(code, detail.message, packed)
}

/// The error as a row of a batch or a frame of a stream.
pub(crate) fn detail(fault: &ApiFault) -> ErrorDetail {
    code_and_detail(fault).1
}

/// One row of the registry: gRPC code, machine code, and whether the same request may succeed
/// later.
type StatusRow = (Code, &'static str, RetryAdvice);

#[derive(Clone, Copy)]
enum RetryAdvice {
    Never,
    /// Nothing has happened, and the request may succeed later.
    Later,
    /// As `Later`, once the requests of the last minute no longer count.
    NextMinute,
}

use RetryAdvice::{Later, Never, NextMinute};

fn code_and_detail(fault: &ApiFault) -> (Code, ErrorDetail) {
    let (code, machine, retry) = status_row(fault);
    let (retryable, retry_after_ms) = match retry {
        Never => (false, None),
        Later => (true, Some(RETRY_AFTER_MS)),
        NextMinute => (true, Some(60_000)),
    };
    let detail = ErrorDetail {
        code: machine.to_owned(),
        message: fault.to_string(),
        hint: hint::hint(fault).to_owned(),
        field: faulty_field(fault).to_owned(),
        retryable,
        retry_after_ms,
        missing: missing_files(fault),
        holder: blocking_holder(fault),
    };
    (code, detail)
}

/// Required files that a completion lacks.
fn missing_files(fault: &ApiFault) -> Vec<String> {
    match fault {
        ApiFault::MissingFiles(unmet) => unmet.iter().map(|unmet| unmet.path.clone()).collect(),
        _other => Vec::new(),
    }
}

/// The principal whose earlier action blocks the request.
fn blocking_holder(fault: &ApiFault) -> String {
    if let ApiFault::AnsweredOtherwise { by, .. }
    | ApiFault::TakenBy { by }
    | ApiFault::ResumedBy { by } = fault
    {
        by.clone()
    } else {
        String::new()
    }
}

fn faulty_field(fault: &ApiFault) -> &str {
    match fault {
        ApiFault::Invalid(invalid) => &invalid.field,
        ApiFault::Frame(fault) => fault.field(),
        _other => "",
    }
}

fn status_row(fault: &ApiFault) -> StatusRow {
    use Code::{DataLoss, DeadlineExceeded, FailedPrecondition, Internal, PermissionDenied};
    use Code::{ResourceExhausted, Unavailable, Unimplemented, Unknown};
    match fault {
        ApiFault::Auth(fault) => auth_row(*fault),
        ApiFault::Invalid(invalid) => (Code::InvalidArgument, invalid_code(&invalid.why), Never),
        ApiFault::Refused(rejection) => rejection_row(*rejection),
        ApiFault::MissingFiles(_) => rejection_row(Rejection::ContractUnmet),
        ApiFault::NotFound(thing) => (Code::NotFound, not_found_code(*thing), Never),
        ApiFault::Link(fault) => link_row(fault),
        ApiFault::Frame(fault) => (frame_code(fault), fault.code(), Never),
        ApiFault::ForeignTenant | ApiFault::OneTenantOnly => {
            (PermissionDenied, "foreign_tenant", Never)
        }
        ApiFault::TooManyProfiles { .. } => (ResourceExhausted, "too_many_profiles", Never),
        ApiFault::AnsweredOtherwise { .. } => rejection_row(Rejection::AnswerConflict),
        ApiFault::TakenBy { .. } => rejection_row(Rejection::AlreadyTaken),
        ApiFault::ResumedBy { .. } => rejection_row(Rejection::HandedOff),
        ApiFault::StaleAnswer => (FailedPrecondition, "stale_answer", Never),
        ApiFault::NotImplemented { .. } => (Unimplemented, "unimplemented", Never),
        ApiFault::UnknownRpc => (Unimplemented, "unknown_rpc", Never),
        ApiFault::MessageTooLarge => (ResourceExhausted, "message_too_large", Never),
        ApiFault::Undecodable => (Code::InvalidArgument, "undecodable", Never),
        ApiFault::Overloaded => (Unavailable, "overloaded", Later),
        ApiFault::TooManyStreams { .. } => (ResourceExhausted, "too_many_streams", Later),
        ApiFault::TooManyUpdates => (ResourceExhausted, "too_many_updates", Later),
        ApiFault::DiskFull => (ResourceExhausted, "relay_disk_full", Later),
        ApiFault::Stopping => (Unavailable, "relay_draining", Later),
        ApiFault::TimedOut => (DeadlineExceeded, "timed_out", Never),
        ApiFault::OutcomeUnknown => (Unknown, "outcome_unknown", Never),
        ApiFault::TransferBusy => (ResourceExhausted, "transfer_busy", Later),
        ApiFault::ExportBehind => (ResourceExhausted, "export_fell_behind", Later),
        ApiFault::RelayNotEmpty => (FailedPrecondition, "relay_not_empty", Never),
        ApiFault::InvalidArchive { code, .. } => (Code::InvalidArgument, code, Never),
        ApiFault::ImportFailed { .. } => (Internal, "import_failed", Never),
        ApiFault::Unreadable => (DataLoss, "unreadable_record", Never),
        ApiFault::Internal => (Internal, "internal", Never),
    }
}

fn auth_row(fault: AuthFault) -> StatusRow {
    match fault {
        AuthFault::Unauthenticated => (Code::Unauthenticated, "unauthenticated", Never),
        AuthFault::Forbidden { .. } => (Code::PermissionDenied, "permission_denied", Never),
        AuthFault::CredentialEnded => (Code::Unauthenticated, "credential_ended", Never),
    }
}

fn not_found_code(thing: EntityKind) -> &'static str {
    match thing {
        EntityKind::Task => "unknown_task",
        EntityKind::Attempt => "unknown_attempt",
        EntityKind::Input => "unknown_input",
        EntityKind::Daemon => "unknown_daemon",
        EntityKind::Profile => "unknown_profile",
        EntityKind::Token => "unknown_token",
    }
}

fn invalid_code(why: &InvalidReason) -> &'static str {
    match why {
        InvalidReason::Missing => "missing",
        InvalidReason::Blank => "blank",
        InvalidReason::TooLong { .. } => "too_large",
        InvalidReason::TooMany { .. } => "too_many",
        InvalidReason::OutOfRange { .. } => "out_of_range",
        InvalidReason::MalformedId => "malformed_id",
        InvalidReason::MalformedName { .. } => "malformed_name",
        InvalidReason::BadLabel { .. } => "bad_label",
        InvalidReason::BadPath { .. } => "bad_path",
        InvalidReason::BadDigest => "bad_digest",
        InvalidReason::BadTime => "bad_time",
        InvalidReason::ZeroByte => "zero_byte",
        InvalidReason::UnknownEnumValue { .. } => "unknown_enum_value",
        InvalidReason::Conflict { .. } => "conflicting_fields",
        InvalidReason::Duplicate => "duplicate",
        InvalidReason::NotOffered => "not_offered",
        InvalidReason::OnceOnly => "once_only",
        InvalidReason::BadPageToken => "bad_page_token",
    }
}

fn link_row(fault: &LinkFault) -> StatusRow {
    use Code::{FailedPrecondition, InvalidArgument, PermissionDenied};
    match fault {
        LinkFault::HelloTimeout(_) => (Code::DeadlineExceeded, "hello_timeout", Later),
        LinkFault::HelloNotFirst => (InvalidArgument, "hello_not_first", Never),
        LinkFault::EndedBeforeHello => (InvalidArgument, "ended_before_hello", Never),
        LinkFault::Undecodable => (InvalidArgument, "undecodable", Never),
        LinkFault::BadHello { .. } => (InvalidArgument, "bad_hello", Never),
        LinkFault::Version(_) => (FailedPrecondition, refusals::VERSION_UNSUPPORTED, Never),
        LinkFault::ForeignDaemon => (PermissionDenied, "foreign_daemon", Never),
        LinkFault::Stopping => status_row(&ApiFault::Stopping),
    }
}

fn frame_code(fault: &FrameFault) -> Code {
    match fault {
        FrameFault::UnknownAttempt => Code::NotFound,
        FrameFault::OutputGap => Code::OutOfRange,
        FrameFault::MissingRef
        | FrameFault::MalformedId(_)
        | FrameFault::Blank(_)
        | FrameFault::TooLong { .. }
        | FrameFault::TooMany { .. }
        | FrameFault::DigestMismatch
        | FrameFault::WrongNumber
        | FrameFault::BadCut => Code::InvalidArgument,
    }
}

/// The machine codes of rejections are defined in the core, because frames use them too.
fn rejection_row(rejection: Rejection) -> StatusRow {
    use Code::{Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange};
    use Code::{PermissionDenied, ResourceExhausted, Unavailable};
    let (code, retry) = match rejection {
        Rejection::UnknownTask
        | Rejection::UnknownAttempt
        | Rejection::UnknownInput
        | Rejection::UnknownDaemon
        | Rejection::UnknownTool => (NotFound, Never),
        Rejection::QueueFull(_) | Rejection::TenantQueueFull(_) => (ResourceExhausted, Later),
        Rejection::TooManyTools | Rejection::TooManyInputs | Rejection::TooManyPauses => {
            (ResourceExhausted, Never)
        }
        Rejection::NoDaemon => (Unavailable, Later),
        Rejection::IdempotencyConflict
        | Rejection::AnswerConflict
        | Rejection::DuplicateInput
        | Rejection::DuplicateTool => (AlreadyExists, Never),
        Rejection::AlreadyTaken
        | Rejection::UnknownSession
        | Rejection::StaleAttempt
        | Rejection::StaleIncarnation
        | Rejection::Superseded
        | Rejection::HandedOff => (Aborted, Never),
        Rejection::BadProof => (PermissionDenied, Never),
        Rejection::Unreadable => (Code::DataLoss, Never),
        Rejection::Gap | Rejection::OutputGap => (OutOfRange, Never),
        Rejection::ReasonMissing => (InvalidArgument, Never),
        Rejection::RateLimited => (ResourceExhausted, NextMinute),
        Rejection::AlreadyFinished
        | Rejection::NotFinished
        | Rejection::BeingCanceled
        | Rejection::NotPaused
        | Rejection::NotClaimable
        | Rejection::AmbiguousDaemon
        | Rejection::DaemonConnected
        | Rejection::DaemonHolds
        | Rejection::DispatchLimit
        | Rejection::InputClosed
        | Rejection::NotLeased
        | Rejection::LeaseExpired
        | Rejection::TaskTerminal
        | Rejection::WrongOrder
        | Rejection::BeingEnded
        | Rejection::AlreadyParked
        | Rejection::NotParked
        | Rejection::NotHeld
        | Rejection::NotOpen
        | Rejection::NotBegun
        | Rejection::UnsafeRetry
        | Rejection::ContractUnmet => (FailedPrecondition, Never),
    };
    (code, rejection.as_str(), retry)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
