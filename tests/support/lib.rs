//! Test support: relays in process and as processes, clients, a daemon scripted frame by frame,
//! real daemons, a recorder of frames on the wire, a trace collector, a process census.
//!
//! Everything waits for events under one long deadline (`TEST_TIMEOUT`). Nothing sleeps and no
//! port is fixed. The tests make the assertions, except that a watch checks by itself that
//! revisions have no gap.

mod client;
mod host;
mod network;
mod scripted;
mod servers;
mod specs;
mod wait;

pub use client::lease_agent::{GrantedLease, LeaseAgent, agent_scope_spec};
pub use client::test_client::{TestClient, error_code};
pub use host::directory_copy::copy_directory;
pub use host::file_lease::lock_with_file_lease;
pub use host::mounted_disk::MountedDisk;
pub use host::process_census::{
    LiveProcess, MARKER_VARIABLE, attempt_processes, attempt_shim, attempt_variable,
    marked_processes, processes_by_attempt, wait_until_marked_gone,
};
pub use host::process_lifetime::{
    WatchedProcesses, boottime, earliest_start_time, is_stopped, send_signal,
};
pub use host::test_boot_id::TestBootId;
pub use host::test_clock::{TestClock, clocks_under_test};
pub use network::idle_gateway::IdleGateway;
pub use network::isolated_network::IsolatedNetwork;
pub use network::ports::unused_port;
pub use network::raw_link::{RawDaemonLink, call_raw_unary};
pub use network::raw_relay::{RawRelay, RawRelayStream};
pub use network::trace_collector::{TraceCollector, attribute_text};
pub use scripted::scripted_attempt::{ScriptedAttempt, receipt};
pub use scripted::scripted_daemon::{RelayStreamEvent, ScriptedDaemon, active_attempt, hello};
pub use servers::embedded_daemon::EmbeddedDaemon;
pub use servers::embedded_relay::EmbeddedRelay;
pub use servers::relay_and_daemon::RelayAndDaemon;
pub use servers::server_processes::{BatonExecutable, CommandOutput, DaemonProcess, RelayProcess};
pub use servers::small_disk::{SmallDiskDaemon, SmallDiskRelay, SmallDiskSpace};
pub use specs::standin_agents::{
    ASKING_AGENTS, CODING_AGENTS, scripted_task, scripted_task_with_prompt, standin_agents,
    standin_agents_toml,
};
pub use specs::task_specs::{
    agent_task, assert_counted_lines, command_task, counting_task, task_until_file,
    with_retry_on_loss,
};
pub use wait::{TEST_TIMEOUT, join_all, poll_until, test_rounds, wait_within};

pub use client::mcp_client::{AttemptToolAccess, McpClient, ToolAnswer};
pub use client::task_watch::{TaskWatch, recorded_ms};
pub use client::terminal::PseudoTerminal;
pub use network::frame_tap::{FrameListener, FrameTap, TappedFrame};
pub use network::tcp_proxy::{PassedTraffic, TcpProxy};
pub use network::tls_authority::{CertificateAuthority, ServerCertificate};
