//! Translates what happened to an attempt into protocol messages. Which frame is sent, and
//! when, is decided elsewhere. Every frame carries the attempt's ref from its Dispatch.

use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptFrame, AttemptRef, CutReason, DaemonFrame, LeaseToken, LifecyclePhase, OutputCut,
    Stream, TaskAccepted, TaskLifecycle, TaskRejected, TaskStarted, TerminationReceipt, TimerKind,
    WorkspaceReport, daemon_frame,
};
use prost_types::Timestamp;

use crate::agents::DispatchRefusal;
use crate::clock::whole_millis;
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::{FrameRecord, OutputCutReason, OutputLabel, RequiredDurability};

mod agent_frame;
mod terminal;

pub(crate) use agent_frame::agent_event_frame;
pub(crate) use terminal::{
    TerminalFields, canceled, contract_unmet, disk_full, no_process_receipt, released,
    terminal_frame, termination_receipt, too_long,
};

/// A control frame before it has a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ControlFrame {
    /// `None` for a frame that a newer daemon stored and this version cannot decode. It still
    /// uses its number.
    pub(crate) body: Option<Body>,
    /// Only for a terminal frame: the end was observed before the local lease limit.
    pub(crate) within_lease: bool,
}

impl From<Body> for ControlFrame {
    fn from(body: Body) -> Self {
        Self {
            body: Some(body),
            within_lease: false,
        }
    }
}

impl crate::outbox::ControlBody for ControlFrame {
    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, Body::encoded_len)
    }
}

impl ControlFrame {
    /// A frame that could not be produced again must be synced to the disk before it is sent.
    pub(crate) fn required_durability(&self) -> RequiredDurability {
        match &self.body {
            Some(
                Body::PermissionRequest(_)
                | Body::Question(_)
                | Body::InputWithdrawn(_)
                | Body::Checkpoint(_)
                | Body::Block(_)
                | Body::Release(_)
                | Body::Complete(_)
                | Body::Error(_)
                | Body::Canceled(_)
                | Body::Receipt(_),
            ) => RequiredDurability::Synced,
            Some(
                Body::Accepted(_)
                | Body::Rejected(_)
                | Body::Started(_)
                | Body::Lifecycle(_)
                | Body::Stream(_)
                | Body::OutputCut(_)
                | Body::Progress(_),
            )
            | None => RequiredDurability::Written,
        }
    }

    /// The receipt in a terminal frame; `None` for other frames. No process is left after it.
    pub(crate) fn terminal_receipt(&self) -> Option<TerminationReceipt> {
        let receipt = match self.body.as_ref()? {
            Body::Complete(complete) => &complete.receipt,
            Body::Error(error) => &error.receipt,
            Body::Canceled(canceled) => &canceled.receipt,
            Body::Release(release) => &release.receipt,
            Body::Receipt(receipt) => return Some(receipt.clone()),
            Body::Rejected(_) => return Some(no_process_receipt(SystemTime::UNIX_EPOCH)),
            Body::Accepted(_)
            | Body::Started(_)
            | Body::Lifecycle(_)
            | Body::Stream(_)
            | Body::OutputCut(_)
            | Body::PermissionRequest(_)
            | Body::Question(_)
            | Body::InputWithdrawn(_)
            | Body::Progress(_)
            | Body::Checkpoint(_)
            | Body::Block(_) => return None,
        };
        Some(receipt.clone().unwrap_or_default())
    }
}

/// A frame as it is sent. It has no token when the token was lost with an earlier daemon.
pub(crate) fn encode_attempt_frame(
    attempt: &AttemptRef,
    token: Option<&LeaseToken>,
    record: &FrameRecord,
) -> DaemonFrame {
    let frame = AttemptFrame {
        r#ref: Some(attempt.clone()),
        token: token.cloned(),
        ..encode_record(record)
    };
    DaemonFrame {
        frame: Some(daemon_frame::Frame::Attempt(frame)),
    }
}

