//! What to try next: one line for each fault. Codes and retry advice stand in `status.rs`, what happened in `fault.rs`.

use baton_core::reject::Rejection;

use super::fault::{Fault, Thing};
use super::validate::Why;
use crate::auth::AuthFault;
use crate::session::{FrameFault, LinkFault};

pub(super) fn hint(fault: &Fault) -> &'static str {
    match fault {
        Fault::Auth(fault) => auth(*fault),
        Fault::Invalid(invalid) => shape(&invalid.why),
        Fault::Refused(rejection) => refusal(*rejection),
        Fault::Unmet(_) => refusal(Rejection::ContractUnmet),
        Fault::NotFound(thing) => missing(*thing),
        Fault::Link(fault) => link(fault),
        Fault::Frame(fault) => frame(fault),
        Fault::ForeignTenant => "use a credential of that tenant",
        Fault::OneTenantOnly => {
            "use a token of all tenants: the relay's own admin.token, or one of `baton token create --role admin --tenant '*'`"
        }
        Fault::TooManyProfiles { .. } => "remove one first",
        Fault::AnsweredOtherwise { .. } => refusal(Rejection::AnswerConflict),
        Fault::TakenBy { .. } => refusal(Rejection::AlreadyTaken),
        Fault::SentOnBy { .. } => refusal(Rejection::HandedOff),
        Fault::StaleAnswer => "list the open inputs and answer what is shown now",
        Fault::NotBuilt { .. } => "leave it out, or use a later version",
        Fault::UnknownRpc => "reflection lists the calls there are",
        Fault::MessageTooLarge => "send at most 2 MiB; put larger bodies into files",
        Fault::Undecodable => "build the message from the published protos; text is UTF-8",
        Fault::Overloaded => "repeat the request after a moment, with backoff",
        Fault::TooManyStreams { .. } => "close one first",
        Fault::TooManyUpdates => {
            "wait for the answers of those, then say it again; one update can hold many items"
        }
        Fault::DiskFull => {
            "make room under the relay's data directory (`baton info` shows how much), then repeat the request; what \
             runs goes on"
        }
        Fault::Stopping => "connect again when it is back",
        Fault::TimedOut | Fault::OutcomeUnknown => {
            "look at the task, or repeat the request with the same idempotency key"
        }
        Fault::TransferBusy => "wait until it has ended",
        Fault::ExportBehind => {
            "export to a local disk, leave the output out, or try when there is less work"
        }
        Fault::NotEmpty => "import into a new directory: `baton import FILE --data NEW`",
        Fault::BadExport { .. } => "use another copy of the export, or make it again",
        Fault::ImportFailed { .. } => {
            "nothing was taken; look into the relay's log, make room, and import again"
        }
        Fault::Unreadable => {
            "`baton verify` lists unreadable records; restore a backup if it matters"
        }
        Fault::Internal => "look into the relay's log",
    }
}

fn auth(fault: AuthFault) -> &'static str {
    match fault {
        AuthFault::Unauthenticated => {
            "send `authorization: Bearer btn_…`; an administrator makes tokens with `baton token create --role submitter`"
        }
        AuthFault::Forbidden { .. } => {
            "use a token of such a role; `baton info` tells what this one is"
        }
        AuthFault::Ended => "connect with a valid token",
    }
}

fn missing(thing: Thing) -> &'static str {
    match thing {
        Thing::Task => {
            "check the id; `baton tasks` lists the tasks; finished ones are removed by age and size"
        }
        Thing::Attempt => "check the id; `baton show TASK` lists its attempts",
        Thing::Input => "`baton inbox` lists what is open",
        Thing::Daemon => "`baton daemons` lists the daemons",
        Thing::Profile => "`baton profile list` lists the profiles",
        Thing::Token => "`baton token list` lists the tokens",
    }
}

fn shape(why: &Why) -> &'static str {
    match why {
        Why::Missing => "set it",
        Why::Blank => "say something in it",
        Why::TooLong { .. } => "shorten it, or put it into a file and name that",
        Why::TooMany { .. } => "send fewer",
        Why::OutOfRange { .. } => "choose a value within the range",
        Why::MalformedId => "ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
        Why::MalformedName { .. } => "choose another name",
        Why::BadLabel { .. } => "choose another label",
        Why::BadPath { .. } => "choose another path",
        Why::BadDigest => "give 64 lower-case hex digits",
        Why::BadTime => "give seconds since 1970 and nanoseconds below a billion",
        Why::ZeroByte => "remove it",
        Why::UnknownEnumValue { .. } => "use a value that this relay knows",
        Why::Conflict { .. } => "send one of them",
        Why::Duplicate => "send it once",
        Why::NotOffered => "choose among the options of the question",
        Why::OnceOnly => "allow it once",
        Why::BadPageToken => "start from the first page",
    }
}

fn link(fault: &LinkFault) -> &'static str {
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

fn frame(fault: &FrameFault) -> &'static str {
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

fn refusal(rejection: Rejection) -> &'static str {
    match rejection {
        Rejection::UnknownTask => missing(Thing::Task),
        Rejection::UnknownAttempt => missing(Thing::Attempt),
        Rejection::UnknownInput => missing(Thing::Input),
        Rejection::UnknownDaemon => missing(Thing::Daemon),
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
        Rejection::Unreadable => hint(&Fault::Unreadable),
        Rejection::UnsafeRetry => "look at its output first, then retry with allow_unsafe",
    }
}
