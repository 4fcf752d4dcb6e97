//! What is measured: the relay's process, the machine, latencies, and the report of all figures.
//! Rendering a report as tables is the caller's work.

pub mod latency;
pub mod machine;
pub(crate) mod relay_process;
pub mod report;

pub use relay_process::{ADMIN_TOKEN_FILE, LISTENING_ON};
