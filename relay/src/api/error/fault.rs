//! Every reason for which an RPC can fail, as data, with its message. Codes and retry advice are in
//! `status.rs`, hints in `hint.rs`.

use baton_core::io::rejection::Rejection;
use baton_core::record::InputDecision;
use baton_core::time::WallTime;
use baton_proto::ShortName;
use baton_validation::{UnmetRequirement, summarize_unmet};

use crate::api::request::validate::InvalidField;
use crate::api::wire::{enums, timestamp};
use crate::auth::AuthFault;
use crate::dispatcher::RequestRefusal;
use crate::session::{FrameFault, LinkFault};

/// Size limit of the message about missing files. The error details list all paths.
const UNMET_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiFault {
    #[error(transparent)]
    Auth(#[from] AuthFault),
    /// The request is malformed, whatever the relay's state is.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// The core refused the request.
    #[error("{}", .0.explain())]
    Refused(Rejection),
    /// A completion without all required files. Lists every missing one.
    #[error("{}", summarize_unmet(.0, UNMET_BYTES))]
    MissingFiles(Vec<UnmetRequirement>),
    #[error("no {0} with this id or name")]
    NotFound(EntityKind),
    #[error("this token has no access to that tenant")]
    ForeignTenant,
    #[error("this needs access to all tenants, and the token belongs to one tenant")]
    OneTenantOnly,
    #[error("the tenant has reached its limit of {limit} named profiles")]
    TooManyProfiles { limit: usize },
    #[error("the answer is for another attempt or other tool arguments than the open input")]
    StaleAnswer,
    /// Another caller gave a different answer first.
    #[error("already answered by {by} at {}: {}", clock_time(*.at), decided(*.decision))]
    AnsweredOtherwise {
        by: String,
        at: WallTime,
        decision: InputDecision,
    },
    /// Another holder got the task first.
    #[error("{by} already holds the task")]
    TakenBy { by: String },
    /// Another caller resumed or picked up the task first.
    #[error("{by} has already resumed or picked up this task")]
    ResumedBy { by: String },
    /// An RPC or field of the protocol that this version does not implement. Accepting the field
    /// would silently ignore it.
    #[error("{what} is not implemented in this version of the relay")]
    NotImplemented { what: &'static str },
    #[error("no such RPC in baton.v1")]
    UnknownRpc,
    #[error("the message exceeds the size limit")]
    MessageTooLarge,
    /// Not a message of this type: wrong wire types, or text that is not UTF-8.
    #[error("the message cannot be decoded")]
    Undecodable,
    #[error("the relay has reached its limit of concurrent calls")]
    Overloaded,
    #[error("too many updates of this token are waiting to be stored")]
    TooManyUpdates,
    #[error("the limit of {limit} open streams is reached")]
    TooManyStreams { limit: usize },
    /// Free space is below the low mark; see `space`.
    #[error("the relay's disk is nearly full, so new work is refused")]
    DiskFull,
    #[error("the relay is stopping")]
    Stopping,
    #[error("the request timed out and may or may not have taken effect")]
    TimedOut,
    #[error("the relay stopped before the outcome was known")]
    OutcomeUnknown,
    /// A daemon's stream that did not become a session.
    #[error(transparent)]
    Link(#[from] LinkFault),
    /// A malformed frame of a daemon. The fault is sent in the daemon's stream.
    #[error(transparent)]
    Frame(#[from] FrameFault),
    /// Only one export, import or verify runs at a time, because each reads the whole store.
    #[error("another export, import or verify is running")]
    TransferBusy,
    #[error("the export fell too far behind the relay's changes")]
    ExportBehind,
    /// An import is only possible into a relay without tasks.
    #[error("the relay has tasks, and an import would replace them")]
    RelayNotEmpty,
    #[error("{message}")]
    InvalidArchive { code: &'static str, message: String },
    #[error("the import failed: {message}")]
    ImportFailed { message: String },
    #[error("the stored record cannot be read")]
    Unreadable,
    /// A broken invariant. The log has the details, which the caller must not see.
    #[error("internal error in the relay")]
    Internal,
}

fn clock_time(at: WallTime) -> String {
    timestamp(at).to_string()
}

fn decided(decision: InputDecision) -> &'static str {
    enums::outcome(decision).short_name()
}

/// What was not found. An entity of another tenant gets the same answer as one that does not
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntityKind {
    Task,
    Attempt,
    Input,
    Daemon,
    Profile,
    Token,
}

impl std::fmt::Display for EntityKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EntityKind::Task => "task",
            EntityKind::Attempt => "attempt",
            EntityKind::Input => "input",
            EntityKind::Daemon => "daemon",
            EntityKind::Profile => "profile",
            EntityKind::Token => "token",
        })
    }
}

impl From<Rejection> for ApiFault {
    /// Maps the core's "unknown" and this crate's "not found" to one fault, so that callers cannot
    /// distinguish them.
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::UnknownTask => ApiFault::NotFound(EntityKind::Task),
            Rejection::UnknownAttempt => ApiFault::NotFound(EntityKind::Attempt),
            Rejection::UnknownInput => ApiFault::NotFound(EntityKind::Input),
            Rejection::UnknownDaemon => ApiFault::NotFound(EntityKind::Daemon),
            Rejection::Unreadable => ApiFault::Unreadable,
            other => ApiFault::Refused(other),
        }
    }
}

impl From<RequestRefusal> for ApiFault {
    fn from(refusal: RequestRefusal) -> Self {
        match refusal {
            RequestRefusal::Rejected(rejection) => rejection.into(),
            RequestRefusal::Stopping => ApiFault::Stopping,
            RequestRefusal::OutcomeUnknown => ApiFault::OutcomeUnknown,
            RequestRefusal::DiskFull => ApiFault::DiskFull,
            RequestRefusal::TooManyUpdates => ApiFault::TooManyUpdates,
            RequestRefusal::BodyNotStored(error) => {
                tracing::error!(%error, "storing a long body failed");
                ApiFault::Internal
            }
        }
    }
}
