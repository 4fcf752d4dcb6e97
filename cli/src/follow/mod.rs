//! Follows one task: its events, the output of its attempts, and inputs that are answered at the terminal.
//! Reconnects without losing or repeating an event or a byte.
//! Must not format tasks (that is render) and must not end the process.

pub(crate) mod answer;
pub(crate) mod input_prompt;
pub(crate) mod output_reader;
#[cfg(test)]
pub(crate) mod scripted_relay;
pub(crate) mod task_follower;
