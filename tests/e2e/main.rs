//! Whole relays, real gRPC, real files, real processes: what the README promises, one sentence per test.

mod admission;
mod agents;
mod asking;
mod bad_frames;
mod bad_requests;
mod broken_streams;
mod cancel;
mod clocks;
mod command_line;
mod conversations;
mod damage;
mod disk_full;
mod export;
mod fencing;
mod forgetting;
mod handing_over;
mod holding_on;
mod import;
mod inbox;
mod inherited;
mod late;
mod life;
mod liveness;
mod processes;
mod profiles;
mod relay_disk_full;
mod restart;
mod results_survive;
mod retention;
mod storm;
mod surroundings;
mod suspend;
mod systemd;
mod tenancy;
mod tidy;
mod tls;
mod tracing;
mod up;
mod upgrade;
mod wire;
mod workspaces;

use baton_tests::Baton;

const BATON: Baton = Baton::new(env!("CARGO_BIN_EXE_baton-under-test"));
const STANDIN: &str = env!("CARGO_BIN_EXE_standin");
