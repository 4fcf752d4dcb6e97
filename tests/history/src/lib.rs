//! Histories and their judge. Whoever takes part in a run writes down what it saw, one JSON object a line, each from its own place:
//! clients, daemons (frames on the wire), children (when they lived), the relay (its records in the end), and whoever broke things.
//! [`judge`] compares what they saw with what was promised, for real processes and for the simulation alike.
//!
//! An answer that never came is `info`: the call may have happened or not, and nobody takes it for a failure. A run that saw too
//! little is refused like one that saw a broken promise: what it must have seen at least stands in its own history (`least`).

mod history;
mod history_line;
mod line_counts;
mod recorder;
mod rules;
mod verdict;

pub use history::{History, LineLocation, LocatedLine};
pub use history_line::{
    CallOutcome, ClientOperation, FinalAttempt, HistoryEvent, HistoryLine, Observation,
};
pub use recorder::{HistoryRecorder, ParticipantLog};
pub use rules::check_history;
pub use verdict::{HistoryVerdict, RuleViolation};

#[cfg(test)]
mod sample_run;
