//! Says in protocol messages what happened to an attempt. Pure translation: what is said, and when, is
//! decided elsewhere. Every frame carries the attempt's ref as it came in Dispatch.

use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptFrame, AttemptRef, CancelReason, CutReason, DaemonFrame, LeaseToken, LifecyclePhase,
    OutputCut, ReleaseNote, Stream, TaskAccepted, TaskCanceled, TaskComplete, TaskError,
    TaskLifecycle, TaskRejected, TaskStarted, TerminationReceipt, TimerKind, WorkspaceReport,
    daemon_frame,
};
use prost_types::Timestamp;

use crate::agents::{Refusal, Used, Verdict};
use crate::attempt::Ending;
use crate::clock::whole_millis;
use crate::outbox::{CutWhy, Label, Leaves, Record};
use crate::phases::OncePhase;
use crate::process::{Cleared, Exit};
use crate::timers::DeadlineKind;

mod said;

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

/// What every terminal frame says.
pub(crate) struct Closing {
    pub(crate) final_offset: u64,
    pub(crate) receipt: TerminationReceipt,
}

impl Closing {
    /// Terminal frames have a place of their own for what is left of the workspace.
    fn parts(self) -> (u64, Option<WorkspaceReport>, TerminationReceipt) {
        let mut receipt = self.receipt;
        let workspace = receipt.workspace.take();
        (self.final_offset, workspace, receipt)
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

/// The receipt of an attempt whose process was never started.
pub(crate) fn nothing_ran(wall: SystemTime) -> TerminationReceipt {
    TerminationReceipt {
        group_empty: true,
        prompt_written: Some(false),
        ended_at: Some(Timestamp::from(wall)),
        ..TerminationReceipt::default()
    }
}

pub(crate) fn receipt(ending: &Ending, wall: SystemTime) -> TerminationReceipt {
    let (exit_code, signal) = match ending.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        Some(Exit::Unseen) | None => (None, None),
    };
    // The shim saw the end; this may be read much later.
    let wall = ending.ended.map_or(wall, |ended| ended.wall);
    TerminationReceipt {
        exit_code,
        signal,
        group_empty: ending.cleared.empty,
        prompt_written: Some(ending.prompted),
        swept_processes: ending.cleared.swept,
        killed: ending.cleared.killed,
        process_started: ending.process_started,
        ended_at: Some(Timestamp::from(wall)),
        cleanup: cleanup(ending.cleared).to_owned(),
        workspace: ending.workspace.clone(),
    }
}

fn cleanup(cleared: Cleared) -> &'static str {
    match cleared {
        Cleared { empty: false, .. } => "processes_left",
        Cleared { killed: true, .. } => "process_group_killed",
        Cleared {
            terminated: true, ..
        } => "process_group_terminated",
        Cleared { .. } => "exited",
    }
}

/// The terminal frame of an attempt that ended by itself or at a deadline; none when it was ordered to.
pub(crate) fn terminal(verdict: &Verdict, ending: &Ending, closing: Closing) -> Option<Body> {
    let (final_offset, workspace, receipt) = closing.parts();
    match verdict {
        Verdict::Complete(done) => Some(Body::Complete(TaskComplete {
            final_offset,
            receipt: Some(receipt),
            result: done.result.clone().into(),
            agent_session_id: done.used.conversation.clone(),
            usage: said::usage(&done.used),
            artifacts: ending.artifacts.clone(),
            killed_after_result: done.killed_after_result,
            workspace,
        })),
        Verdict::Failed(failed) => Some(Body::Error(TaskError {
            final_offset,
            receipt: Some(receipt),
            failure_code: failed.code.clone(),
            message: failed.message.clone(),
            user_message: failed.user_message.clone(),
            retryable_hint: failed.retryable,
            stderr_tail: baton_secrets::without(&ending.stderr_tail).into_owned(),
            agent_session_id: failed.used.conversation.clone(),
            usage: said::usage(&failed.used),
            timer: failed
                .deadline
                .map_or(TimerKind::Unspecified, wire_timer)
                .into(),
            workspace,
        })),
        Verdict::Withdrawn { why, used } => Some(Body::Canceled(TaskCanceled {
            final_offset,
            receipt: Some(receipt),
            reason: CancelReason::User.into(),
            message: why.clone(),
            workspace,
            usage: said::usage(used),
            agent_session_id: used.conversation.clone(),
        })),
        Verdict::Stopped => None,
    }
}

pub(crate) fn canceled(reason: CancelReason, used: &Used, closing: Closing) -> Body {
    let (final_offset, workspace, receipt) = closing.parts();
    Body::Canceled(TaskCanceled {
        final_offset,
        receipt: Some(receipt),
        reason: reason.into(),
        workspace,
        usage: said::usage(used),
        agent_session_id: used.conversation.clone(),
        ..TaskCanceled::default()
    })
}

/// It was taken and never ran: whoever is next may do it, and nothing counts against the task.
pub(crate) fn given_back(reason: &str, receipt: TerminationReceipt) -> Body {
    Body::Release(ReleaseNote {
        reason: reason.to_owned(),
        receipt: Some(receipt),
    })
}

/// The worker's disk takes no more of what the attempt has to say.
pub(crate) fn disk_full(stderr_tail: &str, closing: Closing) -> Body {
    let (final_offset, workspace, receipt) = closing.parts();
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::WORKER_DISK_FULL.to_owned(),
        message: "the worker's disk took no more of the attempt's frames; see the daemon's log"
            .to_owned(),
        user_message: "the worker's disk is full".to_owned(),
        stderr_tail: baton_secrets::without(stderr_tail).into_owned(),
        workspace,
        ..TaskError::default()
    })
}

/// What the attempt has to say is more than the worker stores at once.
pub(crate) fn too_long(stderr_tail: &str, closing: Closing) -> Body {
    let (final_offset, workspace, receipt) = closing.parts();
    let message = "what the agent said or asked is too long to be kept on the worker";
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::OUTPUT_INVALID.to_owned(),
        message: format!("{message}; see the daemon's log"),
        user_message: message.to_owned(),
        stderr_tail: baton_secrets::without(stderr_tail).into_owned(),
        workspace,
        ..TaskError::default()
    })
}

/// The relay refused a completion because of its contract. The process is gone, so it cannot try again.
pub(crate) fn contract_unmet(message: &str, closing: Closing) -> Body {
    let (final_offset, workspace, receipt) = closing.parts();
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::RECEIPTS_MISSING.to_owned(),
        message: message.to_owned(),
        user_message: message.to_owned(),
        workspace,
        ..TaskError::default()
    })
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
