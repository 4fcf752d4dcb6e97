//! Translates the wire of each coding agent (claude, codex, ACP) into common agent events, and
//! answers back into its wire. Pure: bytes in, events out; no clock, files or random numbers.
//! The state is stored in every snapshot, so serialized field names must not change and
//! everything remembered is bounded.

pub(crate) mod acp;
pub(crate) mod agent_event;
pub(crate) mod claude;
pub(crate) mod codex;
pub(crate) mod elicitation_form;
pub(crate) mod json_rpc;
pub(crate) mod line_splitter;
pub(crate) mod recent_memory;
pub(crate) mod translator;
pub(crate) mod turn_state;
