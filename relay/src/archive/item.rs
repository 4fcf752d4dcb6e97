//! The contents of an export (head, items, trailer) and their encoding in frames.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::fault::ArchiveDamage;
use super::frame::ArchiveFrameKind;
use crate::output::{CutReason, OutputPiece};
use crate::store::{RecordKey, SCHEMA};

/// The newest file format.
pub(super) const FORMAT: u32 = 1;

/// The first frame: what the export was made from, and by which version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveHead {
    /// Format of the file.
    pub format: u32,
    /// Schema of the records.
    pub schema: u16,
    /// The incarnation of the exported data; `None` if it could not be read.
    pub incarnation: Option<Uuid>,
    pub relay_epoch: u64,
    /// Everything up to this commit was durable when the export began, and is included.
    pub from_revision: u64,
    pub made_at_ms: u64,
    /// The program's version.
    pub made_by: String,
    pub with_output: bool,
    pub with_tokens: bool,
    /// Why a relay would refuse to start on the exported directory.
    pub refusal: Option<String>,
}

/// The last frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveTrailer {
    /// The commit whose state the items add up to.
    pub revision: u64,
    /// Frames before this one.
    pub frames: u64,
    /// Number of items of each kind.
    pub puts: u64,
    pub deletes: u64,
    pub bodies: u64,
    pub outputs: u64,
    /// Records and damaged pages that could not be read and are not included.
    pub skipped: u64,
    /// Long bodies that records refer to and that could not be read.
    pub missing_bodies: u64,
    /// SHA-256 of every byte before this frame, in hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveItem {
    Put {
        key: RecordKey,
        body: Bytes,
    },
    Delete(RecordKey),
    /// A prompt that is too long for its record.
    Body(Bytes),
    /// Output of an attempt, in the order of its offsets.
    Output {
        attempt: Uuid,
        piece: OutputPiece,
    },
    /// The attempt will write no more.
    Sealed {
        attempt: Uuid,
        end: u64,
    },
}

impl ArchiveHead {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings can be encoded as JSON")
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ArchiveDamage> {
        // Decode the format alone first, because a newer head may differ in everything else.
        #[derive(Deserialize)]
        struct HeadFormat {
            format: u32,
        }
        let format =
            serde_json::from_slice::<HeadFormat>(body).map_err(|_| ArchiveDamage::NotAnExport)?;
        if format.format > FORMAT {
            return Err(ArchiveDamage::NewerFormat {
                found: format.format,
                known: FORMAT,
            });
        }
        let head: Self = serde_json::from_slice(body)
            .map_err(|_| ArchiveDamage::Inconsistent("its head is malformed"))?;
        if head.schema > SCHEMA {
            return Err(ArchiveDamage::NewerSchema {
                found: head.schema,
                known: SCHEMA,
            });
        }
        Ok(head)
    }
}

impl ArchiveTrailer {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings can be encoded as JSON")
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ArchiveDamage> {
        serde_json::from_slice(body)
            .map_err(|_| ArchiveDamage::Inconsistent("its trailer is malformed"))
    }

    pub(super) fn count(&mut self, item: &ArchiveItem) {
        self.frames += 1;
        match item {
            ArchiveItem::Put { .. } => self.puts += 1,
            ArchiveItem::Delete(_) => self.deletes += 1,
            ArchiveItem::Body(_) => self.bodies += 1,
            ArchiveItem::Output { .. } | ArchiveItem::Sealed { .. } => self.outputs += 1,
        }
    }
}

impl ArchiveItem {
    /// Encodes the item into `into`, which is cleared first, and returns the frame's kind.
    pub(super) fn encode(&self, into: &mut Vec<u8>) -> ArchiveFrameKind {
        into.clear();
        match self {
            Self::Put { key, body } => {
                let key = key.encode();
                let len = u16::try_from(key.len()).expect("keys are shorter than 400 bytes");
                into.extend_from_slice(&len.to_le_bytes());
                into.extend_from_slice(&key);
                into.extend_from_slice(body);
                ArchiveFrameKind::Put
            }
            Self::Delete(key) => {
                into.extend_from_slice(&key.encode());
                ArchiveFrameKind::Delete
            }
            Self::Body(body) => {
                into.extend_from_slice(body);
                ArchiveFrameKind::Body
            }
            Self::Output { attempt, piece } => {
                into.extend_from_slice(attempt.as_bytes());
                encode_piece(piece, into)
            }
            Self::Sealed { attempt, end } => {
                into.extend_from_slice(attempt.as_bytes());
                into.extend_from_slice(&end.to_le_bytes());
                ArchiveFrameKind::Sealed
            }
        }
    }

    /// Decodes an item; `None` if the body is malformed.
    pub(super) fn decode(kind: ArchiveFrameKind, body: &Bytes) -> Option<Self> {
        let mut fields = FrameFields { rest: body.clone() };
        Some(match kind {
            ArchiveFrameKind::Head | ArchiveFrameKind::Trailer => return None,
            ArchiveFrameKind::Put => {
                let len = u16::from_le_bytes(fields.array()?);
                let key = RecordKey::decode(&fields.take(usize::from(len))?)?;
                let body = fields.rest;
                Self::Put { key, body }
            }
            ArchiveFrameKind::Delete => Self::Delete(RecordKey::decode(&fields.rest)?),
            ArchiveFrameKind::Body => Self::Body(fields.rest),
            ArchiveFrameKind::Output => Self::Output {
                attempt: fields.uuid()?,
                piece: decode_bytes(&mut fields)?,
            },
            ArchiveFrameKind::Cut => Self::Output {
                attempt: fields.uuid()?,
                piece: decode_cut(&mut fields)?,
            },
            ArchiveFrameKind::Sealed => {
                let (attempt, end) = (fields.uuid()?, fields.u64()?);
                fields.end()?;
                Self::Sealed { attempt, end }
            }
        })
    }
}

fn encode_piece(piece: &OutputPiece, into: &mut Vec<u8>) -> ArchiveFrameKind {
    match piece {
        OutputPiece::Bytes {
            offset,
            observed_at_ms,
            after_control_seq,
            kind,
            bytes,
        } => {
            for number in [offset, observed_at_ms, after_control_seq] {
                into.extend_from_slice(&number.to_le_bytes());
            }
            into.push(*kind);
            into.extend_from_slice(bytes);
            ArchiveFrameKind::Output
        }
        OutputPiece::Cut { from, to, reason } => {
            into.extend_from_slice(&from.to_le_bytes());
            into.extend_from_slice(&to.to_le_bytes());
            into.push(reason.number());
            ArchiveFrameKind::Cut
        }
    }
}

fn decode_bytes(fields: &mut FrameFields) -> Option<OutputPiece> {
    Some(OutputPiece::Bytes {
        offset: fields.u64()?,
        observed_at_ms: fields.u64()?,
        after_control_seq: fields.u64()?,
        kind: fields.array::<1>()?[0],
        bytes: std::mem::take(&mut fields.rest),
    })
}

fn decode_cut(fields: &mut FrameFields) -> Option<OutputPiece> {
    let (from, to) = (fields.u64()?, fields.u64()?);
    let reason = CutReason::of(fields.array::<1>()?[0])?;
    fields.end()?;
    (from < to).then_some(OutputPiece::Cut { from, to, reason })
}

/// The fields of a body, read in order without copies.
struct FrameFields {
    rest: Bytes,
}

impl FrameFields {
    fn take(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.rest.len()).then(|| self.rest.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn uuid(&mut self) -> Option<Uuid> {
        self.array().map(Uuid::from_bytes)
    }

    fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}
