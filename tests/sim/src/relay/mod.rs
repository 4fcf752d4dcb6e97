//! The relay around the real core: its loop, its durability gate, its store with crashes, its
//! output log, and its deliveries. The core decides; this folder only does what the shell does
//! around it. Assertions belong in checks/.

pub(crate) mod delivery;
pub(crate) mod output_log;
pub(crate) mod relay_input;
pub(crate) mod sim_relay;
pub(crate) mod sim_reply;
pub(crate) mod sim_store;
