//! The in-memory state of each attempt's output: ends, extents, listeners, followers and
//! acknowledgement feeds. No lock is kept over I/O. Must not write segment files.

pub(crate) mod ack_feed;
pub(crate) mod attempt_output;
pub(crate) mod follower;
pub(crate) mod index;
pub(crate) mod listeners;
