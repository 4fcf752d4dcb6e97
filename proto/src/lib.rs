//! The wire protocol `baton.v1`: generated messages and services, short enum names, JSON output
//! and trace context.
//!
//! This crate defines the messages and makes no decisions. PROTOCOL.md describes their meaning.

pub mod codes;
mod disk_space;
mod error_detail;
mod json;
mod secret_debug;
mod short_name;
mod timestamp;
mod trace_parent;
pub mod verbs;

pub use disk_space::low_disk_space_threshold;
pub use error_detail::{pack_error_detail, unpack_error_detail};
pub use json::{lossy_text, to_json};
pub use short_name::{ShortName, UnknownShortName, short_name_of};
pub use timestamp::{timestamp_from_ms, timestamp_to_ms};
pub use trace_parent::TraceParent;

/// Version of the protocol that this crate implements, sent in Hello and Welcome.
pub const PROTOCOL_VERSION: u32 = 1;

/// The largest message that both sides of a link encode and decode: 2 MiB for the body and a
/// margin for its envelope. If one side had a smaller limit, the same frame would break every
/// stream that it is sent on.
pub const MAX_WIRE_BYTES: usize = 2 * 1024 * 1024 + 64 * 1024;

/// Replaces the digest of an attempt's uncommitted changes if it could not be computed.
pub const UNKNOWN_DIGEST: &str = "unknown";

/// Every file of the protocol with its imports and comments, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("baton_descriptor");

/// Messages, clients and servers of `baton.v1`.
#[expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::too_many_lines,
    reason = "generated code cannot be changed here"
)]
pub mod v1 {
    tonic::include_proto!("baton.v1");
    include!(concat!(env!("OUT_DIR"), "/short_names.rs"));
}

/// Messages between a daemon and its shims, and records on the daemon's disk. They never cross
/// the network.
#[expect(
    clippy::large_enum_variant,
    reason = "generated code cannot be changed here"
)]
pub mod worker {
    include!(concat!(env!("OUT_DIR"), "/worker/baton.worker.v1.rs"));
}
