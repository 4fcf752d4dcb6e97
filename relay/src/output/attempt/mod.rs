//! What is known of each attempt's output in memory: its ends and extents, who listens, followers and acknowledgement feeds.
//! No lock is held over I/O; must not write segment files.

pub(crate) mod ack_feed;
pub(crate) mod attempt_output;
pub(crate) mod follower;
pub(crate) mod index;
pub(crate) mod listeners;
