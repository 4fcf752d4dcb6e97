//! Everything that an RPC can be refused for, as data. Codes, hints and retry advice stand in `status.rs`.

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

/// Of a message about missing files; their paths are all in the details.
const UNMET_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiFault {
    #[error(transparent)]
    Auth(#[from] AuthFault),
    /// Wrong whatever the relay's state is.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// The core would not do it.
    #[error("{}", .0.explain())]
    Refused(Rejection),
    /// A completion that misses files: all of them.
    #[error("{}", summarize_unmet(.0, UNMET_BYTES))]
    MissingFiles(Vec<UnmetRequirement>),
    #[error("no {0} with this id or name")]
    NotFound(EntityKind),
    #[error("this credential does not reach that tenant")]
    ForeignTenant,
    #[error("this concerns all tenants, and the credential belongs to one")]
    OneTenantOnly,
    #[error("the tenant has {limit} named profiles, which is as many as it may")]
    TooManyProfiles { limit: usize },
    #[error("what waits for an answer is no longer what was answered")]
    StaleAnswer,
    /// Somebody was quicker, and said something else.
    #[error("{by} has answered it at {}: {}", clock_time(*.at), decided(*.decision))]
    AnsweredOtherwise {
        by: String,
        at: WallTime,
        decision: InputDecision,
    },
    /// Two wanted the task, and this caller came second.
    #[error("{by} was quicker and has the task")]
    TakenBy { by: String },
    /// Somebody was quicker in sending it on.
    #[error("{by} was quicker and has taken or sent this task on already")]
    ResumedBy { by: String },
    /// Designed, not built: an RPC, or a field that would silently do nothing.
    #[error("{what} is not built into this version of the relay")]
    NotImplemented { what: &'static str },
    #[error("no such call in baton.v1")]
    UnknownRpc,
    #[error("the message is larger than the relay takes")]
    MessageTooLarge,
    /// Not a message of this type: wrong wire types, or text that is no UTF-8.
    #[error("the message cannot be decoded")]
    Undecodable,
    #[error("the relay handles as many calls as it may")]
    Overloaded,
    #[error("so many updates of this token wait to be stored that no more are taken")]
    TooManyUpdates,
    #[error("{limit} streams are open, which is as many as may be")]
    TooManyStreams { limit: usize },
    /// The low-space mark; see `space`.
    #[error("the relay's disk is nearly full, so it takes nothing new")]
    DiskFull,
    #[error("the relay is stopping")]
    Stopping,
    #[error("no answer in time; whether it was done is not known")]
    TimedOut,
    #[error("the relay stopped before the outcome was known")]
    OutcomeUnknown,
    /// A daemon's stream that did not become a session.
    #[error(transparent)]
    Link(#[from] LinkFault),
    /// A daemon's frame that means nothing; it is told in the stream.
    #[error(transparent)]
    Frame(#[from] FrameFault),
    /// One export, import or verify at a time: each reads everything.
    #[error("another export, import or verify is running")]
    TransferBusy,
    #[error("the export fell too far behind the relay's changes")]
    ExportBehind,
    /// An import is for a relay that has done nothing yet.
    #[error("the relay has tasks, and an import would replace them")]
    RelayNotEmpty,
    #[error("{message}")]
    InvalidArchive { code: &'static str, message: String },
    #[error("the import failed: {message}")]
    ImportFailed { message: String },
    #[error("the stored record cannot be read")]
    Unreadable,
    /// The relay broke a promise to itself. The log has the detail, the caller does not.
    #[error("the relay failed to do this")]
    Internal,
}

fn clock_time(at: WallTime) -> String {
    timestamp(at).to_string()
}

fn decided(decision: InputDecision) -> &'static str {
    enums::outcome(decision).short_name()
}

/// What was looked for. Another tenant's looks like none.
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
    /// The core's unknown and this crate's not found are one fault, so that they cannot be told apart.
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
                tracing::error!(%error, "a long body could not be stored");
                ApiFault::Internal
            }
        }
    }
}
