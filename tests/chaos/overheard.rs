//! What a daemon hears and says, by a tap on its wire; and what an evil network makes of that later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_history::{Saw, Viewpoint};
use baton_proto::v1::{
    AttemptCommand, AttemptFrame, AttemptRef, DaemonFrame, RelayFrame, TaskComplete,
    attempt_command, attempt_frame, daemon_frame, relay_frame,
};
use baton_tests::{Listener, Taped};

use crate::run::now;

/// Frames and offers that are remembered.
const REMEMBERED: usize = 64;

/// Things said and heard a while ago. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// Terminal frames, oldest first.
    said: VecDeque<DaemonFrame>,
    /// Whom something was offered for.
    offered: VecDeque<AttemptRef>,
    /// Terminal frames that were not acknowledged yet.
    untold: Vec<(String, u64)>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are of one daemon.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Something that this daemon said.
    pub(crate) fn old_word(&self) -> Option<DaemonFrame> {
        let kept = self.lock();
        let any = rand::random_range(0..kept.said.len().max(1));
        kept.said.get(any).cloned()
    }

    /// The result of an attempt that somebody else was offered; whoever says it is a liar.
    pub(crate) fn lie(&self) -> Option<DaemonFrame> {
        let re = self.lock().offered.back().cloned()?;
        let lie = AttemptFrame {
            r#ref: Some(re),
            control_seq: rand::random_range(1..12),
            within_lease: true,
            body: Some(attempt_frame::Body::Complete(TaskComplete::default())),
            ..AttemptFrame::default()
        };
        let frame = Some(daemon_frame::Frame::Attempt(lie));
        Some(DaemonFrame { frame })
    }
}

fn push<T>(queue: &mut VecDeque<T>, one: T) {
    if queue.len() >= REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(one);
}

/// Writes down what concerns a promise, and remembers some of it.
pub(crate) fn listener(view: Viewpoint, tenant: &str, memory: &Memory) -> Listener {
    let (tenant, memory) = (tenant.to_owned(), memory.clone());
    Arc::new(move |taped| {
        let seen = match taped {
            Taped::Up(frame) => said(*frame, &memory),
            Taped::Down(frame) => heard(*frame, &tenant, &memory),
        };
        for saw in seen {
            view.saw(now(), saw).expect("the history can be written");
        }
    })
}

fn said(frame: DaemonFrame, memory: &Memory) -> Vec<Saw> {
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
    let mut kept = memory.lock();
    kept.untold.push((re.attempt_id.clone(), seq));
    push(&mut kept.said, frame.clone());
    vec![Saw::Sent {
        task: re.task_id,
        attempt: re.attempt_id,
        seq,
        word: word.to_owned(),
    }]
}

fn heard(frame: RelayFrame, tenant: &str, memory: &Memory) -> Vec<Saw> {
    match frame.frame {
        Some(relay_frame::Frame::Attempt(command)) => {
            commanded(command, tenant, memory).into_iter().collect()
        }
        Some(relay_frame::Frame::Ack(ack)) => {
            let mut kept = memory.lock();
            let entries = ack.entries.into_iter().filter(|entry| {
                let before = kept.untold.len();
                kept.untold
                    .retain(|(id, seq)| *id != entry.attempt_id || *seq > entry.control_seq);
                before > kept.untold.len()
            });
            let entries = entries.map(|entry| Saw::Acked {
                attempt: entry.attempt_id,
                seq: entry.control_seq,
            });
            entries.collect()
        }
        Some(relay_frame::Frame::Rejected(rejected)) => vec![Saw::Refused {
            attempt: rejected.attempt_id,
            seq: rejected.control_seq,
            code: rejected.error.unwrap_or_default().code,
        }],
        _ => Vec::new(),
    }
}

fn commanded(command: AttemptCommand, tenant: &str, memory: &Memory) -> Option<Saw> {
    let re = command.r#ref?;
    let (task, attempt) = (re.task_id.clone(), re.attempt_id.clone());
    match command.body? {
        attempt_command::Body::Dispatch(_) => {
            push(&mut memory.lock().offered, re);
            let tenant = tenant.to_owned();
            Some(Saw::Offered {
                tenant,
                task,
                attempt,
            })
        }
        attempt_command::Body::LeaseConfirmed(_) => Some(Saw::Confirmed { task, attempt }),
        _ => None,
    }
}
