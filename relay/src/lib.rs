//! The relay: store, dispatcher, sessions, output log, watch, API and telemetry.

pub mod api;
pub mod archive;
pub mod auth;
mod body_files;
pub mod clock;
pub mod config;
pub mod dispatcher;
mod id_source;
mod lookup_counter;
mod open_inputs;
pub mod output;
mod output_sealer;
mod private_dir;
pub mod reader;
mod records;
mod retention;
pub mod server;
pub mod session;
mod space;
pub mod store;
pub mod task_watchers;
pub mod telemetry;
#[cfg(test)]
mod test_samples;
mod unreadable_records;
