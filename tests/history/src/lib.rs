//! Histories of runs and their checker. Every participant of a run records its observations,
//! one JSON object per line: clients, daemons (frames on the wire), children (their lifetimes),
//! the relay (its final records), and the fault injection. [`check_history`] checks them
//! against the rules, for real processes and for the simulation.
//!
//! A call without an answer is `info`: it may have had an effect or not, and is not counted as
//! a failure. A run that observed too little fails like one that violates a rule: its history
//! contains the required minimum counts (`least`).

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
