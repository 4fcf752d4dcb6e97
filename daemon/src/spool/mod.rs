//! The transcript of an attempt: what its child wrote to both pipes, in the order in which it
//! was read. The shim writes it while the daemon reads it; the only state they share is a
//! position.
//!
//! A position counts payload bytes of both pipes together. The files are segments of about 1
//! MiB, named by the position of their first byte, each a sequence of records with checksums.
//! Written data is never changed. Consumed data is removed in whole segments.

mod reader;
mod record_header;
mod segment;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use bytes::Bytes;

pub use reader::{ReadLimit, SpoolReader, oldest_position};
pub use record_header::LARGEST_CHUNK;
pub(crate) use segment::is_segment;
pub use writer::SpoolWriter;

/// Which pipe the bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChildPipe {
    Stdout,
    Stderr,
}

/// The bytes of one read from one pipe, or their rest when the reader started in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolChunk {
    /// Position of its first byte.
    pub position: u64,
    pub kind: ChildPipe,
    /// When it was read, for display.
    pub wall_ms: u64,
    pub bytes: Bytes,
}

impl SpoolChunk {
    /// Position after its last byte.
    pub fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }
}

/// Why a transcript cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "the transcript in {directory} has no position {position} any more: it was already consumed"
    )]
    Gone { directory: PathBuf, position: u64 },
    #[error("the transcript in {directory} is damaged at position {position}")]
    Damaged { directory: PathBuf, position: u64 },
}
