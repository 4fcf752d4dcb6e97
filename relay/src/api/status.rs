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
//! | retention | OUT_OF_RANGE | no |
//! | unreadable record | DATA_LOSS | no |
//!
//! Details are a `google.rpc.Status` holding one `baton.v1.ErrorDetail`, which every gRPC library can open. Internal
//! errors are logged where they happen and say nothing here.

use baton_core::reject::Rejection;
use baton_proto::v1::ErrorDetail;
use tonic::{Code, Status};

use super::fault::{Fault, Thing};
use super::validate::Why;
use crate::auth::AuthFault;
use crate::session::{FrameFault, LinkFault};

/// How long a refused caller should wait where the relay was merely full.
const RETRY_AFTER_MS: u64 = 500;

/// The error as an RPC carries it.
pub fn status(fault: &Fault) -> Status {
    let (code, detail) = explain(fault);
    let packed = baton_proto::pack_error_detail(code, &detail.message, &detail);
    Status::with_details(code, detail.message, packed)
}

/// The error as rows of a batch and frames of a stream carry it.
pub fn detail(fault: &Fault) -> ErrorDetail {
    explain(fault).1
}

/// One row of the registry: gRPC code, machine code, what to try next, and whether the same request may succeed later.
type Row = (Code, &'static str, &'static str, Retry);

#[derive(Clone, Copy)]
enum Retry {
    Never,
    /// Nothing has happened, and it may work later.
    Later,
}

use Retry::{Later, Never};

fn explain(fault: &Fault) -> (Code, ErrorDetail) {
    let (code, machine, hint, retry) = row(fault);
    let (retryable, retry_after_ms) = match retry {
        Never => (false, None),
        Later => (true, Some(RETRY_AFTER_MS)),
    };
    let detail = ErrorDetail {
        code: machine.to_owned(),
        message: fault.to_string(),
        hint: hint.to_owned(),
        field: field(fault),
        retryable,
        retry_after_ms,
        missing: Vec::new(),
        holder: String::new(),
    };
    (code, detail)
}

fn field(fault: &Fault) -> String {
    match fault {
        Fault::Invalid(invalid) => invalid.field.clone(),
        Fault::Frame(fault) => fault.field().to_owned(),
        _without_a_field => String::new(),
    }
}

fn row(fault: &Fault) -> Row {
    use Code::{FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable};
    match fault {
        Fault::Auth(fault) => auth_row(*fault),
        Fault::Invalid(invalid) => invalid_row(&invalid.why),
        Fault::Refused(rejection) => rejection_row(*rejection),
        Fault::Link(fault) => link_row(fault),
        Fault::Frame(fault) => frame_row(fault),
        Fault::NotFound(thing) => missing_row(*thing),
        Fault::AmbiguousDaemon => (
            FailedPrecondition,
            "ambiguous_daemon",
            "give the daemon's id",
            Never,
        ),
        Fault::ForeignTenant => (
            PermissionDenied,
            "foreign_tenant",
            "use a credential of that tenant",
            Never,
        ),
        Fault::TooManyProfiles { .. } => (
            ResourceExhausted,
            "too_many_profiles",
            "remove one first",
            Never,
        ),
        Fault::StaleAnswer => (
            FailedPrecondition,
            "stale_answer",
            "list the open inputs and answer what is shown now",
            Never,
        ),
        Fault::NotBuilt { .. } => (
            Code::Unimplemented,
            "unimplemented",
            "leave it out, or use a later version",
            Never,
        ),
        Fault::Busy => (
            ResourceExhausted,
            "busy",
            "repeat the request after a moment",
            Later,
        ),
        Fault::Overloaded => (
            Unavailable,
            "overloaded",
            "repeat the request with backoff",
            Later,
        ),
        Fault::TooManyStreams { .. } => (
            ResourceExhausted,
            "too_many_streams",
            "close one first",
            Later,
        ),
        Fault::Stopping => (
            Unavailable,
            "relay_draining",
            "connect again when it is back",
            Later,
        ),
        Fault::TimedOut => (
            Code::DeadlineExceeded,
            "timed_out",
            "look at the task, or repeat with the same idempotency key",
            Never,
        ),
        Fault::OutputGone => (
            Code::OutOfRange,
            "output_gone",
            "read from a later offset",
            Never,
        ),
        Fault::Unreadable => (
            Code::DataLoss,
            "unreadable_record",
            "`baton verify` lists unreadable records",
            Never,
        ),
        Fault::Internal => (
            Code::Internal,
            "internal",
            "look into the relay's log",
            Never,
        ),
    }
}

fn auth_row(fault: AuthFault) -> Row {
    use Code::{PermissionDenied, Unauthenticated};
    match fault {
        AuthFault::Unauthenticated => (
            Unauthenticated,
            "unauthenticated",
            "send `authorization: Bearer btn_…`; an administrator makes tokens with `baton token create`",
            Never,
        ),
        AuthFault::Forbidden { .. } => (
            PermissionDenied,
            "permission_denied",
            "use a token whose role allows it",
            Never,
        ),
        AuthFault::Ended => (
            Unauthenticated,
            "credential_ended",
            "connect with a valid token",
            Never,
        ),
    }
}

