//! Answers health checks: always over a Unix socket in the data directory, and over TCP if
//! configured. It supports as much HTTP as a probe, a load balancer and curl need: GET, one
//! answer, close.
//!
//! `/healthz`: does work reach this daemon? `/livez`: does its loop turn? A supervisor that
//! restarts containers should use the second: a relay that is away for a minute is no reason to
//! restart a daemon.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;

use crate::clock::{BootTime, Clock};
use crate::health::daemon_status::{DaemonStatus, HealthProblem};
use crate::storage::private_socket;
use crate::storage::private_socket::{descriptor_path, open_dir};

const HEALTH_SOCKET: &str = "health.sock";
/// The longest request that is read; probes send a few hundred bytes.
const REQUEST_BYTES: usize = 8 * 1024;
/// Concurrent requests. Above it the next one waits in the listener's backlog.
const CONCURRENT_REQUESTS_MAX: usize = 16;
/// The time limit of one request, from accept to the last byte.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client waits for a daemon that may hang.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("cannot answer health checks in {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot answer health checks on {address}: {source}; choose another --health address")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Bound, but not serving yet.
#[derive(Debug)]
pub(crate) struct HealthServer {
    unix: StdUnixListener,
    tcp: Option<std::net::TcpListener>,
}

impl HealthServer {
    /// The directory belongs to this process, so an existing socket in it is a leftover.
    pub(crate) fn bind(data_dir: &Path, tcp: Option<SocketAddr>) -> Result<Self, HealthError> {
        let unix = private_socket::bind(data_dir, HEALTH_SOCKET).map_err(|source| {
            HealthError::Socket {
                path: data_dir.join(HEALTH_SOCKET),
                source,
            }
        })?;
        let bound = |address: SocketAddr| {
            let listener = std::net::TcpListener::bind(address)
                .and_then(|tcp| tcp.set_nonblocking(true).map(|()| tcp));
            listener.map_err(|source| HealthError::Listen { address, source })
        };
        Ok(Self {
            unix,
            tcp: tcp.map(bound).transpose()?,
        })
    }

