//! The only place that builds an error `Status`: every `Fault` to its gRPC code, machine code, words and retry advice.
//!
//! | faults | gRPC code | may the same request be repeated? |
//! |---|---|---|
//! | shape (`Invalid`) | INVALID_ARGUMENT | no: it is wrong for ever |
//! | no or bad credential | UNAUTHENTICATED | no; unknown and wrong look alike |
//! | role, foreign tenant | PERMISSION_DENIED | no |
//! | unknown or foreign id | NOT_FOUND | no; the two look alike |
//! | wrong state | FAILED_PRECONDITION | after the state changed |
//! | lost race | ABORTED | after looking again |
//! | same key, other content | ALREADY_EXISTS | no |
//! | bounds (queues, streams, admission) | RESOURCE_EXHAUSTED | yes, later: nothing happened |
//! | no daemon, stopping, overload | UNAVAILABLE | yes, later: nothing happened |
//! | no answer in time | DEADLINE_EXCEEDED | with the same idempotency key: it may have happened |
//! | not built | UNIMPLEMENTED | no |
//! | relay stopped meanwhile | UNKNOWN | with the same idempotency key: it may have happened |
//! | unreadable record | DATA_LOSS | no |
//!
//! Details are a `google.rpc.Status` holding one `baton.v1.ErrorDetail`, which every gRPC library can open. Internal
//! errors are logged where they happen and say nothing here.

use baton_core::reject::Rejection;
use baton_proto::codes::refusals;
use baton_proto::v1::ErrorDetail;
use tonic::{Code, Status};

use super::fault::{Fault, Thing};
use super::hints;
use super::validate::Why;
use crate::auth::AuthFault;
use crate::session::{FrameFault, LinkFault};

/// How long a refused caller should wait where the relay was merely full.
const RETRY_AFTER_MS: u64 = 500;

/// The error as an RPC carries it.
pub(crate) fn status(fault: &Fault) -> Status {
    let (code, detail) = explain(fault);
    let packed = baton_proto::pack_error_detail(code, &detail.message, &detail);
    Status::with_details(code, detail.message, packed)
}

/// The error as rows of a batch and frames of a stream carry it.
pub(crate) fn detail(fault: &Fault) -> ErrorDetail {
    explain(fault).1
}

