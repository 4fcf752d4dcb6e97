//! The gRPC interface: bad requests and frames, broken and idle streams, TLS, tenants, load.
//! These tests check codes and streams; the progress of tasks is in `tasks`.

pub(crate) mod attempt_frames;
pub(crate) mod bad_frames;
pub(crate) mod bad_requests;
pub(crate) mod blank_reasons;
pub(crate) mod broken_streams;
pub(crate) mod connection_liveness;
pub(crate) mod progress_flood;
pub(crate) mod reconnect_storm;
pub(crate) mod tenancy;
pub(crate) mod tls;
