//! A network of its own for a few processes, with one cable to this machine that can be pulled out. What is on its way is lost, and
//! nobody is told: TCP finds out by itself.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Networks for measurements (RFC 2544), which nobody else uses.
const NETWORK_PREFIX: &str = "198.18";
static NEXT_NUMBER: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
pub struct IsolatedNetwork {
    name: String,
    host_interface: String,
    host: String,
}

impl IsolatedNetwork {
    /// An error says why this machine lets nobody make one.
    pub fn create() -> Result<Self, String> {
        let process = std::process::id() % 10_000;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let block = format!("{NETWORK_PREFIX}.{}", (process % 250) as u8 ^ number);
        let island = Self {
            name: format!("baton-{process}-{number}"),
            host_interface: format!("btn{process}-{number}"),
            host: format!("{block}.1"),
        };
        let (name, cable) = (&island.name, &island.host_interface);
        run_ip(&["netns", "add", name])?;
        run_ip(&[
            "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name,
        ])?;
        run_ip(&["address", "add", &format!("{block}.1/30"), "dev", cable])?;
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
        island.set_link_up()?;
        Ok(island)
    }

    /// Where the island finds this machine.
    pub fn host_address(&self) -> &str {
        &self.host
    }

    /// The words before a command line that runs it there.
    pub fn command_prefix(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name]
            .map(str::to_owned)
            .into()
    }

    /// Nothing passes, either way.
    pub fn set_link_down(&self) -> Result<(), String> {
        run_ip(&["link", "set", &self.host_interface, "down"])
    }

    pub fn set_link_up(&self) -> Result<(), String> {
        run_ip(&["link", "set", &self.host_interface, "up"])
    }
}

impl Drop for IsolatedNetwork {
    fn drop(&mut self) {
        // The cable goes with it. There is nobody to tell if it was never there.
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
