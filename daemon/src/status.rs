//! What a daemon tells the program that it runs in, for health checks and for people.

/// The latest facts; a watch channel carries them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonStatus {
    /// A stream stands and the relay has said Welcome on it.
    pub connected: bool,
    /// Empty until the first Welcome.
    pub daemon_id: String,
    pub slots: u32,
    /// Attempts that hold a slot, accepted ones included.
    pub running: u32,
    pub draining: bool,
}
