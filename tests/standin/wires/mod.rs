//! The protocols of the stand-in agent, one file for each real program. Each translates the
//! player's steps into that program's messages, and the client's messages into inputs of the
//! player. The script decides what is played.

pub(crate) mod acp;
pub(crate) mod claude;
pub(crate) mod codex_app_server;
pub(crate) mod codex_exec;
