//! The wires that the stand-in agent speaks, one file for each real program.
//! Each translates the player's steps into that program's messages, and its client's messages into inputs of the player.
//! What is played is decided by the script, never here.

pub(crate) mod acp;
pub(crate) mod claude;
pub(crate) mod codex_app_server;
pub(crate) mod codex_exec;
