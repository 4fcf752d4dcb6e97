//! Records the frames of a daemon with a tap, and keeps some of them for later replay or
//! forging.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_history::{Observation, ParticipantLog};
use baton_proto::v1::{
    AttemptCommand, AttemptFrame, AttemptRef, DaemonFrame, RelayFrame, TaskComplete,
    attempt_command, attempt_frame, daemon_frame, relay_frame,
};
use baton_tests::{FrameListener, TappedFrame};

use crate::chaos_run::now_ms;

/// Number of frames and dispatches that are kept.
const REMEMBERED_FRAMES_MAX: usize = 64;

/// Older frames of a daemon. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RememberedFrames(Arc<Mutex<FrameHistory>>);

#[derive(Debug, Default)]
struct FrameHistory {
    /// Terminal frames, oldest first.
    terminal_frames: VecDeque<DaemonFrame>,
    /// Attempts that were dispatched.
    offered_attempts: VecDeque<AttemptRef>,
    /// Terminal frames that were not acknowledged yet.
    unacked_frames: Vec<(String, u64)>,
}

impl RememberedFrames {
    fn lock(&self) -> MutexGuard<'_, FrameHistory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both belong to the same daemon.
    pub(crate) fn is_same_daemon(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A random old frame of this daemon.
    pub(crate) fn random_old_frame(&self) -> Option<DaemonFrame> {
        let history = self.lock();
        let any = rand::random_range(0..history.terminal_frames.len().max(1));
        history.terminal_frames.get(any).cloned()
    }

    /// A completion of an attempt that another daemon was offered; a daemon that sends it is
    /// not the holder.
    pub(crate) fn forged_completion(&self) -> Option<DaemonFrame> {
        let re = self.lock().offered_attempts.back().cloned()?;
        let forged = AttemptFrame {
            r#ref: Some(re),
            control_seq: rand::random_range(1..12),
            within_lease: true,
            body: Some(attempt_frame::Body::Complete(TaskComplete::default())),
            ..AttemptFrame::default()
        };
        let frame = Some(daemon_frame::Frame::Attempt(forged));
        Some(DaemonFrame { frame })
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, one: T) {
    if queue.len() >= REMEMBERED_FRAMES_MAX {
        queue.pop_front();
    }
    queue.push_back(one);
}

/// Records the frames that a rule checks, and keeps some of them.
pub(crate) fn recording_listener(
    view: ParticipantLog,
    tenant: &str,
    remembered: &RememberedFrames,
) -> FrameListener {
    let (tenant, remembered) = (tenant.to_owned(), remembered.clone());
    Arc::new(move |tapped| {
        let seen = match tapped {
            TappedFrame::FromDaemon(frame) => record_daemon_frame(*frame, &remembered),
            TappedFrame::FromRelay(frame) => record_relay_frame(*frame, &tenant, &remembered),
        };
        for observation in seen {
            view.record(now_ms(), observation)
                .expect("the history can be written");
        }
    })
}

fn record_daemon_frame(frame: DaemonFrame, remembered: &RememberedFrames) -> Vec<Observation> {
    let Some(daemon_frame::Frame::Attempt(attempt)) = &frame.frame else {
        return Vec::new();
    };
    let word = match &attempt.body {
        Some(attempt_frame::Body::Complete(_)) => "complete",
        Some(attempt_frame::Body::Error(_)) => "error",
        Some(attempt_frame::Body::Canceled(_)) => "canceled",
        _ => return Vec::new(),
    };
    let re = attempt.r#ref.clone().unwrap_or_default();
    let seq = attempt.control_seq;
    let mut kept = remembered.lock();
    kept.unacked_frames.push((re.attempt_id.clone(), seq));
    push_bounded(&mut kept.terminal_frames, frame.clone());
    vec![Observation::Sent {
        task: re.task_id,
        attempt: re.attempt_id,
        seq,
        word: word.to_owned(),
    }]
}

fn record_relay_frame(
    frame: RelayFrame,
    tenant: &str,
    remembered: &RememberedFrames,
) -> Vec<Observation> {
    match frame.frame {
        Some(relay_frame::Frame::Attempt(command)) => record_command(command, tenant, remembered)
            .into_iter()
            .collect(),
        Some(relay_frame::Frame::Ack(ack)) => {
            let mut kept = remembered.lock();
            let entries = ack.entries.into_iter().filter(|entry| {
                let before = kept.unacked_frames.len();
                kept.unacked_frames
                    .retain(|(id, seq)| *id != entry.attempt_id || *seq > entry.control_seq);
                before > kept.unacked_frames.len()
            });
            let entries = entries.map(|entry| Observation::Acked {
                attempt: entry.attempt_id,
                seq: entry.control_seq,
            });
            entries.collect()
        }
        Some(relay_frame::Frame::Rejected(rejected)) => vec![Observation::Refused {
            attempt: rejected.attempt_id,
            seq: rejected.control_seq,
            code: rejected.error.unwrap_or_default().code,
        }],
        _ => Vec::new(),
    }
}

fn record_command(
    command: AttemptCommand,
    tenant: &str,
    remembered: &RememberedFrames,
) -> Option<Observation> {
    let re = command.r#ref?;
    let (task, attempt) = (re.task_id.clone(), re.attempt_id.clone());
    match command.body? {
        attempt_command::Body::Dispatch(_) => {
            push_bounded(&mut remembered.lock().offered_attempts, re);
            let tenant = tenant.to_owned();
            Some(Observation::Offered {
                tenant,
                task,
                attempt,
            })
        }
        attempt_command::Body::LeaseConfirmed(_) => Some(Observation::Confirmed { task, attempt }),
        _ => None,
    }
}
