//! What a run tells about itself: its counts, its trace text, and its history in the format of baton-history.
//! Nothing here changes what happens under a seed.

pub(crate) mod agent_history;
pub(crate) mod history_writer;
pub(crate) mod run_counts;
pub(crate) mod trace_text;
