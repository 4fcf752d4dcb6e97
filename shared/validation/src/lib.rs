//! Validation rules that relay, daemon and command line share: which files a completion
//! contract may require, whether receipts meet it, and the limits of every request field.
//!
//! The functions are pure. Submit and the daemon check paths with them, the relay decides with
//! them in the commit that completes a task, and a client that checks in advance gets the same
//! result.

pub mod limits;
mod required_files;
mod required_path;

pub use required_files::{
    FileReceipt, RequiredFile, UnmetReason, UnmetRequirement, summarize_unmet, unmet_requirements,
};
pub use required_path::{InvalidPath, PATH_BYTES_MAX, PATHS_MAX, check_path};
