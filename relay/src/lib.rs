//! The relay: store, dispatcher, sessions, output log, watch, API and telemetry.

pub mod output;
pub mod store;
