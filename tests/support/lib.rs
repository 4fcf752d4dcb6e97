//! What the tests stand on: relays in process and as processes, clients, a daemon that follows a script frame by
//! frame, real daemons, a tap on the wire, a collector of traces, a census of processes.
//!
//! Everything waits for events under one generous deadline (`PATIENCE`); nothing sleeps and no port is fixed. What is
//! checked is the tests' business, but a watch checks by itself that revisions have no gap.

mod agent_held;
mod asking;
mod attempt;
mod bent_boot;
mod bent_clock;
mod census;
mod client;
mod collector;
mod daemon;
mod file_lease;
mod files;
mod gateway;
mod island;
mod lifetimes;
mod mounted;
mod patience;
mod ports;
mod processes;
mod raw;
mod raw_relay;
mod relay;
mod scripted;
mod small_disk;
mod specs;
mod standin;
mod tap;
mod terminal;
mod tls_authority;
mod tools;
mod watching;
mod wire;

pub use agent_held::{Agent, Lease, for_scope};
pub use attempt::{ScriptedAttempt, receipt};
pub use bent_boot::BentBoot;
pub use bent_clock::{BentClock, clocks_under_test};
pub use census::{
    MARK, Process, by_attempt, marked, marked_gone, of_attempt, shim_of, variable_of, zombies_of,
};
pub use client::{Client, code_of};
pub use collector::{Collector, attribute};
pub use daemon::RealDaemon;
pub use file_lease::lease_of;
pub use files::copy_directory;
pub use gateway::Gateway;
pub use island::Island;
pub use lifetimes::{Watched, boottime, first_began, is_stopped, signal};
pub use mounted::Mounted;
pub use patience::{PATIENCE, poll_until, rounds, together, within};
pub use ports::quiet_port;
pub use processes::{Baton, DaemonProcess, RelayProcess, Said};
pub use raw::{RawLink, raw_unary};
pub use raw_relay::{RawRelay, RawStream};
pub use relay::Relay;
pub use scripted::{Heard, ScriptedDaemon, active, hello};
pub use small_disk::{Room, SmallDisk, SmallRelay};
pub use specs::{command, for_agent, retried};
pub use standin::{
    ASKING_AGENTS, CODING_AGENTS, coding_agents, coding_agents_file, played, played_from_the_start,
};

pub use tap::{Listener, Tap, Taped};
pub use terminal::Terminal;
pub use tls_authority::{Authority, Certified};
pub use tools::{Handed, Told, Tools};
pub use watching::{Watch, recorded_ms};
pub use wire::{Passing, Wire};
