//! The hint of each fault: one line that states what to do next. Codes and retry advice are in
//! `status.rs`, messages in `fault.rs`.

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
        ApiFault::ForeignTenant => "use a token of that tenant",
        ApiFault::OneTenantOnly => {
            "use a token for all tenants: the relay's admin.token, or one made with `baton token create --role admin --tenant '*'`"
        }
        ApiFault::TooManyProfiles { .. } => "delete a profile first",
        ApiFault::AnsweredOtherwise { .. } => rejection_hint(Rejection::AnswerConflict),
        ApiFault::TakenBy { .. } => rejection_hint(Rejection::AlreadyTaken),
        ApiFault::ResumedBy { .. } => rejection_hint(Rejection::HandedOff),
        ApiFault::StaleAnswer => "list the open inputs and answer the current one",
        ApiFault::NotImplemented { .. } => "omit it, or use a later version of the relay",
        ApiFault::UnknownRpc => "gRPC reflection lists the available RPCs",
        ApiFault::MessageTooLarge => "send at most 2 MiB; put larger bodies into files",
        ApiFault::Undecodable => "build the message from the published protos; text is UTF-8",
        ApiFault::Overloaded => "repeat the request with backoff",
        ApiFault::TooManyStreams { .. } => "close a stream first",
        ApiFault::TooManyUpdates => {
            "wait for the pending replies, then repeat the update; one update can carry many items"
        }
        ApiFault::DiskFull => {
            "free disk space under the relay's data directory (`baton info` shows how much is needed), then repeat the \
             request; running work continues"
        }
        ApiFault::Stopping => "connect again after the relay has restarted",
        ApiFault::TimedOut | ApiFault::OutcomeUnknown => {
            "check the task, or repeat the request with the same idempotency key"
        }
        ApiFault::TransferBusy => "wait until it has ended, then try again",
        ApiFault::ExportBehind => {
            "export to a local disk, leave out the output, or export while the relay has less work"
        }
        ApiFault::RelayNotEmpty => "import into a new directory: `baton import FILE --data NEW`",
        ApiFault::InvalidArchive { .. } => "use another copy of the export, or export again",
        ApiFault::ImportFailed { .. } => {
            "nothing was imported; see the relay's log, check the free disk space, then import again"
        }
        ApiFault::Unreadable => {
            "`baton verify` lists unreadable records; restore a backup if the record is needed"
        }
        ApiFault::Internal => "see the relay's log",
    }
}

fn auth_hint(fault: AuthFault) -> &'static str {
    match fault {
        AuthFault::Unauthenticated => {
            "send `authorization: Bearer btn_…`; an administrator creates tokens with `baton token create --role submitter`"
        }
        AuthFault::Forbidden { .. } => {
            "use a token with one of these roles; `baton info` shows the role of your token"
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
        EntityKind::Input => "`baton inbox` lists the open inputs",
        EntityKind::Daemon => "`baton daemons` lists the daemons",
        EntityKind::Profile => "`baton profile list` lists the profiles",
        EntityKind::Token => "`baton token list` lists the tokens",
    }
}

fn invalid_field_hint(why: &InvalidReason) -> &'static str {
    match why {
        InvalidReason::Missing => "set it",
        InvalidReason::Blank => "give it a value that is not blank",
        InvalidReason::TooLong { .. } => {
            "shorten it, or put the text into a file and give its path"
        }
        InvalidReason::TooMany { .. } => "send fewer",
        InvalidReason::OutOfRange { .. } => "choose a value within the range",
        InvalidReason::MalformedId => "ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
        InvalidReason::MalformedName { .. } => "choose another name",
        InvalidReason::BadLabel { .. } => "choose another label",
        InvalidReason::BadPath { .. } => "choose another path",
        InvalidReason::BadDigest => "give 64 lower-case hex digits",
        InvalidReason::BadTime => "give seconds since 1970 and nanoseconds below a billion",
        InvalidReason::ZeroByte => "remove it",
        InvalidReason::UnknownEnumValue { .. } => {
            "use a value that this version of the relay supports"
        }
        InvalidReason::Conflict { .. } => "send only one of them",
        InvalidReason::Duplicate => "send it once",
        InvalidReason::NotOffered => "choose one of the options of the question",
        InvalidReason::OnceOnly => "use the scope `once`",
        InvalidReason::BadPageToken => "start from the first page",
    }
}

fn link_hint(fault: &LinkFault) -> &'static str {
    match fault {
        LinkFault::HelloTimeout(_) | LinkFault::HelloNotFirst | LinkFault::EndedBeforeHello => {
            "open a stream and send Hello first"
        }
        LinkFault::Undecodable => "build the frame from the published protos",
        LinkFault::BadHello { .. } => "correct the field and connect again",
        LinkFault::Version(_) => "use a daemon of this relay's version",
        LinkFault::ForeignDaemon => "give each daemon a data directory and a token of its own",
        LinkFault::Stopping => "connect again after the relay has restarted",
    }
}

fn frame_hint(fault: &FrameFault) -> &'static str {
    match fault {
        FrameFault::UnknownAttempt => "stop the attempt; this daemon does not hold it",
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
            "`baton show TASK` shows the state of the task"
        }
        Rejection::NotClaimable => "`baton inspect TASK` shows what it waits for",
        Rejection::AlreadyTaken => "choose another task",
        Rejection::DaemonConnected => "stop the daemon, then forget it",
        Rejection::DaemonHolds => {
            "wait until its leases have expired; `baton daemons` shows its attempts"
        }
        Rejection::BeingCanceled => "wait until the task has ended",
        Rejection::QueueFull(_) | Rejection::TenantQueueFull(_) => "wait until tasks have ended",
        Rejection::IdempotencyConflict => "use a new key for a new task",
        Rejection::NoDaemon => "start a daemon, or queue the task",
        Rejection::DispatchLimit => "submit it again as a new task",
        Rejection::InputClosed | Rejection::AnswerConflict => "`baton inbox` lists the open inputs",
        Rejection::StaleAttempt
        | Rejection::StaleIncarnation
        | Rejection::BadProof
        | Rejection::NotLeased
        | Rejection::LeaseExpired
        | Rejection::Superseded
        | Rejection::TaskTerminal => "stop the attempt's processes and discard the attempt",
        Rejection::WrongOrder => "send frames in the order of PROTOCOL.md",
        Rejection::Gap => "replay everything after the last Ack",
        Rejection::TooManyTools => "finish tool calls first",
        Rejection::TooManyInputs => "wait for answers first",
        Rejection::TooManyPauses => {
            "use `baton pause --scheduler --reason TEXT`, or unpause some tenants"
        }
        Rejection::DuplicateInput | Rejection::DuplicateTool => "use a new id",
        Rejection::UnknownTool => "send tool_started first",
        Rejection::OutputGap => "replay from the last acknowledged byte",
        Rejection::ContractUnmet => "create the missing files, then complete again",
        Rejection::BeingEnded => "wait until the attempt has ended",
        Rejection::AlreadyParked | Rejection::HandedOff => "`baton blocked` lists the parked tasks",
        Rejection::NotParked => "`baton show TASK` shows the state of the task",
        Rejection::ReasonMissing => "give a reason; it is shown in the history of the target",
        Rejection::RateLimited => "wait a minute, and check why the command is repeated",
        Rejection::NotHeld | Rejection::NotOpen | Rejection::NotBegun => {
            "`baton inspect TASK` shows its state and what to do next"
        }
        Rejection::Unreadable => hint(&ApiFault::Unreadable),
        Rejection::UnsafeRetry => "check its output first, then retry with allow_unsafe",
    }
}
