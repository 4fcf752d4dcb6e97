//! Segment files: frame format, extents, the file header and the table of open files, and recovery after a crash.
//! Must not know who listens to an attempt.

pub(crate) mod extent;
pub(crate) mod file;
pub(crate) mod frame;
pub(crate) mod recovery;
