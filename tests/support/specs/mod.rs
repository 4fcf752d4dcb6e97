//! Task specifications that tests submit, and the configuration of stand-in agents. This module
//! only builds values.

pub(crate) mod standin_agents;
pub(crate) mod task_specs;
