//! Task specifications that tests submit, and the configuration of stand-in agents.
//! Builds values only: it calls nothing and waits for nothing.

pub(crate) mod standin_agents;
pub(crate) mod task_specs;
