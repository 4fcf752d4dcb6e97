//! The ids of Baton: one newtype each, so that they cannot be swapped. Minted by the shell (UUIDv7), never here.

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
    /// What a client submitted.
    TaskId
);
uuid_id!(
    /// One try at a task; never reused, which is what makes it a fence.
    AttemptId
);
uuid_id!(
    /// A worker machine's daemon: minted by the relay, bound to its credential, kept in its data directory.
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
    /// One life of the relay's data: a restored or truncated store gets a new one, which fences older frames.
    Incarnation
);
uuid_id!(
    /// One call of an agent, by the agent's own word: the same one again has the same id.
    CallId
);
uuid_id!(
    /// A credential's public half.
    TokenId
);

/// Shape is checked before any look-up; only the canonical hyphenated form is taken.
fn parse_uuid(text: &str) -> Result<Uuid, MalformedId> {
    let id = Uuid::try_parse(text).map_err(|_| MalformedId)?;
    if id.hyphenated().to_string() == text {
        Ok(id)
    } else {
        Err(MalformedId)
    }
}

/// Not an id of Baton's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedId;

impl fmt::Display for MalformedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id (ids look like 0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10)")
    }
}

impl std::error::Error for MalformedId {}

/// Counts starts of one relay: larger wins, and daemons refuse lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RelayEpoch(pub u64);

/// Whose data it is. Comes from the credential, never from a message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// 1 to 63 characters of `[a-z0-9_-]`, beginning with a letter or digit.
    pub fn new(name: &str) -> Option<Self> {
        let body = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let first = name.bytes().next()?;
        let good = name.len() <= 63 && first.is_ascii_alphanumeric() && name.bytes().all(body);
        good.then(|| Self(name.into()))
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

/// Which tenants a daemon works for: one, or all of them (a shared fleet).
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

/// What people call a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonRef {
    Id(DaemonId),
    Name(Arc<str>),
}
