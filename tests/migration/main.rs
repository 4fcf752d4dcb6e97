//! Data of older schemas. `schema-1/` is a data directory written with schema 1. The current
//! relay must serve it, and a newer version must migrate it even if it is killed repeatedly.
//! `README.md` describes how a directory is recorded.
//!
//! A separate executable, because it replaces C library functions to count the writes of a
//! process and to kill it at a chosen one (`write_counter.rs`).

mod migration_kills;
mod old_schema;
mod schema_fixture;
mod schema_recorder;
mod write_counter;

use baton_tests::BatonExecutable;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