    /// The address it listens on, with the chosen port for port 0.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(
        self,
        status: watch::Receiver<DaemonStatus>,
        clock: Clock,
    ) -> io::Result<()> {
        let unix = UnixListener::from_std(self.unix)?;
        let tcp = self.tcp.map(TcpListener::from_std).transpose()?;
        let mut open = JoinSet::new();
        loop {
            let (status, clock) = (status.clone(), clock.clone());
            let room = open.len() < CONCURRENT_REQUESTS_MAX;
            let accepted = tokio::select! {
                Some(_) = open.join_next() => continue,
                accepted = unix.accept(), if room => accepted.map(|(peer, _)| {
                    open.spawn(serve_connection(peer, status, clock));
                }),
                accepted = accept_tcp(tcp.as_ref()), if room => accepted.map(|peer| {
                    open.spawn(serve_connection(peer, status, clock));
                }),
            };
            if let Err(error) = accepted {
                debug!(%error, "a health check was not accepted");
                // Out of file descriptors: an immediate retry would spin.
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

async fn accept_tcp(tcp: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match tcp {
        Some(tcp) => tcp.accept().await.map(|(peer, _)| peer),
        None => std::future::pending().await,
    }
}

async fn serve_connection(
    mut peer: impl AsyncRead + AsyncWrite + Unpin,
    status: watch::Receiver<DaemonStatus>,
    clock: Clock,
) {
    let exchange = async {
        let request = read_request(&mut peer).await?;
        let reply = build_response(&request, &status.borrow().clone(), clock.now());
        peer.write_all(reply.as_bytes()).await?;
        peer.shutdown().await
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a health check was interrupted"),
        Err(_) => debug!("a health check took too long"),
    }
}

/// Reads up to the empty line that ends a request's head.
async fn read_request(peer: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES {
        if peer.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// The body of a health check's answer.
#[derive(Serialize)]
struct HealthReply<'a> {
    healthy: bool,
    /// Empty when the daemon is healthy.
    problem: String,
    connected: bool,
    daemon_id: &'a str,
    slots: u32,
    running: u32,
    draining: bool,
    /// Since the relay's last answer.
    silent_ms: Option<u64>,
}

fn build_response(request: &str, status: &DaemonStatus, now: BootTime) -> String {
    let mut parts = request.split_whitespace();
    let (method, path) = (parts.next(), parts.next());
    let problem = match (method, path) {
        (Some("GET" | "HEAD"), Some("/healthz")) => status.problem(now),
        (Some("GET" | "HEAD"), Some("/livez")) => status.stuck_problem(now),
        (Some("GET" | "HEAD"), _) => {
            return http_response("404 Not Found", "use /healthz or /livez\n", true);
        }
        _ => return http_response("400 Bad Request", "use GET\n", true),
    };
    let code = match problem {
        None => "200 OK",
        Some(_) => "503 Service Unavailable",
    };
    let body = serde_json::to_string(&health_reply(status, problem, now)).unwrap_or_default();
    http_response(code, &format!("{body}\n"), method == Some("GET"))
}

fn health_reply(
    status: &DaemonStatus,
    problem: Option<HealthProblem>,
    now: BootTime,
) -> HealthReply<'_> {
    let silent = status
        .relay_contact
        .map(|contact| contact.at.until(now).as_millis());
    HealthReply {
        healthy: problem.is_none(),
        problem: problem.map_or_else(String::new, |problem| problem.to_string()),
        connected: status.connected,
        daemon_id: &status.daemon_id,
        slots: status.slots,
        running: status.running,
        draining: status.draining,
        silent_ms: silent.and_then(|ms| u64::try_from(ms).ok()),
    }
}

fn http_response(code: &str, body: &str, with_body: bool) -> String {
    let length = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {code}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\nconnection: close\r\n\r\n{body}"
    )
}

/// The result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckResult {
    pub healthy: bool,
    /// One JSON object.
    pub json: String,
}

/// Checks the daemon that runs on this directory. An error means that no daemon answers.
pub fn check(data_dir: &Path) -> io::Result<HealthCheckResult> {
    let dir = open_dir(data_dir)?;
    let mut peer = StdUnixStream::connect(descriptor_path(&dir, HEALTH_SOCKET))?;
    peer.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    peer.write_all(b"GET /healthz HTTP/1.1\r\nhost: daemon\r\n\r\n")?;
    let mut answer = String::new();
    peer.read_to_string(&mut answer)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not a daemon's answer");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let code = head.split_whitespace().nth(1).ok_or_else(malformed)?;
    Ok(HealthCheckResult {
        healthy: code == "200",
        json: body.trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::health::daemon_status::RelayContact;

    fn well(now: BootTime) -> DaemonStatus {
        DaemonStatus {
            connected: true,
            relay_contact: Some(RelayContact {
                at: now,
                interval: Duration::from_secs(5),
            }),
            disconnect_reason: String::new(),
            ..DaemonStatus::new("d-1", 4, now)
        }
    }

    #[test]
    fn a_daemon_without_answers_of_the_relay_is_unhealthy_but_alive() {
        let now = BootTime::from_millis(100_000);
        let mut status = well(now);
        let ask = |line: &str, status: &DaemonStatus, at: BootTime| {
            build_response(&format!("{line} HTTP/1.1\r\n\r\n"), status, at)
        };
        let healthy = ask("GET /healthz", &status, now);
        assert!(healthy.starts_with("HTTP/1.1 200 OK\r\n"), "{healthy}");
        assert!(healthy.ends_with("\"silent_ms\":0}\n"), "{healthy}");
        let later = now.after(Duration::from_secs(12));
        status.loop_turned_at = later;
        let unanswered = ask("GET /healthz", &status, later);
        assert!(unanswered.starts_with("HTTP/1.1 503 "), "{unanswered}");
        assert!(
            unanswered.contains("has not answered for 12 s"),
            "{unanswered}"
        );
        assert!(ask("GET /livez", &status, later).starts_with("HTTP/1.1 200 "));
        let head = ask("HEAD /healthz", &status, later);
        assert!(head.ends_with("\r\n\r\n") && head.contains("503"), "{head}");
        assert!(ask("GET /", &status, later).starts_with("HTTP/1.1 404 "));
        assert!(ask("POST /healthz", &status, later).starts_with("HTTP/1.1 400 "));
        assert!(build_response("", &status, later).starts_with("HTTP/1.1 400 "));
    }

    #[tokio::test]
    async fn health_checks_work_in_a_deep_directory_with_a_leftover_socket() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d".repeat(200));
        fs::create_dir(&dir).unwrap();
        drop(private_socket::bind(&dir, HEALTH_SOCKET).unwrap());
        let checks = HealthServer::bind(&dir, Some("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = checks.address().unwrap();
        let clock = Clock::boot();
        let (status, receiver) = watch::channel(well(clock.now()));
        let answering = tokio::spawn(checks.serve(receiver, clock.clone()));
        // A client that sends nothing does not delay others.
        let _silent = tokio::net::TcpStream::connect(address).await.unwrap();
        let ask = || {
            let dir = dir.clone();
            async { tokio::task::spawn_blocking(move || check(&dir)).await }
        };
        assert!(ask().await.unwrap().unwrap().healthy);
        status.send_modify(|status| status.relay_contact = None);
        let unhealthy = ask().await.unwrap().unwrap();
        assert!(
            !unhealthy.healthy && unhealthy.json.contains("no stream"),
            "{unhealthy:?}"
        );
        answering.abort();
        assert!(answering.await.unwrap_err().is_cancelled());
        assert!(ask().await.unwrap().is_err(), "the server is gone");
    }
}