/// One row of the registry: gRPC code, machine code, and whether the same request may succeed later.
type Row = (Code, &'static str, Retry);

#[derive(Clone, Copy)]
enum Retry {
    Never,
    /// Nothing has happened, and it may work later.
    Later,
    /// The same, when what was asked before is a minute ago.
    NextMinute,
}

use Retry::{Later, Never, NextMinute};

fn explain(fault: &Fault) -> (Code, ErrorDetail) {
    let (code, machine, retry) = row(fault);
    let (retryable, retry_after_ms) = match retry {
        Never => (false, None),
        Later => (true, Some(RETRY_AFTER_MS)),
        NextMinute => (true, Some(60_000)),
    };
    let detail = ErrorDetail {
        code: machine.to_owned(),
        message: fault.to_string(),
        hint: hints::hint(fault).to_owned(),
        field: field(fault).to_owned(),
        retryable,
        retry_after_ms,
        missing: missing(fault),
        holder: holder(fault),
    };
    (code, detail)
}

/// Files that a completion needs and misses.
fn missing(fault: &Fault) -> Vec<String> {
    match fault {
        Fault::Unmet(unmet) => unmet.iter().map(|unmet| unmet.path.clone()).collect(),
        _nothing => Vec::new(),
    }
}

/// Who stands in the way.
fn holder(fault: &Fault) -> String {
    if let Fault::AnsweredOtherwise { by, .. } | Fault::TakenBy { by } | Fault::SentOnBy { by } =
        fault
    {
        by.clone()
    } else {
        String::new()
    }
}

fn field(fault: &Fault) -> &str {
    match fault {
        Fault::Invalid(invalid) => &invalid.field,
        Fault::Frame(fault) => fault.field(),
        _without_a_field => "",
    }
}

fn row(fault: &Fault) -> Row {
    use Code::{DataLoss, DeadlineExceeded, FailedPrecondition, Internal, PermissionDenied};
    use Code::{ResourceExhausted, Unavailable, Unimplemented, Unknown};
    match fault {
        Fault::Auth(fault) => auth_row(*fault),
        Fault::Invalid(invalid) => (Code::InvalidArgument, invalid_code(&invalid.why), Never),
        Fault::Refused(rejection) => rejection_row(*rejection),
        Fault::Unmet(_) => rejection_row(Rejection::ContractUnmet),
        Fault::NotFound(thing) => (Code::NotFound, unknown_code(*thing), Never),
        Fault::Link(fault) => link_row(fault),
        Fault::Frame(fault) => (frame_code(fault), fault.code(), Never),
        Fault::ForeignTenant | Fault::OneTenantOnly => (PermissionDenied, "foreign_tenant", Never),
        Fault::TooManyProfiles { .. } => (ResourceExhausted, "too_many_profiles", Never),
        Fault::AnsweredOtherwise { .. } => rejection_row(Rejection::AnswerConflict),
        Fault::TakenBy { .. } => rejection_row(Rejection::AlreadyTaken),
        Fault::SentOnBy { .. } => rejection_row(Rejection::HandedOff),
        Fault::StaleAnswer => (FailedPrecondition, "stale_answer", Never),
        Fault::NotBuilt { .. } => (Unimplemented, "unimplemented", Never),
        Fault::UnknownRpc => (Unimplemented, "unknown_rpc", Never),
        Fault::MessageTooLarge => (ResourceExhausted, "message_too_large", Never),
        Fault::Undecodable => (Code::InvalidArgument, "undecodable", Never),
        Fault::Overloaded => (Unavailable, "overloaded", Later),
        Fault::TooManyStreams { .. } => (ResourceExhausted, "too_many_streams", Later),
        Fault::TooManyUpdates => (ResourceExhausted, "too_many_updates", Later),
        Fault::DiskFull => (ResourceExhausted, "relay_disk_full", Later),
        Fault::Stopping => (Unavailable, "relay_draining", Later),
        Fault::TimedOut => (DeadlineExceeded, "timed_out", Never),
        Fault::OutcomeUnknown => (Unknown, "outcome_unknown", Never),
        Fault::TransferBusy => (ResourceExhausted, "transfer_busy", Later),
        Fault::ExportBehind => (ResourceExhausted, "export_fell_behind", Later),
        Fault::NotEmpty => (FailedPrecondition, "relay_not_empty", Never),
        Fault::BadExport { code, .. } => (Code::InvalidArgument, code, Never),
        Fault::ImportFailed { .. } => (Internal, "import_failed", Never),
        Fault::Unreadable => (DataLoss, "unreadable_record", Never),
        Fault::Internal => (Internal, "internal", Never),
    }
}

fn auth_row(fault: AuthFault) -> Row {
    match fault {
        AuthFault::Unauthenticated => (Code::Unauthenticated, "unauthenticated", Never),
        AuthFault::Forbidden { .. } => (Code::PermissionDenied, "permission_denied", Never),
        AuthFault::Ended => (Code::Unauthenticated, "credential_ended", Never),
    }
}

fn unknown_code(thing: Thing) -> &'static str {
    match thing {
        Thing::Task => "unknown_task",
        Thing::Attempt => "unknown_attempt",
        Thing::Input => "unknown_input",
        Thing::Daemon => "unknown_daemon",
        Thing::Profile => "unknown_profile",
        Thing::Token => "unknown_token",
    }
}

fn invalid_code(why: &Why) -> &'static str {
    match why {
        Why::Missing => "missing",
        Why::Blank => "blank",
        Why::TooLong { .. } => "too_large",
        Why::TooMany { .. } => "too_many",
        Why::OutOfRange { .. } => "out_of_range",
        Why::MalformedId => "malformed_id",
        Why::MalformedName { .. } => "malformed_name",
        Why::BadLabel { .. } => "bad_label",
        Why::BadPath { .. } => "bad_path",
        Why::BadDigest => "bad_digest",
        Why::BadTime => "bad_time",
        Why::ZeroByte => "zero_byte",
        Why::UnknownEnumValue { .. } => "unknown_enum_value",
        Why::Conflict { .. } => "conflicting_fields",
        Why::Duplicate => "duplicate",
        Why::NotOffered => "not_offered",
        Why::OnceOnly => "once_only",
        Why::BadPageToken => "bad_page_token",
    }
}

fn link_row(fault: &LinkFault) -> Row {
    use Code::{FailedPrecondition, InvalidArgument, PermissionDenied};
    match fault {
        LinkFault::HelloTimeout(_) => (Code::DeadlineExceeded, "hello_timeout", Later),
        LinkFault::HelloNotFirst => (InvalidArgument, "hello_not_first", Never),
        LinkFault::EndedBeforeHello => (InvalidArgument, "ended_before_hello", Never),
        LinkFault::Undecodable => (InvalidArgument, "undecodable", Never),
        LinkFault::BadHello { .. } => (InvalidArgument, "bad_hello", Never),
        LinkFault::Version(_) => (FailedPrecondition, refusals::VERSION_UNSUPPORTED, Never),
        LinkFault::ForeignDaemon => (PermissionDenied, "foreign_daemon", Never),
        LinkFault::Stopping => row(&Fault::Stopping),
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

/// The core's refusals have their machine codes in the core; frames use the same ones.
fn rejection_row(rejection: Rejection) -> Row {
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