/// A frame without the fields that all frames of its attempt share, as it is stored on the
/// disk.
pub(crate) fn encode_record(record: &FrameRecord) -> AttemptFrame {
    let (control_seq, observed_at, within_lease, body) = match record {
        FrameRecord::Control {
            seq,
            observed_at,
            body,
        } => (*seq, observed_at, body.within_lease, body.body.clone()),
        FrameRecord::Output {
            offset,
            after_control_seq,
            observed_at,
            label,
            bytes,
        } => {
            let stream = Stream {
                offset: *offset,
                chunk: bytes.clone(),
                after_control_seq: *after_control_seq,
                visible: label.visible,
                kind: label.kind.into(),
                tool_call_id: label.tool_call_id.clone(),
                before_prompt: label.before_prompt,
            };
            (0, observed_at, false, Some(Body::Stream(stream)))
        }
        FrameRecord::Cut {
            offset,
            length,
            reason,
            after_control_seq,
            observed_at,
        } => {
            let cut = OutputCut {
                offset: *offset,
                length: *length,
                reason: wire_cut_reason(*reason).into(),
                after_control_seq: *after_control_seq,
                length_unknown: *reason == OutputCutReason::RecorderLost,
            };
            (0, observed_at, false, Some(Body::OutputCut(cut)))
        }
    };
    AttemptFrame {
        r#ref: None,
        control_seq,
        observed_at: Some(Timestamp::from(*observed_at)),
        within_lease,
        token: None,
        body,
    }
}

/// The record that [`encode_record`] encoded. `None` for output of a kind that this version
/// does not know.
pub(crate) fn decode_record(frame: AttemptFrame) -> Option<FrameRecord> {
    let observed_at = frame
        .observed_at
        .and_then(|at| SystemTime::try_from(at).ok());
    let observed_at = observed_at.unwrap_or(SystemTime::UNIX_EPOCH);
    match frame.body {
        Some(Body::Stream(stream)) => Some(FrameRecord::Output {
            offset: stream.offset,
            after_control_seq: stream.after_control_seq,
            observed_at,
            label: OutputLabel {
                kind: stream.kind(),
                visible: stream.visible,
                tool_call_id: stream.tool_call_id,
                before_prompt: stream.before_prompt,
            },
            bytes: stream.chunk,
        }),
        Some(Body::OutputCut(cut)) => Some(FrameRecord::Cut {
            offset: cut.offset,
            length: cut.length,
            reason: match cut.reason() {
                CutReason::WorkerCrash if cut.length_unknown => OutputCutReason::RecorderLost,
                CutReason::WorkerCrash => OutputCutReason::WorkerCrash,
                CutReason::LineTooLong => OutputCutReason::LineTooLong,
                CutReason::DiskFull => OutputCutReason::DiskFull,
                // All but the first are reasons that only relays use, or that this version does
                // not know.
                CutReason::DaemonOverflow
                | CutReason::Unspecified
                | CutReason::AttemptLimit
                | CutReason::Retention
                | CutReason::Corrupt
                | CutReason::NotReceived => OutputCutReason::Overflow,
            },
            after_control_seq: cut.after_control_seq,
            observed_at,
        }),
        body if frame.control_seq > 0 => Some(FrameRecord::Control {
            seq: frame.control_seq,
            observed_at,
            body: ControlFrame {
                body,
                within_lease: frame.within_lease,
            },
        }),
        _ => None,
    }
}

fn wire_cut_reason(reason: OutputCutReason) -> CutReason {
    match reason {
        OutputCutReason::Overflow => CutReason::DaemonOverflow,
        OutputCutReason::WorkerCrash | OutputCutReason::RecorderLost => CutReason::WorkerCrash,
        OutputCutReason::LineTooLong => CutReason::LineTooLong,
        OutputCutReason::DiskFull => CutReason::DiskFull,
    }
}

pub(crate) fn accepted() -> Body {
    Body::Accepted(TaskAccepted { position: 0 })
}

pub(crate) fn rejected(refusal: &DispatchRefusal) -> Body {
    Body::Rejected(TaskRejected {
        code: refusal.code.into(),
        message: refusal.message.clone(),
    })
}

