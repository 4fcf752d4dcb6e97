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

pub use agent_held::{GrantedLease, LeaseAgent, agent_scope_spec};
pub use attempt::{ScriptedAttempt, receipt};
pub use bent_boot::TestBootId;
pub use bent_clock::{TestClock, clocks_under_test};
pub use census::{
    LiveProcess, MARKER_VARIABLE, attempt_processes, attempt_shim, attempt_variable,
    marked_processes, processes_by_attempt, wait_until_marked_gone, zombies_of,
};
pub use client::{TestClient, error_code};
pub use collector::{TraceCollector, attribute_text};
pub use daemon::EmbeddedDaemon;
pub use file_lease::lock_with_file_lease;
pub use files::copy_directory;
pub use gateway::IdleGateway;
pub use island::IsolatedNetwork;
pub use lifetimes::{WatchedProcesses, boottime, earliest_start_time, is_stopped, send_signal};
pub use mounted::MountedDisk;
pub use patience::{TEST_TIMEOUT, join_all, poll_until, test_rounds, wait_within};
pub use ports::unused_port;
pub use processes::{BatonExecutable, CommandOutput, DaemonProcess, RelayProcess};
pub use raw::{RawDaemonLink, call_raw_unary};
pub use raw_relay::{RawRelay, RawRelayStream};
pub use relay::EmbeddedRelay;
pub use scripted::{RelayStreamEvent, ScriptedDaemon, active_attempt, hello};
pub use small_disk::{SmallDiskDaemon, SmallDiskRelay, SmallDiskSpace};
pub use specs::{agent_task, command_task, with_retry_on_loss};
pub use standin::{
    ASKING_AGENTS, CODING_AGENTS, scripted_task, scripted_task_with_prompt, standin_agents,
    standin_agents_toml,
};

pub use tap::{FrameListener, FrameTap, TappedFrame};
pub use terminal::PseudoTerminal;
pub use tls_authority::{CertificateAuthority, ServerCertificate};
pub use tools::{AttemptToolAccess, McpClient, ToolAnswer};
pub use watching::{TaskWatch, recorded_ms};
pub use wire::{PassedTraffic, TcpProxy};
