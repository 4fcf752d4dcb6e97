//! The core's words, times and specifications in the protocol's spelling, for clients and daemons alike.
//!
//! Only spells; it decides nothing and reads nothing. What comes in is checked where it comes in.

mod spec;
pub(crate) mod words;

pub(crate) use spec::{
    asked_deadlines, contract, deadlines, inline, named, options, permission_rule, spec, workspace,
};

use baton_core::time::Wall;

/// For display only: no wall time on the wire decides anything.
pub(crate) fn timestamp(wall: Wall) -> prost_types::Timestamp {
    baton_proto::timestamp_from_ms(wall.0)
}
