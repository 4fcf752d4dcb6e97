//! The relay: store, dispatcher, sessions, output log, watch, API and telemetry.

pub mod api;
pub mod auth;
pub mod clock;
pub mod config;
pub mod output;
pub mod store;
