//! End-to-end tests with whole relays, real gRPC, real files and real processes. They check the
//! promises in docs/promises.md.

mod agents;
mod cli;
mod documents;
mod full_scenario;
mod leases;
mod operator;
mod protocol;
mod readability;
mod secret_search;
mod storage;
mod tasks;
mod tidy;

use baton_tests::BatonExecutable;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
const STANDIN: &str = env!("CARGO_BIN_EXE_standin");
