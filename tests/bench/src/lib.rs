//! The load generator behind `baton bench`. It starts a relay as a process of its own, connects
//! simulated daemons over real gRPC and runs five kinds of load. A figure counts only work that the
//! relay has acknowledged as durable. docs/benchmarks.md explains how to use it.
//!
//! This crate measures and reports data. It parses no flags and prints nothing: the caller passes
//! the path of the baton executable and a [`progress::BenchProgress`], and renders the report.

mod client;
mod clock;
pub mod compare;
pub mod environment;
pub mod error;
mod fleet;
pub mod load;
pub mod measure;
pub mod output;
pub mod progress;
pub mod recover;
pub mod storm;
pub mod tasks;
pub mod watch;

use std::time::Duration;

/// Acknowledged work has to complete within this time after the load stops.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
