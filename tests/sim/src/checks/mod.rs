//! The promises. Each check examines one record change, input, delivery or removal and panics
//! with the promise's name. Checks compare the states before and after and must not affect the
//! simulation.

pub(crate) mod agent_calls;
pub(crate) mod deadlines;
pub(crate) mod durable_delivery;
pub(crate) mod goal_records;
pub(crate) mod input_effects;
pub(crate) mod late_result;
pub(crate) mod parked_task;
pub(crate) mod permission_rules;
pub(crate) mod record_change;
pub(crate) mod required_files;
pub(crate) mod retention;
pub(crate) mod task_change;
