//! Conversions between the core's types and protocol messages, for clients and daemons.
//!
//! Only converts: it reads no state and makes no decision. Incoming messages are checked in
//! `submission.rs`, `api/request` and `session`.

pub(crate) mod enums;
pub(crate) mod event;
pub(crate) mod goal;
mod spec;
pub(crate) mod submission;
pub(crate) mod task;

pub(crate) use spec::{
    contract, deadlines, deadlines_from_wire, inline_profile, options, permission_rule,
    profile_name, spec, workspace,
};

use baton_core::ids::Incarnation;
use baton_core::io::effects::AttemptRef;
use baton_core::time::WallTime;
use baton_proto::v1;

/// The reference by which relay and holder name an attempt.
pub(crate) fn attempt_ref(to: &AttemptRef, incarnation: Incarnation) -> v1::AttemptRef {
    v1::AttemptRef {
        task_id: to.task.to_string(),
        attempt_id: to.attempt.to_string(),
        attempt_number: to.number,
        incarnation: incarnation.to_string(),
        conversation_id: to.conversation.as_deref().unwrap_or_default().to_owned(),
        channel_id: to.channel.as_deref().unwrap_or_default().to_owned(),
        turn_kind: enums::turn_kind(to.turn_kind).into(),
        traceparent: traceparent(to),
    }
}

fn traceparent(to: &AttemptRef) -> String {
    let (trace, span) = (
        u128::from_be_bytes(to.trace_id),
        u64::from_be_bytes(to.span_id),
    );
    format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(to.sampled))
}

/// For display only: no decision depends on wall time from the wire.
pub(crate) fn timestamp(wall: WallTime) -> prost_types::Timestamp {
    baton_proto::timestamp_from_ms(wall.0)
}
