//! The daemon's side of what an agent says through its tools: a socket in the data directory, a capability for each attempt
//! whose task asks for tools, and calls that become frames of that attempt and no other. Whoever has the capability may
//! speak for the attempt while it runs; it proves nothing to the relay and nothing about another attempt.

mod capability;
mod client;
mod desk;
mod granted;
mod shares;

pub(crate) use capability::{Capability, CapabilityHash};
pub use client::{Place, ask, find};
pub(crate) use desk::{Asked, CALLS, Desk, Step, detail, noted, refused};
pub use granted::own_program;
pub(crate) use granted::{Granted, Handed, Tooling};

/// In the agent's environment, and so in that of everything it starts: the right to speak for its attempt.
pub const CAPABILITY: &str = "BATON_CAPABILITY";
/// Where to say it.
pub const SOCKET: &str = "BATON_TOOLS_SOCKET";

/// The socket's name in the data directory.
pub(crate) const SOCKET_FILE: &str = "tools.sock";
