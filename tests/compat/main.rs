//! Compatibility with peers of other versions. Every release has its protocol and a recorded
//! conversation in `releases/`. Each is replayed in both directions against the current code: a
//! daemon of that release against this relay, and a relay of that release against this daemon.
//! A synthetic next version, with additional fields, arms, enum values and features, is tested
//! the same way. `README.md` describes how a release is recorded.

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
