//! Whole relays, real gRPC, real files, real processes: what the README promises, one sentence per test.

mod agents;
mod cli;
mod full_scenario;
mod leases;
mod operator;
mod protocol;
mod storage;
mod tasks;
mod tidy;

use baton_tests::BatonExecutable;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
const STANDIN: &str = env!("CARGO_BIN_EXE_standin");
