//! Says in protocol messages what happened to an attempt. Pure translation: what is said, and when, is
//! decided elsewhere. Every frame carries the attempt's ref as it came in Dispatch.

use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptFrame, AttemptRef, CutReason, DaemonFrame, LeaseToken, LifecyclePhase, OutputCut,
    Stream, TaskAccepted, TaskLifecycle, TaskRejected, TaskStarted, TerminationReceipt, TimerKind,
    WorkspaceReport, daemon_frame,
};
use prost_types::Timestamp;

use crate::agents::Refusal;
use crate::clock::whole_millis;
use crate::outbox::{CutWhy, Label, Leaves, Record};
use crate::phases::OncePhase;
use crate::timers::DeadlineKind;

mod last_words;
mod said;

pub(crate) use last_words::{
    Closing, canceled, contract_unmet, disk_full, given_back, nothing_ran, receipt, terminal,
    too_long,
};
pub(crate) use said::said;

/// A control frame before it has a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Control {
    /// None: a newer daemon stored something that this one does not know. It still takes its number.
    pub(crate) body: Option<Body>,
    /// Of a terminal frame: it was observed before the local lease limit.
    pub(crate) within_lease: bool,
}

impl From<Body> for Control {
    fn from(body: Body) -> Self {
        Self {
            body: Some(body),
            within_lease: false,
        }
    }
}

impl crate::outbox::Body for Control {
    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, Body::encoded_len)
    }
}

