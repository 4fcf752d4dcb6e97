//! Tests of the export format and of the import into a data directory.

mod format;
mod import_takeover;
