//! The configuration of a relay, checked before anything is opened.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::auth::bootstrap::BootstrapTokens;
use crate::clock::RelayClock;

#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Directory of the store, the output and the token files; created if missing.
    pub data_dir: PathBuf,
    /// Port 0 takes a free port; the handle returned by `server::start` has the actual one.
    pub listen: SocketAddr,
    pub tls: Option<TlsFiles>,
    /// Allow a listener that other machines can reach without TLS. Tokens then cross the
    /// network unencrypted.
    pub insecure: bool,
    pub bootstrap_tokens: BootstrapTokens,
    pub network: NetworkLimits,
    pub hello_rates: HelloRates,
    /// Start although acknowledged changes are missing; see the store.
    pub accept_loss: bool,
    /// Limits on open tasks: of all tenants together, and of one tenant.
    pub max_open_tasks: usize,
    pub max_open_tasks_per_tenant: usize,
    pub retention: RetentionConfig,
    /// Time from the stop signal to the end, including peers that never read.
    pub drain_timeout: Duration,
    /// The OTLP collector that receives a trace of each task. Without it, the OTEL_* variables
    /// may set one.
    pub otlp_endpoint: Option<String>,
    pub clock: RelayClock,
    /// Restarts the process after its disk was full. Without it the process aborts, so that a
    /// service manager can restart it.
    pub restart_hook: Option<RestartHook>,
    /// Number of such restarts so far.
    pub restart_count: u64,
}

/// Restarts the process on the given listen address. Returns only if that fails.
#[derive(Clone)]
pub struct RestartHook(Arc<dyn Fn(SocketAddr) -> io::Error + Send + Sync>);

impl RestartHook {
    pub fn new(restart: impl Fn(SocketAddr) -> io::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(restart))
    }

    pub(crate) fn call(&self, listen: SocketAddr) {
        tracing::error!("disk full: restarting the relay");
        let error = (self.0)(listen);
        tracing::error!(%error, "relay could not restart itself");
    }
}

impl fmt::Debug for RestartHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restart")
    }
}

/// How long finished work is kept, and how much of it. Live and parked work is never removed.
#[derive(Clone, Debug)]
pub struct RetentionConfig {
    /// Finished tasks and output older than this are removed.
    pub max_age: Duration,
    /// The oldest are removed when the data directory takes more than this. Output may take up
    /// to `max_output_bytes` of it.
    pub max_bytes: u64,
    pub max_output_bytes: u64,
    /// A finished task stays at least this long, whatever the size.
    pub min_age: Duration,
    /// Daemons that have not connected for longer than this are forgotten.
    pub daemon_max_age: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self::within(10 << 30)
    }
}

impl RetentionConfig {
    /// The usual ages, with three quarters of `max_bytes` for output.
    pub fn within(max_bytes: u64) -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Self {
            max_age: days(14),
            max_bytes,
            max_output_bytes: max_bytes / 4 * 3,
            min_age: Duration::from_secs(60),
            daemon_max_age: days(30),
        }
    }

    /// What is left for records and long bodies.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.max_output_bytes)
    }
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Limits for one peer and for all of them together. Connections can use at most `connections`
/// × `connection_window` of memory: 1 GiB with these defaults, if every peer were hostile. The
/// limits for calls are in `server/call_limits.rs`.
#[derive(Clone, Debug)]
pub struct NetworkLimits {
    pub connections: usize,
    pub connections_per_address: usize,
    /// Streams of one connection. A daemon needs one; a client needs a few dozen submits and
    /// some watches.
    pub streams_per_connection: u32,
    /// Unary calls in the handlers at one time; more are refused at once, not queued.
    pub unary_in_flight: usize,
    /// Long-lived client streams (watch, followed output) of one token.
    pub live_streams_per_token: usize,
    pub unary_timeout: Duration,
    pub handshake_timeout: Duration,
    /// Time from accepting a connection to the first call with a credential. After that the
    /// connection is closed as soon as no call is in progress.
    pub credential_timeout: Duration,
    pub keepalive_interval: Duration,
    pub keepalive_timeout: Duration,
    pub stream_window: u32,
    pub connection_window: u32,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 1_024,
            streams_per_connection: 256,
            unary_in_flight: 8_192,
            live_streams_per_token: 1_024,
            unary_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            credential_timeout: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(15),
            keepalive_timeout: Duration::from_secs(10),
            stream_window: 256 * 1024,
            connection_window: 256 * 1024,
        }
    }
}

/// How many daemons are admitted each second when many connect at once.
#[derive(Clone, Copy, Debug)]
pub struct HelloRates {
    /// Daemons with running attempts, whose leases must be renewed in time.
    pub holders_per_second: u32,
    pub idle_per_second: u32,
}

impl Default for HelloRates {
    fn default() -> Self {
        Self {
            holders_per_second: 1_000,
            idle_per_second: 500,
        }
    }
}

impl RelayConfig {
    pub fn new(data_dir: PathBuf, listen: SocketAddr) -> Self {
        Self {
            data_dir,
            listen,
            tls: None,
            insecure: false,
            bootstrap_tokens: BootstrapTokens::default(),
            network: NetworkLimits::default(),
            hello_rates: HelloRates::default(),
            accept_loss: false,
            max_open_tasks: 100_000,
            max_open_tasks_per_tenant: 50_000,
            retention: RetentionConfig::default(),
            drain_timeout: Duration::from_secs(30),
            otlp_endpoint: None,
            clock: RelayClock::system(),
            restart_hook: None,
            restart_count: 0,
        }
    }

    /// Tokens are bearer secrets, so a listener that other machines can reach needs TLS or an
    /// explicit `--insecure`.
    pub fn check(&self) -> Result<(), RelayConfigError> {
        let exposed = !self.listen.ip().is_loopback();
        if exposed && self.tls.is_none() && !self.insecure {
            return Err(RelayConfigError::ExposedWithoutTls(self.listen));
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RelayConfigError {
    #[error(
        "refusing to listen on {0} without TLS: tokens would cross the network unencrypted; \
         pass --tls-cert and --tls-key, listen on 127.0.0.1, or pass --insecure if the connection is encrypted elsewhere"
    )]
    ExposedWithoutTls(SocketAddr),
    #[error("cannot read the TLS {what} {path}: {source}; use a PEM file that the relay can read")]
    TlsFile {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exposed_listener_without_tls_needs_the_insecure_flag() {
        let config = |listen: &str| RelayConfig::new("d".into(), listen.parse().unwrap());
        assert!(config("127.0.0.1:0").check().is_ok());
        assert!(config("[::1]:0").check().is_ok());
        for exposed in ["0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070"] {
            let mut config = config(exposed);
            assert!(config.check().is_err(), "{exposed}");
            config.insecure = true;
            assert!(config.check().is_ok(), "{exposed}");
        }
    }
}
