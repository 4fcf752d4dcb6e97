//! Exports as bytes, and as the way from one directory to another.

mod format;
mod import_takeover;
