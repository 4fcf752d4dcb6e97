//! The relay's address, TLS settings and token. Reads files; opens no connection.

use std::path::PathBuf;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::HANDSHAKE_TIMEOUT;
use crate::config::DaemonConfig;

/// Detects a relay that vanished without closing the stream, in addition to heartbeats.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the link is given up. All other errors are retried.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(
        "cannot read token file {path}: {source}; create one with `baton token create --role daemon`"
    )]
    TokenFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "token file {path} contains no token; create one with `baton token create --role daemon`"
    )]
    BadToken { path: PathBuf },
    #[error("{url:?} is not a relay address: {reason}; use http://host:port or https://host:port")]
    BadAddress { url: String, reason: String },
    #[error("cannot read CA file {path}: {source}")]
    CaFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{path} contains no certificate; pass the PEM file of the authority that signed the relay's certificate"
    )]
    NoAuthority { path: PathBuf },
    #[error("the relay refused this daemon's token: {message}; create one with role daemon")]
    Refused { message: String },
    #[error(
        "the relay and this daemon have no common protocol version: {message}; upgrade the older one"
    )]
    Version { message: String },
}

/// The beginning of a certificate in a PEM file.
const PEM_CERTIFICATE_HEADER: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The address and its settings, checked once at the start.
pub(crate) fn endpoint(config: &DaemonConfig) -> Result<Endpoint, LinkError> {
    let bad = |reason: String| LinkError::BadAddress {
        url: config.relay.clone(),
        reason,
    };
    let mut endpoint = Endpoint::from_shared(config.relay.clone())
        .map_err(|error| bad(error.to_string()))?
        .connect_timeout(HANDSHAKE_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    match endpoint.uri().scheme_str() {
        Some("http") => return Ok(endpoint),
        Some("https") => {}
        Some(_) | None => return Err(bad("unknown scheme".to_owned())),
    }
    endpoint = endpoint
        .tls_config(tls_config(config)?)
        .map_err(|error| bad(error.to_string()))?;
    Ok(endpoint)
}

/// The configured authority, or those of the system.
fn tls_config(config: &DaemonConfig) -> Result<ClientTlsConfig, LinkError> {
    let Some(path) = &config.ca_file else {
        return Ok(ClientTlsConfig::new().with_native_roots());
    };
    let pem = std::fs::read(path).map_err(|source| LinkError::CaFile {
        path: path.clone(),
        source,
    })?;
    // Without this check every relay would appear to have an unknown certificate.
    if !pem
        .windows(PEM_CERTIFICATE_HEADER.len())
        .any(|at| at == PEM_CERTIFICATE_HEADER)
    {
        return Err(LinkError::NoAuthority { path: path.clone() });
    }
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
}

/// The token as it is sent in the request.
pub(crate) fn read_token(path: &PathBuf) -> Result<MetadataValue<Ascii>, LinkError> {
    let text = std::fs::read_to_string(path).map_err(|source| LinkError::TokenFile {
        path: path.clone(),
        source,
    })?;
    let bad = || LinkError::BadToken { path: path.clone() };
    let token = text.trim();
    if token.is_empty() {
        return Err(bad());
    }
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| bad())?;
    value.set_sensitive(true);
    Ok(value)
}
