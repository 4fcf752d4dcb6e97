//! What to try next: one line for each fault. Codes and retry advice stand in `status.rs`, what happened in `fault.rs`.

use baton_core::io::rejection::Rejection;

use super::fault::{ApiFault, EntityKind};
use crate::api::request::validate::InvalidReason;
use crate::auth::AuthFault;
use crate::session::{FrameFault, LinkFault};

pub(crate) fn hint(fault: &ApiFault) -> &'static str {
    match fault {
        ApiFault::Auth(fault) => auth_hint(*fault),
        ApiFault::Invalid(invalid) => invalid_field_hint(&invalid.why),
        ApiFault::Refused(rejection) => rejection_hint(*rejection),
        ApiFault::MissingFiles(_) => rejection_hint(Rejection::ContractUnmet),
        ApiFault::NotFound(thing) => not_found_hint(*thing),
        ApiFault::Link(fault) => link_hint(fault),
        ApiFault::Frame(fault) => frame_hint(fault),
        ApiFault::ForeignTenant => "use a credential of that tenant",
        ApiFault::OneTenantOnly => {
            "use a token of all tenants: the relay's own admin.token, or one of `baton token create --role admin --tenant '*'`"
        }
        ApiFault::TooManyProfiles { .. } => "remove one first",
        ApiFault::AnsweredOtherwise { .. } => rejection_hint(Rejection::AnswerConflict),
        ApiFault::TakenBy { .. } => rejection_hint(Rejection::AlreadyTaken),
        ApiFault::ResumedBy { .. } => rejection_hint(Rejection::HandedOff),
        ApiFault::StaleAnswer => "list the open inputs and answer what is shown now",
        ApiFault::NotImplemented { .. } => "leave it out, or use a later version",
        ApiFault::UnknownRpc => "reflection lists the calls there are",
        ApiFault::MessageTooLarge => "send at most 2 MiB; put larger bodies into files",
        ApiFault::Undecodable => "build the message from the published protos; text is UTF-8",
        ApiFault::Overloaded => "repeat the request after a moment, with backoff",
        ApiFault::TooManyStreams { .. } => "close one first",
        ApiFault::TooManyUpdates => {
            "wait for the answers of those, then say it again; one update can hold many items"
        }
        ApiFault::DiskFull => {
            "make room under the relay's data directory (`baton info` shows how much), then repeat the request; what \
             runs goes on"
        }
        ApiFault::Stopping => "connect again when it is back",
        ApiFault::TimedOut | ApiFault::OutcomeUnknown => {
            "look at the task, or repeat the request with the same idempotency key"
        }
        ApiFault::TransferBusy => "wait until it has ended",
        ApiFault::ExportBehind => {
            "export to a local disk, leave the output out, or try when there is less work"
        }
        ApiFault::RelayNotEmpty => "import into a new directory: `baton import FILE --data NEW`",
        ApiFault::InvalidArchive { .. } => "use another copy of the export, or make it again",
        ApiFault::ImportFailed { .. } => {
            "nothing was taken; look into the relay's log, make room, and import again"
        }
        ApiFault::Unreadable => {
            "`baton verify` lists unreadable records; restore a backup if it matters"
        }
        ApiFault::Internal => "look into the relay's log",
    }
}

fn auth_hint(fault: AuthFault) -> &'static str {
    match fault {
        AuthFault::Unauthenticated => {
            "send `authorization: Bearer btn_…`; an administrator makes tokens with `baton token create --role submitter`"
        }
        AuthFault::Forbidden { .. } => {
            "use a token of such a role; `baton info` tells what this one is"
        }
        AuthFault::CredentialEnded => "connect with a valid token",
    }
}

fn not_found_hint(thing: EntityKind) -> &'static str {
    match thing {
        EntityKind::Task => {
            "check the id; `baton tasks` lists the tasks; finished ones are removed by age and size"
        }
        EntityKind::Attempt => "check the id; `baton show TASK` lists its attempts",
        EntityKind::Input => "`baton inbox` lists what is open",
        EntityKind::Daemon => "`baton daemons` lists the daemons",
        EntityKind::Profile => "`baton profile list` lists the profiles",
        EntityKind::Token => "`baton token list` lists the tokens",
    }
}

fn invalid_field_hint(why: &InvalidReason) -> &'static str {
    match why {
        InvalidReason::Missing => "set it",
        InvalidReason::Blank => "say something in it",
        InvalidReason::TooLong { .. } => "shorten it, or put it into a file and name that",
        InvalidReason::TooMany { .. } => "send fewer",
        InvalidReason::OutOfRange { .. } => "choose a value within the range",
        InvalidReason::MalformedId => "ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
        InvalidReason::MalformedName { .. } => "choose another name",
        InvalidReason::BadLabel { .. } => "choose another label",
        InvalidReason::BadPath { .. } => "choose another path",
        InvalidReason::BadDigest => "give 64 lower-case hex digits",
        InvalidReason::BadTime => "give seconds since 1970 and nanoseconds below a billion",
        InvalidReason::ZeroByte => "remove it",
        InvalidReason::UnknownEnumValue { .. } => "use a value that this relay knows",
        InvalidReason::Conflict { .. } => "send one of them",
        InvalidReason::Duplicate => "send it once",
        InvalidReason::NotOffered => "choose among the options of the question",
        InvalidReason::OnceOnly => "allow it once",
        InvalidReason::BadPageToken => "start from the first page",
    }
}

