//! What a newer daemon says and this version does not know. It is counted, so that operators see it, and has no effect
//! but the one that its message's description gives: an unknown frame is ignored, an unknown number is the enum's zero.

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

/// A control frame with an unknown body or phase reaches the core, which counts it with its number.
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