fn link_row(fault: &LinkFault) -> Row {
    use Code::{FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable};
    match fault {
        LinkFault::HelloTimeout(_) => (
            Code::DeadlineExceeded,
            "hello_timeout",
            "send Hello as soon as the stream is open",
            Later,
        ),
        LinkFault::HelloNotFirst => (
            InvalidArgument,
            "hello_not_first",
            "open a new stream and send Hello first",
            Never,
        ),
        LinkFault::EndedBeforeHello => (
            InvalidArgument,
            "ended_before_hello",
            "send a well-formed Hello",
            Never,
        ),
        LinkFault::BadHello { .. } => (InvalidArgument, "bad_hello", "mend that field", Never),
        LinkFault::Version(_) => (
            FailedPrecondition,
            "version_unsupported",
            "use a daemon of this relay's version",
            Never,
        ),
        LinkFault::ForeignDaemon => (
            PermissionDenied,
            "foreign_daemon",
            "give each daemon a data directory and a token of its own",
            Never,
        ),
        LinkFault::Stopping => (
            Unavailable,
            "relay_stopping",
            "connect again when it is back",
            Later,
        ),
    }
}

fn frame_row(fault: &FrameFault) -> Row {
    use Code::{InvalidArgument, NotFound, OutOfRange};
    let (code, hint) = match fault {
        FrameFault::UnknownAttempt => (NotFound, "stop it; it is not this daemon's"),
        FrameFault::OutputGap => (OutOfRange, "replay from the last acknowledged byte"),
        FrameFault::MissingRef
        | FrameFault::MalformedId(_)
        | FrameFault::Blank(_)
        | FrameFault::TooLong { .. }
        | FrameFault::DigestMismatch
        | FrameFault::WrongNumber
        | FrameFault::BadCut => (InvalidArgument, "see PROTOCOL.md for this frame"),
    };
    (code, fault.code(), hint, Never)
}

fn missing_row(thing: Thing) -> Row {
    let (machine, hint) = match thing {
        Thing::Task => ("unknown_task", "`baton tasks` lists the tasks"),
        Thing::Attempt => ("unknown_attempt", "`baton show TASK` lists its attempts"),
        Thing::Input => ("unknown_input", "list the open inputs"),
        Thing::Daemon => ("unknown_daemon", "`baton daemons` lists the daemons"),
        Thing::Profile => ("unknown_profile", "`baton profile list` lists the profiles"),
        Thing::Token => ("unknown_token", "`baton token list` lists the tokens"),
    };
    (Code::NotFound, machine, hint, Never)
}

fn invalid_row(why: &Why) -> Row {
    let (machine, hint) = match why {
        Why::Missing => ("missing", "set it"),
        Why::Blank => ("blank", "say something in it"),
        Why::TooLong { .. } => (
            "too_large",
            "shorten it, or put it into a file and name that",
        ),
        Why::TooMany { .. } => ("too_many", "send fewer"),
        Why::OutOfRange { .. } => ("out_of_range", "choose a value within the range"),
        Why::MalformedId => (
            "malformed_id",
            "ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
        ),
        Why::MalformedName { .. } => ("malformed_name", "choose another name"),
        Why::BadLabel { .. } => ("bad_label", "choose another label"),
        Why::BadPath { .. } => ("bad_path", "choose another path"),
        Why::BadDigest => ("bad_digest", "give 64 lower-case hex digits"),
        Why::BadTime => (
            "bad_time",
            "give seconds since 1970 and nanoseconds below a billion",
        ),
        Why::ZeroByte => ("zero_byte", "remove it"),
        Why::UnknownEnumValue { .. } => ("unknown_enum_value", "use a value that this relay knows"),
        Why::Conflict { .. } => ("conflicting_fields", "send one of them"),
        Why::Needs { .. } => ("incomplete_fields", "send both or none"),
        Why::Duplicate => ("duplicate", "send it once"),
        Why::BadPageToken => ("bad_page_token", "start from the first page"),
    };
    (Code::InvalidArgument, machine, hint, Never)
}

/// The core's refusals: those of requests, and those that only holders of a lease are told in frames.
fn rejection_row(rejection: Rejection) -> Row {
    let (code, hint, retry) = advice(rejection);
    (code, rejection.as_str(), hint, retry)
}

