//! Starts and stops a relay and a daemon inside this process: configuration, logging, signals, re-exec after a
//! full disk, open-file limit. The only folder that uses the libraries baton_relay and baton_daemon to run servers
//! or to read a relay's data directory. Must not parse flags other than those of logging.

pub(crate) mod logging;
pub(crate) mod open_files;
pub(crate) mod reexec;
pub(crate) mod relay_data;
pub(crate) mod start;
pub(crate) mod stop_signals;
