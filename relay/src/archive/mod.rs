//! Exports: all data of a relay in one self-describing, checksummed file. An export is made
//! from a running relay or a directory, and imported into a new directory.
//!
//! ```text
//! file   = "BTNEXP01" frame(head) frame(item)* frame(trailer)
//! frame  = kind u8, length u32, crc32 u32, body          numbers are little-endian
//! ```
//!
//! The checksum of a frame also covers its number, kind and length. A frame that was moved,
//! duplicated or left out is therefore detected where it is missing. Head and trailer are JSON.
//! The trailer has the counts and the SHA-256 of every byte before it, and nothing may follow
//! it; a file without a trailer was cut short. Items are in order: records first, then changes
//! made during the export, then long bodies and output. Applying all items in order gives the
//! state of the trailer's revision.
//!
//! An export contains no usable secret: tokens are stored as SHA-256 of their 256 random bits,
//! and lease tokens are left out. Prompts and output are included unchanged.

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