fn link_hint(fault: &LinkFault) -> &'static str {
    match fault {
        LinkFault::HelloTimeout(_) | LinkFault::HelloNotFirst | LinkFault::EndedBeforeHello => {
            "open a stream and send Hello first"
        }
        LinkFault::Undecodable => "build the frame from the published protos",
        LinkFault::BadHello { .. } => "mend the field and connect again",
        LinkFault::Version(_) => "use a daemon of this relay's version",
        LinkFault::ForeignDaemon => "give each daemon a data directory and a token of its own",
        LinkFault::Stopping => "connect again when it is back",
    }
}

fn frame_hint(fault: &FrameFault) -> &'static str {
    match fault {
        FrameFault::UnknownAttempt => "stop it; it is not this daemon's",
        FrameFault::OutputGap => "replay from the last acknowledged byte",
        FrameFault::MissingRef
        | FrameFault::MalformedId(_)
        | FrameFault::Blank(_)
        | FrameFault::TooLong { .. }
        | FrameFault::TooMany { .. }
        | FrameFault::DigestMismatch
        | FrameFault::WrongNumber
        | FrameFault::BadCut => "see PROTOCOL.md for this frame",
    }
}

fn rejection_hint(rejection: Rejection) -> &'static str {
    match rejection {
        Rejection::UnknownTask => not_found_hint(EntityKind::Task),
        Rejection::UnknownAttempt => not_found_hint(EntityKind::Attempt),
        Rejection::UnknownInput => not_found_hint(EntityKind::Input),
        Rejection::UnknownDaemon => not_found_hint(EntityKind::Daemon),
        Rejection::AmbiguousDaemon => "give the daemon's id; `baton daemons` shows it",
        Rejection::UnknownSession => "connect again",
        Rejection::AlreadyFinished | Rejection::NotFinished | Rejection::NotPaused => {
            "look at the task; `baton show TASK`"
        }
        Rejection::NotClaimable => "`baton inspect TASK` says what it waits for",
        Rejection::AlreadyTaken => "leave it to them, and look for other work",
        Rejection::DaemonConnected => "stop the daemon, then forget it",
        Rejection::DaemonHolds => "wait for its leases to end; `baton daemons` shows what it holds",
        Rejection::BeingCanceled => "wait until it has ended",
        Rejection::QueueFull(_) | Rejection::TenantQueueFull(_) => "wait until tasks have ended",
        Rejection::IdempotencyConflict => "use a new key for a new task",
        Rejection::NoDaemon => "start a daemon, or queue the task",
        Rejection::DispatchLimit => "submit it again as a new task",
        Rejection::InputClosed | Rejection::AnswerConflict => "`baton inbox` lists what is open",
        Rejection::StaleAttempt
        | Rejection::StaleIncarnation
        | Rejection::BadProof
        | Rejection::NotLeased
        | Rejection::LeaseExpired
        | Rejection::Superseded
        | Rejection::TaskTerminal => "stop the attempt's processes and forget it",
        Rejection::WrongOrder => "send frames in the order of PROTOCOL.md",
        Rejection::Gap => "replay everything after the last Ack",
        Rejection::TooManyTools => "finish tool calls first",
        Rejection::TooManyInputs => "wait for answers first",
        Rejection::TooManyPauses => {
            "baton pause --scheduler, or unpause tenants that need not wait"
        }
        Rejection::DuplicateInput | Rejection::DuplicateTool => "use a new id",
        Rejection::UnknownTool => "send tool_started first",
        Rejection::OutputGap => "replay from the last acknowledged byte",
        Rejection::ContractUnmet => "make the missing files, then complete again",
        Rejection::BeingEnded => "wait until the attempt has ended",
        Rejection::AlreadyParked | Rejection::HandedOff => {
            "`baton blocked` lists what waits for a person"
        }
        Rejection::NotParked => "look at the task; `baton show TASK`",
        Rejection::ReasonMissing => "say why; whoever looks at the task later reads it",
        Rejection::RateLimited => "wait a minute, or look at why this is repeated",
        Rejection::NotHeld | Rejection::NotOpen | Rejection::NotBegun => {
            "`baton inspect TASK` says how it stands and what can be done"
        }
        Rejection::Unreadable => hint(&ApiFault::Unreadable),
        Rejection::UnsafeRetry => "look at its output first, then retry with allow_unsafe",
    }
}
