//! A relay that starts again: the process becomes itself anew. Its store cannot go on after a full disk, and nobody may be there to
//! start it. Everything that must not be asked again goes along in one variable of the environment.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

const RESTART_VARIABLE: &str = "BATON_STARTED_AGAIN";

/// What the start before left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartState {
    /// Where it listened; daemons and clients know that address, also where the port was chosen by chance.
    pub(crate) listen: Option<SocketAddr>,
    /// How often it has started again by itself.
    pub(crate) restart_count: u64,
}

impl RestartState {
    pub(crate) fn from_environment() -> Self {
        let left = env::var(RESTART_VARIABLE).ok();
        left.and_then(|left| Self::parse(&left)).unwrap_or_default()
    }

    fn parse(left: &str) -> Option<Self> {
        let (listen, times) = left.split_once(' ')?;
        Some(Self {
            listen: Some(listen.parse().ok()?),
            restart_count: times.parse().ok()?,
        })
    }

    pub(crate) fn is_first_start(self) -> bool {
        self.restart_count == 0
    }

    /// Returns only if it cannot be done.
    pub(crate) fn restart(self, listen: SocketAddr) -> io::Error {
        exec_self(listen, self.restart_count + 1)
    }
}

/// The same executable, even if its file was replaced meanwhile: an upgrade is the operator's to begin. Locks, sockets and threads
/// go with the old one; the process id, its children and its standard streams stay.
fn exec_self(listen: SocketAddr, times: u64) -> io::Error {
    let mut words = env::args_os();
    let mut anew = Command::new("/proc/self/exe");
    if let Some(name) = words.next() {
        anew.arg0(name);
    }
    anew.args(words)
        .env(RESTART_VARIABLE, format!("{listen} {times}"));
    anew.exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_for_the_next_start_is_read_by_it() {
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
