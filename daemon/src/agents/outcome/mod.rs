//! What the end of a turn or attempt means: failure classes, usage, and the verdict that the
//! relay gets. Whether a failure may be retried is decided by the relay, not here.

pub(crate) mod failure;
pub(crate) mod turn_usage;
pub(crate) mod verdict;
