//! Reports of a run: its counts, its trace text, and its history in the format of
//! baton-history. Nothing here affects the simulation.

pub(crate) mod agent_history;
pub(crate) mod history_writer;
pub(crate) mod run_counts;
pub(crate) mod trace_text;
