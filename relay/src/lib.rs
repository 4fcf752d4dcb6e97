//! The relay: store, dispatcher, sessions, output log, watch, API and telemetry.

pub mod api;
pub mod archive;
pub mod auth;
mod bodies;
pub mod clock;
pub mod config;
pub mod dispatcher;
mod inbox;
mod look_ups;
mod mint;
pub mod output;
mod private_dir;
pub mod reader;
mod records;
mod retention;
#[cfg(test)]
mod samples;
mod sealer;
pub mod server;
pub mod session;
mod space;
pub mod store;
pub mod telemetry;
mod unreadable;
pub mod watch;
mod wire;
