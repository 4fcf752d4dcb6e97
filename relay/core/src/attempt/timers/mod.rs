//! The twelve timers of an attempt, and the index of the next deadlines.
//!
//! Owns which fact arms, restarts, pauses and disarms which timer (`timer_set`), how long each
//! lasts (`timer`), what survives a relay restart (`timer_restore`) and the index over all
//! tasks (`deadline_index`). It does not decide the effect of an expiry and reads no clock.
//!
//! | timer | armed by | restarted by | disarmed by | paused during |
//! |---|---|---|---|---|
//! | queue | queued | - | offered | a pause (task, scheduler) |
//! | accept | offered | - | accepted or later, confirmation | never |
//! | lease | offered | confirmation, renewal | the end | never |
//! | total | confirmation | - | the end | never |
//! | process_start | started | - | agent_started or later | never |
//! | prompt_write | agent_started | - | prompt_written or later | never |
//! | first_event | prompt_written | - | first_event_seen or later | never |
//! | first_visible_event | prompt_written | - | first_visible_event_seen, tool start | open input |
//! | stream_idle | first_event_seen | output, phases | cleanup | running tool, open input |
//! | tool_idle (each call) | tool start | output of that tool | its finish, cleanup | open input |
//! | user_input (each input) | the question | - | answer or withdrawal, cleanup | never |
//! | cleanup_term | cleanup_started or Cancel sent | - | cleanup_finished | never |
//!
//! `heartbeat` is the one phase that does not restart `stream_idle`.
//!
//! The end of the attempt (terminal or parked) disarms all timers. Cleanup disarms every phase
//! timer: the cause of the end is decided by then, and `cleanup_term`, `total` and `lease`
//! bound the rest.

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
