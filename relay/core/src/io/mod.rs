//! Inputs and outputs of the core: commands and daemon messages, effects, replies, views,
//! rejections. Also which stored records a command needs (stored_lookup) and the gate that
//! delays deliveries until their commit is durable. Contains data types and pure bookkeeping
//! only: no decision about a task, an attempt or a daemon is made here.

pub(crate) mod attempt_report;
pub mod command;
pub mod durability_gate;
pub mod effects;
pub mod rejection;
pub mod session_input;
pub mod stored_lookup;
pub(crate) mod views;
