//! Commands that run or check a server on this machine: up (with its demo), relay, daemon, health.
//! Turns flags into start options; starting is done in cli/src/server.

pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod health;
pub(crate) mod relay;
pub(crate) mod up;