impl Control {
    /// What nobody could say again must be on the disk for good before it leaves.
    pub(crate) fn leaves(&self) -> Leaves {
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
            ) => Leaves::Synced,
            Some(
                Body::Accepted(_)
                | Body::Rejected(_)
                | Body::Started(_)
                | Body::Lifecycle(_)
                | Body::Stream(_)
                | Body::OutputCut(_)
                | Body::Progress(_),
            )
            | None => Leaves::Written,
        }
    }

    /// The last word about its attempt, and the receipt in it: nothing runs any more.
    pub(crate) fn last_word(&self) -> Option<TerminationReceipt> {
        let receipt = match self.body.as_ref()? {
            Body::Complete(complete) => &complete.receipt,
            Body::Error(error) => &error.receipt,
            Body::Canceled(canceled) => &canceled.receipt,
            Body::Release(release) => &release.receipt,
            Body::Receipt(receipt) => return Some(receipt.clone()),
            Body::Rejected(_) => return Some(nothing_ran(SystemTime::UNIX_EPOCH)),
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

/// A frame as it goes over the wire. One whose token did not outlive the daemon that had it carries none.
pub(crate) fn attempt_frame(
    attempt: &AttemptRef,
    token: Option<&LeaseToken>,
    record: &Record,
) -> DaemonFrame {
    let frame = AttemptFrame {
        r#ref: Some(attempt.clone()),
        token: token.cloned(),
        ..bare_frame(record)
    };
    DaemonFrame {
        frame: Some(daemon_frame::Frame::Attempt(frame)),
    }
}

/// A frame without what all frames of its attempt share: as it is kept on the disk.
pub(crate) fn bare_frame(record: &Record) -> AttemptFrame {
    let (control_seq, observed_at, within_lease, body) = match record {
        Record::Control {
            seq,
            observed_at,
            body,
        } => (*seq, observed_at, body.within_lease, body.body.clone()),
        Record::Output {
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
                tool_call_id: label.tool.clone(),
                before_prompt: label.before_prompt,
            };
            (0, observed_at, false, Some(Body::Stream(stream)))
        }
        Record::Cut {
            offset,
            length,
            why,
            after_control_seq,
            observed_at,
        } => {
            let cut = OutputCut {
                offset: *offset,
                length: *length,
                reason: wire_reason(*why).into(),
                after_control_seq: *after_control_seq,
                length_unknown: *why == CutWhy::RecorderLost,
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

/// The record that became [`bare_frame`]. None for output of a kind that this version does not know.
pub(crate) fn record(frame: AttemptFrame) -> Option<Record> {
    let observed_at = frame
        .observed_at
        .and_then(|at| SystemTime::try_from(at).ok());
    let observed_at = observed_at.unwrap_or(SystemTime::UNIX_EPOCH);
    match frame.body {
        Some(Body::Stream(stream)) => Some(Record::Output {
            offset: stream.offset,
            after_control_seq: stream.after_control_seq,
            observed_at,
            label: Label {
                kind: stream.kind(),
                visible: stream.visible,
                tool: stream.tool_call_id,
                before_prompt: stream.before_prompt,
            },
            bytes: stream.chunk,
        }),
        Some(Body::OutputCut(cut)) => Some(Record::Cut {
            offset: cut.offset,
            length: cut.length,
            why: match cut.reason() {
                CutReason::WorkerCrash if cut.length_unknown => CutWhy::RecorderLost,
                CutReason::WorkerCrash => CutWhy::WorkerCrash,
                CutReason::LineTooLong => CutWhy::LineTooLong,
                CutReason::DiskFull => CutWhy::DiskFull,
                // Beside the first, reasons of relays, and of versions that are not known here.
                CutReason::DaemonOverflow
                | CutReason::Unspecified
                | CutReason::AttemptLimit
                | CutReason::Retention
                | CutReason::Corrupt
                | CutReason::NotReceived => CutWhy::Overflow,
            },
            after_control_seq: cut.after_control_seq,
            observed_at,
        }),
        body if frame.control_seq > 0 => Some(Record::Control {
            seq: frame.control_seq,
            observed_at,
            body: Control {
                body,
                within_lease: frame.within_lease,
            },
        }),
        _ => None,
    }
}

fn wire_reason(why: CutWhy) -> CutReason {
    match why {
        CutWhy::Overflow => CutReason::DaemonOverflow,
        CutWhy::WorkerCrash | CutWhy::RecorderLost => CutReason::WorkerCrash,
        CutWhy::LineTooLong => CutReason::LineTooLong,
        CutWhy::DiskFull => CutReason::DiskFull,
    }
}

pub(crate) fn accepted() -> Body {
    Body::Accepted(TaskAccepted { position: 0 })
}

pub(crate) fn rejected(refusal: &Refusal) -> Body {
    Body::Rejected(TaskRejected {
        code: refusal.code.into(),
        message: refusal.message.clone(),
    })
}

/// A phase with what is known at it.
pub(crate) struct PhaseReport {
    pub(crate) phase: OncePhase,
    pub(crate) pid: Option<i32>,
    pub(crate) deadline_at: Option<SystemTime>,
    pub(crate) elapsed: Duration,
    pub(crate) wall: SystemTime,
    pub(crate) workspace: Option<WorkspaceReport>,
    /// That it is being ended for.
    pub(crate) deadline: Option<DeadlineKind>,
}

/// It waits for something on this machine.
pub(crate) fn waits(message: String) -> Body {
    Body::Lifecycle(TaskLifecycle {
        phase: LifecyclePhase::Queued.into(),
        message,
        ..TaskLifecycle::default()
    })
}

pub(crate) fn phase(report: PhaseReport) -> Body {
    if report.phase == OncePhase::Started {
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
            .deadline
            .map_or(TimerKind::Unspecified, wire_timer)
            .into(),
        ..TaskLifecycle::default()
    })
}

pub(crate) fn wire_phase(phase: OncePhase) -> LifecyclePhase {
    match phase {
        OncePhase::Started => LifecyclePhase::Started,
        OncePhase::AgentStarted => LifecyclePhase::AgentStarted,
        OncePhase::PromptWritten => LifecyclePhase::PromptWritten,
        OncePhase::FirstEventSeen => LifecyclePhase::FirstEventSeen,
        OncePhase::FirstVisibleEventSeen => LifecyclePhase::FirstVisibleEventSeen,
        OncePhase::Streaming => LifecyclePhase::Streaming,
        OncePhase::CleanupStarted => LifecyclePhase::CleanupStarted,
        OncePhase::CleanupFinished => LifecyclePhase::CleanupFinished,
    }
}

/// The phase behind [`wire_phase`]; none for those that may come again.
pub(crate) fn once_phase(phase: LifecyclePhase) -> Option<OncePhase> {
    let all = [
        OncePhase::Started,
        OncePhase::AgentStarted,
        OncePhase::PromptWritten,
        OncePhase::FirstEventSeen,
        OncePhase::FirstVisibleEventSeen,
        OncePhase::Streaming,
        OncePhase::CleanupStarted,
        OncePhase::CleanupFinished,
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

/// The deadline behind [`wire_timer`]; none for timers that only the relay has.
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
