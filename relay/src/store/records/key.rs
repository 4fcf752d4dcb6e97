//! Every key of the record tree: its format, its value and its lifetime. No other file writes
//! or parses key bytes.
//!
//! Format: `tenant 00 kind rest`. The tenant comes first, so that a scan always names a tenant.
//! Relay-wide records have the empty tenant and sort first. Numbers are big-endian and texts
//! end in a zero byte, so no key is a prefix of another, and byte order is the order of
//! [`RecordKey`].
//!
//! Journal entries are in their own tree, under `first sequence number (8 bytes) part (2
//! bytes)`: see `journal/entry.rs`.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// Longest tenant or name in a key, in bytes.
pub const MAX_TEXT: usize = 128;

/// Longest encoded key: two texts, their terminators and the kind.
pub(crate) const MAX_KEY: usize = 2 * MAX_TEXT + 3;

/// The key of a record. Order: tenant, then kind, then the rest of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordKey {
    /// `"" 00 00 name` — facts about this data directory. Values: see [`MetaKey`]. Lives as
    /// long as the directory.
    Meta(MetaKey),
    /// `tenant 00 01 name 00` — an operator's switch (paused, draining); no tenant means the
    /// whole relay. Value: the switch's own record. Lives until the operator clears it.
    Control {
        tenant: Option<KeyText>,
        name: KeyText,
    },
    /// `tenant 00 02 task` — the client's submission, written once. Lives until the task's
    /// retention ends.
    Spec { tenant: KeyText, task: Uuid },
    /// `tenant 00 03 task` — task, attempts and timeline while the task is open. Deleted by the
    /// commit that writes `Done`; an operator's retry restores it.
    Live { tenant: KeyText, task: Uuid },
    /// `tenant 00 04 task` — the same record after the task's end. Lives until its retention
    /// ends.
    Done { tenant: KeyText, task: Uuid },
    /// `tenant 00 05 digest` — the task created with an idempotency key, under the digest of
    /// that key. Lives as long as that task.
    Idempotency { tenant: KeyText, digest: [u8; 32] },
    /// `tenant 00 06 name 00` — a named deadline profile. Lives until it is removed.
    Profile { tenant: KeyText, name: KeyText },
    /// `tenant 00 07 token` — a credential: role, scope and the hash of its secret. Kept after
    /// its revocation, so that a list can show it.
    Token { tenant: KeyText, token: Uuid },
    /// `tenant 00 08 daemon` — an enrolled daemon: its name, labels and credential. Lives until
    /// it is removed.
    Daemon { tenant: KeyText, daemon: Uuid },
    /// `"" 00 09 hash task` — a task's claim to a long body, which is a file named by its hash;
    /// several tasks may claim the same body. Empty value. Lives as long as that task; a body
    /// without a claim is removed.
    Body { hash: [u8; 32], task: Uuid },
    /// `tenant 00 0a task` — the task's latest progress. Lives as long as the task.
    Progress { tenant: KeyText, task: Uuid },
    /// `tenant 00 0b task number` — a checkpoint of the task. Lives as long as the task, or
    /// until newer ones replace it.
    Checkpoint {
        tenant: KeyText,
        task: Uuid,
        number: u64,
    },
}

/// The relay-wide facts. `Applied` is written by the store itself; the others are ordinary
/// changes in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MetaKey {
    /// u16: the newest record schema in this directory.
    Schema = 0,
    /// 16 bytes: the identity of this data. It changes after an accepted loss.
    Incarnation = 1,
    /// u64: the number of starts of the relay.
    RelayEpoch = 2,
    /// u64: every change up to this sequence number is in its record, and the journal may be
    /// truncated up to it.
    Applied = 3,
    /// Any value: the data continues a history whose end is unknown, because of an import or an
    /// accepted loss. Lives until the caller has handled that.
    Inherited = 4,
    /// u16: the schema that all records have or are being migrated to; during the migration
    /// followed by the key of the last migrated record. Absent in schema 1.
    Migration = 5,
}