/// A phase with its details.
pub(crate) struct PhaseReport {
    pub(crate) phase: OneTimePhase,
    pub(crate) pid: Option<i32>,
    pub(crate) deadline_at: Option<SystemTime>,
    pub(crate) elapsed: Duration,
    pub(crate) wall: SystemTime,
    pub(crate) workspace: Option<WorkspaceReport>,
    /// The deadline that the attempt is ended for.
    pub(crate) ended_by_deadline: Option<DeadlineKind>,
}

/// The attempt waits for something on this machine.
pub(crate) fn queued(message: String) -> Body {
    Body::Lifecycle(TaskLifecycle {
        phase: LifecyclePhase::Queued.into(),
        message,
        ..TaskLifecycle::default()
    })
}

pub(crate) fn phase_frame(report: PhaseReport) -> Body {
    if report.phase == OneTimePhase::Started {
        let started_at = Some(Timestamp::from(report.wall));
        return Body::Started(TaskStarted {
            started_at,
            workspace: report.workspace,
        });
    }
    Body::Lifecycle(TaskLifecycle {
        phase: wire_phase(report.phase).into(),
        pid: report.pid.and_then(|pid| u32::try_from(pid).ok()),
        deadline_at: report.deadline_at.map(Timestamp::from),
        elapsed_ms: Some(whole_millis(report.elapsed)),
        deadline: report
            .ended_by_deadline
            .map_or(TimerKind::Unspecified, wire_timer)
            .into(),
        ..TaskLifecycle::default()
    })
}

pub(crate) fn wire_phase(phase: OneTimePhase) -> LifecyclePhase {
    match phase {
        OneTimePhase::Started => LifecyclePhase::Started,
        OneTimePhase::AgentStarted => LifecyclePhase::AgentStarted,
        OneTimePhase::PromptWritten => LifecyclePhase::PromptWritten,
        OneTimePhase::FirstEventSeen => LifecyclePhase::FirstEventSeen,
        OneTimePhase::FirstVisibleEventSeen => LifecyclePhase::FirstVisibleEventSeen,
        OneTimePhase::Streaming => LifecyclePhase::Streaming,
        OneTimePhase::CleanupStarted => LifecyclePhase::CleanupStarted,
        OneTimePhase::CleanupFinished => LifecyclePhase::CleanupFinished,
    }
}

/// The inverse of [`wire_phase`]; `None` for phases that can be entered more than once.
pub(crate) fn one_time_phase(phase: LifecyclePhase) -> Option<OneTimePhase> {
    let all = [
        OneTimePhase::Started,
        OneTimePhase::AgentStarted,
        OneTimePhase::PromptWritten,
        OneTimePhase::FirstEventSeen,
        OneTimePhase::FirstVisibleEventSeen,
        OneTimePhase::Streaming,
        OneTimePhase::CleanupStarted,
        OneTimePhase::CleanupFinished,
    ];
    all.into_iter().find(|once| wire_phase(*once) == phase)
}

pub(crate) fn wire_timer(kind: DeadlineKind) -> TimerKind {
    match kind {
        DeadlineKind::ProcessStart => TimerKind::ProcessStart,
        DeadlineKind::PromptWrite => TimerKind::PromptWrite,
        DeadlineKind::FirstEvent => TimerKind::FirstEvent,
        DeadlineKind::FirstVisibleEvent => TimerKind::FirstVisibleEvent,
        DeadlineKind::StreamIdle => TimerKind::StreamIdle,
        DeadlineKind::ToolIdle => TimerKind::ToolIdle,
        DeadlineKind::Total => TimerKind::Total,
    }
}

/// The inverse of [`wire_timer`]; `None` for timers that only the relay has.
pub(crate) fn deadline_kind(timer: TimerKind) -> Option<DeadlineKind> {
    let all = [
        DeadlineKind::ProcessStart,
        DeadlineKind::PromptWrite,
        DeadlineKind::FirstEvent,
        DeadlineKind::FirstVisibleEvent,
        DeadlineKind::StreamIdle,
        DeadlineKind::ToolIdle,
        DeadlineKind::Total,
    ];
    all.into_iter().find(|kind| wire_timer(*kind) == timer)
}
