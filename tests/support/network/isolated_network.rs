//! A separate network for a few processes, with one link to this machine that can be set down.
//! Packets are then lost without an error, so TCP has to detect it.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Network range for benchmarks (RFC 2544), which is otherwise unused.
const NETWORK_PREFIX: &str = "198.18";
static NEXT_NUMBER: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
pub struct IsolatedNetwork {
    name: String,
    host_interface: String,
    host: String,
}

impl IsolatedNetwork {
    /// The error explains why this machine cannot create a network.
    pub fn create() -> Result<Self, String> {
        let process = std::process::id() % 10_000;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let block = format!("{NETWORK_PREFIX}.{}", (process % 250) as u8 ^ number);
        let network = Self {
            name: format!("baton-{process}-{number}"),
            host_interface: format!("btn{process}-{number}"),
            host: format!("{block}.1"),
        };
        let (name, link) = (&network.name, &network.host_interface);
        run_ip(&["netns", "add", name])?;
        run_ip(&[
            "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name,
        ])?;
        run_ip(&["address", "add", &format!("{block}.1/30"), "dev", link])?;
        run_ip(&[
            "-n",
            name,
            "address",
            "add",
            &format!("{block}.2/30"),
            "dev",
            "eth0",
        ])?;
        run_ip(&["-n", name, "link", "set", "lo", "up"])?;
        run_ip(&["-n", name, "link", "set", "eth0", "up"])?;
        network.set_link_up()?;
        Ok(network)
    }

    /// The address of this machine within the network.
    pub fn host_address(&self) -> &str {
        &self.host
    }

    /// The command prefix that runs a program in the network.
    pub fn command_prefix(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name]
            .map(str::to_owned)
            .into()
    }

    /// No packet passes in either direction.
    pub fn set_link_down(&self) -> Result<(), String> {
        run_ip(&["link", "set", &self.host_interface, "down"])
    }

    pub fn set_link_up(&self) -> Result<(), String> {
        run_ip(&["link", "set", &self.host_interface, "up"])
    }
}

impl Drop for IsolatedNetwork {
    fn drop(&mut self) {
        // The link is deleted with it. An error means that it was never created.
        let _ = run_ip(&["netns", "delete", &self.name]);
    }
}

fn run_ip(arguments: &[&str]) -> Result<(), String> {
    match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "ip {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("ip: {error}")),
    }
}
