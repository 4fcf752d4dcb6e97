//! Turns a dispatch into what is started: command line, environment, first message. Owns the
//! option checks of each kind of agent and the probe for installed programs and versions. Must
//! not read an agent's output and must not start attempts.

pub(crate) mod agent_launch;
pub(crate) mod coding_agent;
pub(crate) mod command_agent;
pub(crate) mod program_probe;
