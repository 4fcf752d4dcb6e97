//! Peers of other versions. Every release leaves its protocol and a recorded conversation in `releases/`; each is
//! played both ways against the code as it stands: a daemon of that release against this relay, a relay of that release
//! against this daemon. A synthetic next version, with more fields, arms, enum values and features than anyone knows
//! yet, does the same. `README.md` says how a release is recorded.

mod descriptors;
mod dynamic_frames;
mod next_version;
mod old_daemon;
mod old_relay;
mod release_recorder;
mod releases;
mod tape;
mod unknown_values;

use baton_tests::BatonExecutable;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
