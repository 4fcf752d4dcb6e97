//! Commands on tasks for people who submit, follow, answer and resume them.
//! One file per command: its flags, the call, the printing; no decision about a task.

pub(crate) mod answer;
pub(crate) mod block;
pub(crate) mod blocked;
pub(crate) mod cancel;
pub(crate) mod checkpoints;
pub(crate) mod inbox;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod resume;
pub(crate) mod show;
pub(crate) mod submit;
pub(crate) mod tasks;
pub(crate) mod watch;
