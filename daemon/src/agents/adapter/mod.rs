//! Translates the wire of each coding agent (claude, codex, ACP) into the same agent events, and answers back into its wire.
//! Pure: bytes in, events out; no clock, no files, no random numbers.
//! Its state is stored in every snapshot, so field names that are serialized must not change and everything remembered is bounded.

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
