//! The commit log: appends wait in a queue, one thread commits them as numbered entries, one
//! applies them to records, one writes the watermark. Owns the entry format, the overlay of
//! committed changes and the pins of its readers. Must not interpret record bodies.

pub(crate) mod append_queue;
pub(crate) mod applier;
pub(crate) mod commit_progress;
pub(crate) mod committer;
pub(crate) mod entry;
pub(crate) mod overlay;
pub(crate) mod pin;
pub(crate) mod tail;
pub(crate) mod watermark;
pub(crate) mod watermark_writer;
pub(crate) mod writer;
