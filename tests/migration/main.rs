//! Data of older versions. `schema-1/` is a relay's directory as schema 1 wrote it; today's relay must serve it, and a
//! newer version must bring it up through any number of kills. `README.md` says how a directory is made.
//!
//! Its own executable: it puts itself between the standard library and the kernel to count and to cut short what a
//! process writes (`writes.rs`).

mod migration_kills;
mod old_schema;
mod schema_fixture;
mod schema_recorder;
mod write_counter;

use baton_tests::BatonExecutable;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
