//! The wire protocol `baton.v1`: generated messages and services, their short names, their JSON, and trace context.
//!
//! Owns what travels; decides nothing. PROTOCOL.md beside this crate says what the messages mean.

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

/// Version of the protocol that this crate speaks, for Hello and Welcome.
pub const PROTOCOL_VERSION: u32 = 1;

/// What both sides of a link decode and encode at most: 2 MiB for the message and a margin for what surrounds the
/// largest body. With a smaller limit on one side, the same frame would break every stream it is sent on.
pub const MAX_WIRE_BYTES: usize = 2 * 1024 * 1024 + 64 * 1024;

/// In place of a digest of what an attempt left uncommitted, where nobody could see it.
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
    reason = "generated code is not ours to shape"
)]
pub mod v1 {
    tonic::include_proto!("baton.v1");
    include!(concat!(env!("OUT_DIR"), "/short_names.rs"));
}

/// What a daemon says to its shims and keeps on its own disk. Never crosses the network.
#[expect(
    clippy::large_enum_variant,
    reason = "generated code is not ours to shape"
)]
pub mod worker {
    include!(concat!(env!("OUT_DIR"), "/worker/baton.worker.v1.rs"));
}
