//! Text for people and JSON for programs: tasks, attempts, inputs, tables, colours, progress.
//! Only console writes to stdout or stderr; sanitizer filters all text from agents and the relay for a terminal.
//! Must not call the relay.

pub(crate) mod bench_view;
pub(crate) mod console;
pub(crate) mod input_view;
pub(crate) mod progress_line;
pub(crate) mod progress_view;
pub(crate) mod sanitizer;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod task_details;
pub(crate) mod task_view;
