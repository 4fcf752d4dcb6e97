//! The twelve timers of an attempt, and the index of what falls due next.
//!
//! Owns which fact arms, feeds, pauses and disarms which timer (`set`), how long each lasts (`timer`), what of it
//! survives a restart (`restore`) and the index over all tasks (`deadlines`). It never decides what an expiry does
//! to a task, and reads no clock.
//!
//! | timer | armed by | fed by | disarmed by | paused while |
//! |---|---|---|---|---|
//! | queue | queued | - | offered | the task or the scheduler is paused |
//! | accept | offered | - | accepted or any later phase, confirmation | never |
//! | lease | offered | confirmation, renewal | the end | never |
//! | total | confirmation | - | the end | never |
//! | process_start | started | - | agent_started or later | never |
//! | prompt_write | agent_started | - | prompt_written or later | never |
//! | first_event | prompt_written | - | first_event_seen or later | never |
//! | first_visible_event | prompt_written | - | first_visible_event_seen, a tool start | an input is open |
//! | stream_idle | first_event_seen | output, any phase but heartbeat | cleanup | a tool runs or an input is open |
//! | tool_idle (per tool call) | tool start | output of that tool | its finish, cleanup | an input is open |
//! | user_input (per input) | the question | - | its answer or withdrawal, cleanup | never |
//! | cleanup_term | cleanup_started or Cancel sent | - | cleanup_finished | never |
//!
//! The end of the attempt (terminal or parked) disarms all. Cleanup also disarms whatever phase timer is still
//! armed: what ends the attempt is decided by then, and `cleanup_term`, `total` and `lease` bound the rest.

mod deadline_index;
mod timer;
mod timer_restore;
mod timer_set;

#[cfg(test)]
mod pause_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod timer_restore_tests;
#[cfg(test)]
mod timer_set_tests;

pub use deadline_index::DeadlineIndex;
pub use timer::{ArmedTimerView, TimerKey, TimerLimits, ToolCallId};
pub use timer_restore::StoredTimers;
pub use timer_set::{MAX_OPEN, TimerFact, TimerSet};
