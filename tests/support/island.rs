//! A network of its own for a few processes, with one cable to this machine that can be pulled out. What is on its way is lost, and
//! nobody is told: TCP finds out by itself.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Networks for measurements (RFC 2544), which nobody else uses.
const NETWORK: &str = "198.18";
static NEXT: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
pub struct Island {
    name: String,
    cable: String,
    host: String,
}

impl Island {
    /// An error says why this machine lets nobody make one.
    pub fn make() -> Result<Self, String> {
        let process = std::process::id() % 10_000;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let block = format!("{NETWORK}.{}", (process % 250) as u8 ^ number);
        let island = Self {
            name: format!("baton-{process}-{number}"),
            cable: format!("btn{process}-{number}"),
            host: format!("{block}.1"),
        };
        let (name, cable) = (&island.name, &island.cable);
        ip(&["netns", "add", name])?;
        ip(&[
            "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name,
        ])?;
        ip(&["address", "add", &format!("{block}.1/30"), "dev", cable])?;
        ip(&[
            "-n",
            name,
            "address",
            "add",
            &format!("{block}.2/30"),
            "dev",
            "eth0",
        ])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "link", "set", "eth0", "up"])?;
        island.plug()?;
        Ok(island)
    }

    /// Where the island finds this machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The words before a command line that runs it there.
    pub fn wrapper(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name]
            .map(str::to_owned)
            .into()
    }

    /// Nothing passes, either way.
    pub fn unplug(&self) -> Result<(), String> {
        ip(&["link", "set", &self.cable, "down"])
    }

    pub fn plug(&self) -> Result<(), String> {
        ip(&["link", "set", &self.cable, "up"])
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        // The cable goes with it. There is nobody to tell if it was never there.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "ip {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("ip: {error}")),
    }
}
