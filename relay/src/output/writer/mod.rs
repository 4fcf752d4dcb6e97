//! The thread that writes output: its queue, its groups, its segments and their retention. Only
//! this folder changes segment files while the log runs.

pub(crate) mod retention;
pub(crate) mod segment_writer;
pub(crate) mod write_group;
pub(crate) mod write_queue;
