//! Exports: everything a relay keeps, in one file that describes and checks itself; made from a live relay or from a
//! directory, read into a new one.
//!
//! ```text
//! file   = "BTNEXP01" frame(head) frame(item)* frame(trailer)
//! frame  = kind u8, length u32, crc32 u32, body          numbers are little-endian
//! ```
//!
//! The checksum of a frame covers its number, kind and length as well, so that a frame that was moved, doubled or left
//! out is found where it is missing. Head and trailer are JSON. The trailer has the counts and the SHA-256 of every byte
//! before it, and nothing may follow it: a file without it was cut short. Items are in order: records first, then changes
//! that were made meanwhile, then long bodies and output. The state is what is left when all of them were taken in order,
//! and it is that of the trailer's revision.
//!
//! No secret is in it that could be used: tokens as SHA-256 of their 256 random bits, lease tokens not at all. What
//! people and agents wrote is in it as they wrote it.

mod export;
mod fault;
mod frame;
mod import;
mod import_directory;
mod import_upload;
mod item;
mod progress;
mod reader;
mod record_checker;
mod record_references;
mod verification;
mod writer;

#[cfg(test)]
mod tests;

pub use export::{ExportError, ExportOptions, ExportSummary, export_directory};
pub(crate) use export::{ExportSource, write_export};
pub use fault::{ArchiveDamage, ArchiveFault};
pub use import::{ImportError, ImportOptions, ImportSummary, import_file};
pub(crate) use import_directory::settle_import;
pub(crate) use import_upload::{ImportUpload, StagedImport};
pub use item::{ArchiveHead, ArchiveItem, ArchiveTrailer};
pub use progress::{ArchiveProgress, ArchiveStage};
pub use reader::ArchiveReader;
pub use record_checker::VerifyFinding;
pub(crate) use verification::verify_source;
pub use verification::{
    VerifiedArchive, VerifyError, VerifyEvent, VerifySummary, VerifyWatcher, verify_directory,
    verify_file,
};
pub use writer::{ArchiveWriter, FinishedArchive};
