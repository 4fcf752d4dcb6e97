//! Counts frames and enum values of a newer daemon that this version does not have, so that
//! operators see them. An unknown frame is ignored, and an unknown number counts as the zero
//! value of its enum.

use baton_proto::v1;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::daemon_frame::Frame;

use crate::telemetry::Telemetry;

pub(super) fn count_unknown(telemetry: &Telemetry, frame: &v1::DaemonFrame) {
    match &frame.frame {
        None => telemetry.count_unknown_frame(),
        Some(Frame::Hello(hello)) => count_in_hello(telemetry, hello),
        Some(Frame::Heartbeat(heartbeat)) => {
            count_number::<v1::DaemonStatus>(telemetry, "daemon_status", heartbeat.status);
            count_number::<v1::RejectCode>(telemetry, "reject_code", heartbeat.refuses);
        }
        Some(Frame::Attempt(attempt)) => count_in_body(telemetry, attempt),
        Some(Frame::Hold(_) | Frame::Goodbye(_)) => {}
    }
}

pub(super) fn count_in_hello(telemetry: &Telemetry, hello: &v1::Hello) {
    for agent in &hello.agents {
        count_number::<v1::AgentKind>(telemetry, "agent_kind", agent.kind);
    }
    for active in &hello.active {
        count_number::<v1::ActiveState>(telemetry, "active_state", active.state);
    }
}

/// Counts unknown values in an attempt frame. A control frame with an unknown body or phase is
/// counted by the core.
fn count_in_body(telemetry: &Telemetry, attempt: &v1::AttemptFrame) {
    match &attempt.body {
        None if attempt.control_seq == 0 => telemetry.count_unknown_frame(),
        Some(Body::Rejected(rejected)) => {
            count_number::<v1::RejectCode>(telemetry, "reject_code", rejected.code);
        }
        Some(Body::Stream(stream)) => {
            count_number::<v1::OutputKind>(telemetry, "output_kind", stream.kind);
        }
        Some(Body::OutputCut(cut)) => {
            count_number::<v1::CutReason>(telemetry, "cut_reason", cut.reason);
        }
        None
        | Some(
            Body::Accepted(_)
            | Body::Started(_)
            | Body::Lifecycle(_)
            | Body::PermissionRequest(_)
            | Body::Question(_)
            | Body::InputWithdrawn(_)
            | Body::Progress(_)
            | Body::Checkpoint(_)
            | Body::Block(_)
            | Body::Release(_)
            | Body::Complete(_)
            | Body::Error(_)
            | Body::Canceled(_)
            | Body::Receipt(_),
        ) => {}
    }
}

fn count_number<E: TryFrom<i32>>(telemetry: &Telemetry, name: &'static str, sent: i32) {
    if E::try_from(sent).is_err() {
        telemetry.count_unknown_value(name);
    }
}
