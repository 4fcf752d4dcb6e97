//! The ids of Baton. Each is a newtype of its own, so that two kinds cannot be confused. The
//! shell generates them (UUIDv7); this module only parses and prints them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = MalformedId;
            fn from_str(text: &str) -> Result<Self, MalformedId> {
                parse_uuid(text).map(Self)
            }
        }
    };
}

uuid_id!(
    /// A task: what a client submitted.
    TaskId
);
uuid_id!(
    /// An attempt: one try at a task. The id is never reused, so a frame of an older attempt is
    /// recognized.
    AttemptId
);
uuid_id!(
    /// The daemon of a worker machine. The relay assigns the id, binds it to the daemon's
    /// credential, and the daemon keeps it in its data directory.
    DaemonId
);
uuid_id!(
    /// One run of a daemon's process.
    InstanceId
);
uuid_id!(
    /// One live stream of one daemon.
    SessionId
);
uuid_id!(
    /// A permission request or question that waits for a person.
    InputId
);
uuid_id!(
    /// A milestone of a task.
    CheckpointId
);
uuid_id!(
    /// One lineage of the relay's data. A restored or truncated store gets a new one, so that
    /// frames of the older lineage are refused.
    Incarnation
);
uuid_id!(
    /// One call of an agent. The agent chooses the id and repeats it when it sends the same
    /// call again.
    CallId
);
uuid_id!(
    /// The public part of a credential.
    TokenId
);

/// Accepts only the canonical hyphenated form. Ids are checked before any look-up.
fn parse_uuid(text: &str) -> Result<Uuid, MalformedId> {
    let id = Uuid::try_parse(text).map_err(|_| MalformedId)?;
    if id.hyphenated().to_string() == text {
        Ok(id)
    } else {
        Err(MalformedId)
    }
}

/// The text is not a canonical id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedId;

impl fmt::Display for MalformedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id (ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10)")
    }
}

impl std::error::Error for MalformedId {}

/// Counts the starts of one relay. A daemon refuses a relay with a lower epoch than the last
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RelayEpoch(pub u64);

/// The owner of a task and its data. It comes from the credential, never from a message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// 1 to 63 characters of `[a-z0-9_-]`, beginning with a letter or digit.
    pub fn new(name: &str) -> Option<Self> {
        let body = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let first = name.bytes().next()?;
        let valid = name.len() <= 63 && first.is_ascii_alphanumeric() && name.bytes().all(body);
        valid.then(|| Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The tenants that a daemon works for: one, or all of them (a shared fleet).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TenantScope {
    One(TenantId),
    All,
}

impl TenantScope {
    pub fn covers(&self, tenant: &TenantId) -> bool {
        match self {
            TenantScope::One(own) => own == tenant,
            TenantScope::All => true,
        }
    }
}

/// A daemon as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonRef {
    Id(DaemonId),
    Name(Arc<str>),
}
