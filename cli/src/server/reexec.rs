//! Restart of a relay by exec of the same executable. The store cannot continue after a full disk, and there
//! may be no supervisor that restarts the process. State that must survive the restart is passed in one environment
//! variable.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

const RESTART_VARIABLE: &str = "BATON_STARTED_AGAIN";

/// State from the previous start of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartState {
    /// The previous address. Daemons and clients use it, also if the port was chosen by the system.
    pub(crate) listen: Option<SocketAddr>,
    /// Number of restarts so far.
    pub(crate) restart_count: u64,
}

impl RestartState {
    pub(crate) fn from_environment() -> Self {
        let value = env::var(RESTART_VARIABLE).ok();
        value
            .and_then(|value| Self::parse(&value))
            .unwrap_or_default()
    }

    fn parse(value: &str) -> Option<Self> {
        let (listen, count) = value.split_once(' ')?;
        Some(Self {
            listen: Some(listen.parse().ok()?),
            restart_count: count.parse().ok()?,
        })
    }

    pub(crate) fn is_first_start(self) -> bool {
        self.restart_count == 0
    }

    /// Returns only if the restart failed.
    pub(crate) fn restart(self, listen: SocketAddr) -> io::Error {
        exec_self(listen, self.restart_count + 1)
    }
}

/// Executes the same executable even if its file was replaced meanwhile: only the operator starts an upgrade. Locks,
/// sockets and threads of the old program end; the process id, its children and its standard streams stay.
fn exec_self(listen: SocketAddr, restart_count: u64) -> io::Error {
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command
        .args(arguments)
        .env(RESTART_VARIABLE, format!("{listen} {restart_count}"));
    command.exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_restart_state_is_parsed_from_its_text() {
        let listen: SocketAddr = "127.0.0.1:7070".parse().unwrap();
        let again = RestartState::parse(&format!("{listen} 3"));
        assert_eq!(
            again,
            Some(RestartState {
                listen: Some(listen),
                restart_count: 3
            })
        );
        for wrong in ["", "3", "127.0.0.1:7070", "localhost 3", "127.0.0.1:7070 x"] {
            assert_eq!(RestartState::parse(wrong), None, "{wrong}");
        }
    }
}
