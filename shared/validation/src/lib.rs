//! The completion contract: which files a task may ask for, and when what was found is what was asked for. Pure, and one
//! truth: Submit and the daemon check paths by it, the relay judges by it in the commit that completes, and whoever
//! wants to know beforehand asks the same function. Beside it stand the bounds of all that clients say, for the same
//! reason.

pub mod limits;
mod required_files;
mod required_path;

pub use required_files::{
    FileReceipt, RequiredFile, UnmetReason, UnmetRequirement, summarize_unmet, unmet_requirements,
};
pub use required_path::{InvalidPath, PATH_BYTES_MAX, PATHS_MAX, check_path};