fn advice(rejection: Rejection) -> (Code, &'static str, Retry) {
    use Code::{
        Aborted, AlreadyExists, FailedPrecondition, NotFound, OutOfRange, PermissionDenied,
    };
    use Code::{ResourceExhausted, Unavailable, Unimplemented};
    match rejection {
        Rejection::UnknownTask => (NotFound, "`baton tasks` lists the tasks", Never),
        Rejection::UnknownAttempt => (NotFound, "`baton show TASK` lists its attempts", Never),
        Rejection::UnknownInput => (NotFound, "list the open inputs", Never),
        Rejection::UnknownDaemon => (NotFound, "`baton daemons` lists the daemons", Never),
        Rejection::UnknownSession => (Aborted, "connect again", Never),
        Rejection::AlreadyFinished => (FailedPrecondition, "look at the task", Never),
        Rejection::NotFinished => (FailedPrecondition, "look at the task", Never),
        Rejection::BeingCanceled => (FailedPrecondition, "wait for its end", Never),
        Rejection::QueueFull => (ResourceExhausted, "wait until tasks have ended", Later),
        Rejection::TenantQueueFull => (ResourceExhausted, "wait until tasks have ended", Later),
        Rejection::IdempotencyConflict => (AlreadyExists, "use a new key", Never),
        Rejection::NoDaemon => (Unavailable, "start a daemon, or queue the task", Later),
        Rejection::NotPaused => (FailedPrecondition, "look at the task", Never),
        Rejection::DispatchLimit => (FailedPrecondition, "submit a new task", Never),
        Rejection::InputClosed => (FailedPrecondition, "list the open inputs", Never),
        Rejection::AnswerConflict => (AlreadyExists, "look at the input", Never),
        Rejection::StaleAttempt => (Aborted, "stop the attempt", Never),
        Rejection::StaleIncarnation => (Aborted, "stop the attempt", Never),
        Rejection::BadProof => (PermissionDenied, "stop the attempt", Never),
        Rejection::NotLeased => (FailedPrecondition, "stop the attempt", Never),
        Rejection::LeaseExpired => (FailedPrecondition, "stop the attempt", Never),
        Rejection::Superseded => (Aborted, "stop the attempt", Never),
        Rejection::TaskTerminal => (FailedPrecondition, "stop the attempt", Never),
        Rejection::WrongOrder => (FailedPrecondition, "see PROTOCOL.md for the order", Never),
        Rejection::Gap => (OutOfRange, "replay everything after the last Ack", Never),
        Rejection::TooManyTools => (ResourceExhausted, "finish tool calls first", Never),
        Rejection::TooManyInputs => (ResourceExhausted, "wait for answers first", Never),
        Rejection::DuplicateInput => (AlreadyExists, "use a new input id", Never),
        Rejection::DuplicateTool => (AlreadyExists, "use a new tool call id", Never),
        Rejection::UnknownTool => (NotFound, "send tool_started first", Never),
        Rejection::ContractUnmet => (
            FailedPrecondition,
            "make the files, then complete again",
            Never,
        ),
        Rejection::Unimplemented => (Unimplemented, "use a later version", Never),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::limits::Size;
    use super::super::validate::invalid;
    use super::*;
    use crate::auth::Role;

    const EVERY_REJECTION: [Rejection; 32] = [
        Rejection::UnknownTask,
        Rejection::UnknownAttempt,
        Rejection::UnknownInput,
        Rejection::UnknownDaemon,
        Rejection::UnknownSession,
        Rejection::AlreadyFinished,
        Rejection::NotFinished,
        Rejection::BeingCanceled,
        Rejection::QueueFull,
        Rejection::TenantQueueFull,
        Rejection::IdempotencyConflict,
        Rejection::NoDaemon,
        Rejection::NotPaused,
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
        Rejection::DuplicateInput,
        Rejection::DuplicateTool,
        Rejection::UnknownTool,
        Rejection::ContractUnmet,
        Rejection::Unimplemented,
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
            Why::Needs {
                other: "spec.agent_scope",
            },
            Why::Duplicate,
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
            }),
            Fault::Auth(AuthFault::Ended),
            Fault::NotFound(Thing::Task),
            Fault::NotFound(Thing::Attempt),
            Fault::NotFound(Thing::Input),
            Fault::NotFound(Thing::Daemon),
            Fault::NotFound(Thing::Profile),
            Fault::NotFound(Thing::Token),
            Fault::AmbiguousDaemon,
            Fault::ForeignTenant,
            Fault::TooManyProfiles { limit: 1 },
            Fault::StaleAnswer,
            Fault::NotBuilt { what: "spec.mcp" },
            Fault::Busy,
            Fault::Overloaded,
            Fault::TooManyStreams { limit: 1 },
            Fault::Stopping,
            Fault::TimedOut,
            Fault::OutputGone,
            Fault::Unreadable,
            Fault::Internal,
        ]
    }

    #[test]
    fn every_fault_has_a_machine_code_of_its_own_and_tells_what_to_do() {
        let rejections = EVERY_REJECTION.into_iter().map(Fault::from);
        // An unbuilt RPC and a frame that is not built are one fault with one code.
        let refused = rejections.filter(|fault| match fault {
            Fault::Refused(rejection) => *rejection != Rejection::Unimplemented,
            _same_as_an_api_fault => false,
        });
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
            if let Some(other) = seen.insert(detail.code, fault.clone()) {
                panic!("{fault:?} and {other:?} share a machine code");
            }
        }
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
}
