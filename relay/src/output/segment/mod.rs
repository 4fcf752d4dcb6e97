//! Segment files: frame format, extents, file header, table of open files, and recovery after a
//! crash. Must not depend on the listeners of an attempt.

pub(crate) mod extent;
pub(crate) mod file;
pub(crate) mod frame;
pub(crate) mod recovery;