/// The second part of a key: the kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordKind {
    Meta = 0,
    Control = 1,
    Spec = 2,
    Live = 3,
    Done = 4,
    Idempotency = 5,
    Profile = 6,
    Token = 7,
    Daemon = 8,
    Body = 9,
    Progress = 10,
    Checkpoint = 11,
}

impl RecordKind {
    const ALL: [Self; 12] = [
        Self::Meta,
        Self::Control,
        Self::Spec,
        Self::Live,
        Self::Done,
        Self::Idempotency,
        Self::Profile,
        Self::Token,
        Self::Daemon,
        Self::Body,
        Self::Progress,
        Self::Checkpoint,
    ];

    /// The name of the kind, for operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Control => "control",
            Self::Spec => "spec",
            Self::Live => "live",
            Self::Done => "done",
            Self::Idempotency => "idempotency",
            Self::Profile => "profile",
            Self::Token => "token",
            Self::Daemon => "daemon",
            Self::Body => "body",
            Self::Progress => "progress",
            Self::Checkpoint => "checkpoint",
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

impl MetaKey {
    const ALL: [Self; 6] = [
        Self::Schema,
        Self::Incarnation,
        Self::RelayEpoch,
        Self::Applied,
        Self::Inherited,
        Self::Migration,
    ];
}

/// A tenant or name in a key: 1 to 128 bytes without a zero byte.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyText(Arc<str>);

impl KeyText {
    pub fn new(text: &str) -> Result<Self, KeyTextError> {
        match text {
            "" => Err(KeyTextError::Empty),
            long if long.len() > MAX_TEXT => Err(KeyTextError::TooLong { bytes: long.len() }),
            zero if zero.contains('\0') => Err(KeyTextError::ZeroByte),
            good => Ok(Self(good.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a text cannot be part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    #[error("the tenant or name is empty; use 1 to {MAX_TEXT} bytes")]
    Empty,
    #[error("the tenant or name has {bytes} bytes; use at most {MAX_TEXT}")]
    TooLong { bytes: usize },
    #[error("the tenant or name contains a zero byte; remove it")]
    ZeroByte,
}

impl RecordKey {
    /// The tenant of the key; empty for relay-wide records.
    pub fn tenant(&self) -> &str {
        match self {
            Self::Meta(_) | Self::Body { .. } => "",
            Self::Control { tenant, .. } => tenant.as_ref().map_or("", KeyText::as_str),
            Self::Spec { tenant, .. }
            | Self::Live { tenant, .. }
            | Self::Done { tenant, .. }
            | Self::Idempotency { tenant, .. }
            | Self::Profile { tenant, .. }
            | Self::Token { tenant, .. }
            | Self::Daemon { tenant, .. }
            | Self::Progress { tenant, .. }
            | Self::Checkpoint { tenant, .. } => tenant.as_str(),
        }
    }

    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Meta(_) => RecordKind::Meta,
            Self::Control { .. } => RecordKind::Control,
            Self::Spec { .. } => RecordKind::Spec,
            Self::Live { .. } => RecordKind::Live,
            Self::Done { .. } => RecordKind::Done,
            Self::Idempotency { .. } => RecordKind::Idempotency,
            Self::Profile { .. } => RecordKind::Profile,
            Self::Token { .. } => RecordKind::Token,
            Self::Daemon { .. } => RecordKind::Daemon,
            Self::Body { .. } => RecordKind::Body,
            Self::Progress { .. } => RecordKind::Progress,
            Self::Checkpoint { .. } => RecordKind::Checkpoint,
        }
    }

    fn suffix(&self) -> KeySuffix<'_> {
        match self {
            Self::Meta(meta) => KeySuffix::Meta(*meta),
            Self::Control { name, .. } | Self::Profile { name, .. } => {
                KeySuffix::Name(name.as_str())
            }
            Self::Spec { task, .. }
            | Self::Live { task, .. }
            | Self::Done { task, .. }
            | Self::Progress { task, .. } => KeySuffix::Id(task),
            Self::Checkpoint { task, number, .. } => KeySuffix::Numbered(task, *number),
            Self::Idempotency { digest, .. } => KeySuffix::Digest(digest),
            Self::Token { token, .. } => KeySuffix::Id(token),
            Self::Daemon { daemon, .. } => KeySuffix::Id(daemon),
            Self::Body { hash, task } => KeySuffix::BodyClaim(hash, task),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = prefix(self.tenant(), Some(self.kind()));
        match self.suffix() {
            KeySuffix::Meta(meta) => bytes.push(meta as u8),
            KeySuffix::Id(id) => bytes.extend_from_slice(id.as_bytes()),
            KeySuffix::Digest(digest) => bytes.extend_from_slice(digest),
            KeySuffix::Numbered(id, number) => {
                bytes.extend_from_slice(id.as_bytes());
                bytes.extend_from_slice(&number.to_be_bytes());
            }
            KeySuffix::BodyClaim(hash, task) => {
                bytes.extend_from_slice(hash);
                bytes.extend_from_slice(task.as_bytes());
            }
            KeySuffix::Name(name) => {
                bytes.extend_from_slice(name.as_bytes());
                bytes.push(0);
            }
        }
        bytes
    }

    /// `None` for bytes that this version did not write. The caller counts such a record as
    /// unreadable.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tenant, after) = split_text(bytes)?;
        let (&kind, rest) = after.split_first()?;
        let kind = RecordKind::from_byte(kind)?;
        if tenant.is_empty() {
            return Self::decode_relay_wide(kind, rest);
        }
        let tenant = KeyText::new(tenant).ok()?;
        Some(match kind {
            RecordKind::Meta | RecordKind::Body => return None,
            RecordKind::Control => Self::Control {
                tenant: Some(tenant),
                name: decode_final_text(rest)?,
            },
            RecordKind::Spec => Self::Spec {
                tenant,
                task: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Live => Self::Live {
                tenant,
                task: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Done => Self::Done {
                tenant,
                task: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Idempotency => Self::Idempotency {
                tenant,
                digest: rest.try_into().ok()?,
            },
            RecordKind::Profile => Self::Profile {
                tenant,
                name: decode_final_text(rest)?,
            },
            RecordKind::Token => Self::Token {
                tenant,
                token: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Daemon => Self::Daemon {
                tenant,
                daemon: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Progress => Self::Progress {
                tenant,
                task: Uuid::from_slice(rest).ok()?,
            },
            RecordKind::Checkpoint => {
                let (task, number) = rest.split_first_chunk::<16>()?;
                Self::Checkpoint {
                    tenant,
                    task: Uuid::from_bytes(*task),
                    number: u64::from_be_bytes(number.try_into().ok()?),
                }
            }
        })
    }

    fn decode_relay_wide(kind: RecordKind, rest: &[u8]) -> Option<Self> {
        match (kind, rest) {
            (RecordKind::Meta, &[byte]) => Some(Self::Meta(*MetaKey::ALL.get(usize::from(byte))?)),
            (RecordKind::Control, _) => Some(Self::Control {
                tenant: None,
                name: decode_final_text(rest)?,
            }),
            (RecordKind::Body, _) => {
                let (hash, task) = rest.split_first_chunk::<32>()?;
                let task = Uuid::from_slice(task).ok()?;
                Some(Self::Body { hash: *hash, task })
            }
            (
                RecordKind::Meta
                | RecordKind::Spec
                | RecordKind::Live
                | RecordKind::Done
                | RecordKind::Idempotency,
                _,
            )
            | (RecordKind::Profile | RecordKind::Token | RecordKind::Daemon, _)
            | (RecordKind::Progress | RecordKind::Checkpoint, _) => None,
        }
    }
}

/// For people: tenant, kind, and the rest.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenant() {
            "" => write!(f, "{}/", self.kind().as_str())?,
            tenant => write!(f, "{tenant}/{}/", self.kind().as_str())?,
        }
        match self.suffix() {
            KeySuffix::Meta(meta) => write!(f, "{meta:?}"),
            KeySuffix::Id(id) => id.fmt(f),
            KeySuffix::Numbered(id, number) => write!(f, "{id}/{number}"),
            KeySuffix::Digest(digest) => digest.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            KeySuffix::BodyClaim(hash, task) => {
                hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                write!(f, "/{task}")
            }
            KeySuffix::Name(name) => f.write_str(name),
        }
    }
}

impl Ord for RecordKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let this = (self.tenant(), self.kind(), self.suffix());
        this.cmp(&(other.tenant(), other.kind(), other.suffix()))
    }
}

impl PartialOrd for RecordKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What follows tenant and kind. Two keys of one kind always have the same variant.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum KeySuffix<'a> {
    Meta(MetaKey),
    Id(&'a Uuid),
    Numbered(&'a Uuid, u64),
    Digest(&'a [u8; 32]),
    BodyClaim(&'a [u8; 32], &'a Uuid),
    Name(&'a str),
}

/// A range of adjacent keys: from `start` up to but not including `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl KeyRange {
    /// All records of one kind of one tenant.
    pub fn of_kind(tenant: &KeyText, kind: RecordKind) -> Self {
        Self::with_prefix(prefix(tenant.as_str(), Some(kind)))
    }

    /// All records of one tenant.
    pub fn tenant(tenant: &KeyText) -> Self {
        Self::with_prefix(prefix(tenant.as_str(), None))
    }

    /// The checkpoints of one task, oldest first.
    pub fn checkpoints(tenant: &KeyText, task: &Uuid) -> Self {
        let mut start = prefix(tenant.as_str(), Some(RecordKind::Checkpoint));
        start.extend_from_slice(task.as_bytes());
        // At most 8 bytes and the number of a chunk follow, which is shorter than this.
        let end = [&*start, &[0xff; 16]].concat();
        Self { start, end }
    }

    /// Every task's claim to one body.
    pub fn claims(hash: &[u8; 32]) -> Self {
        let mut start = prefix("", Some(RecordKind::Body));
        start.extend_from_slice(hash);
        // At most 16 bytes and the number of a chunk follow, which is shorter than this.
        let end = [&*start, &[0xff; 24]].concat();
        Self { start, end }
    }

    /// Relay-wide records of one kind (`Meta`, `Control`, `Body`).
    pub fn relay_wide(kind: RecordKind) -> Self {
        Self::with_prefix(prefix("", Some(kind)))
    }

    /// Everything, all tenants: for verification and export.
    pub fn everything() -> Self {
        Self {
            start: Vec::new(),
            end: vec![0xff],
        }
    }

    /// Every key after those of `tenant`, which is where the next tenant begins.
    pub(crate) fn after_tenant(tenant: &str) -> Self {
        Self {
            start: Self::with_prefix(prefix(tenant, None)).end,
            ..Self::everything()
        }
    }

    // A prefix never ends in ff (it ends in a zero byte or a kind), so its successor is the
    // last byte plus one.
    fn with_prefix(start: Vec<u8>) -> Self {
        let mut end = start.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self { start, end }
    }
}

fn prefix(tenant: &str, kind: Option<RecordKind>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tenant.len() + 2 + 48);
    bytes.extend_from_slice(tenant.as_bytes());
    bytes.push(0);
    bytes.extend(kind.map(|kind| kind as u8));
    bytes
}

fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

fn decode_final_text(bytes: &[u8]) -> Option<KeyText> {
    match split_text(bytes)? {
        (text, []) => KeyText::new(text).ok(),
        (_, [_, ..]) => None,
    }
}
