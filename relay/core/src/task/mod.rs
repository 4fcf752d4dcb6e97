//! One task from submit to removal: its immutable spec, its live state in memory, its derived
//! state, and the requests of clients (submit, cancel, answer). Also the size limits of its
//! record, diagnosis and retention. It does not decide attempt transitions (attempt/machine) or
//! where a task runs (schedule/).

pub(crate) mod cancel_and_answer;
pub mod diagnosis;
pub(crate) mod live_task;
pub(crate) mod live_tasks;
pub(crate) mod retention;
pub(crate) mod size_limits;
pub mod spec;
pub(crate) mod submit;
pub(crate) mod task_state;
pub(crate) mod timer_invariant;
