//! Who gets to send next. Attempts with something unsent stand in one queue, each once, and are served one
//! record at a time, so that a flood from one does not hold up the others.

use baton_proto::v1::DaemonFrame;
use tokio::sync::mpsc;

use super::Supervisor;
use crate::clock::Clock;
use crate::frames;
use crate::supervised_attempt::SupervisedAttempt;

impl Supervisor {
    /// Does the same to all attempts; whoever has something to say afterwards is queued.
    pub(super) fn update_all(&mut self, mut change: impl FnMut(&mut SupervisedAttempt, &Clock)) {
        for (id, held) in &mut self.supervised {
            change(held, &self.clock);
            if !held.is_queued && held.outbox.next_unsent().is_some() {
                held.is_queued = true;
                self.send_queue.push_back(id.clone());
            }
        }
    }

    pub(super) fn enqueue(&mut self, id: &str) {
        if let Some(held) = self.supervised.get_mut(id)
            && !held.is_queued
        {
            held.is_queued = true;
            self.send_queue.push_back(id.to_owned());
        }
    }

    /// Puts on the wire what fits, one record per attempt in turn.
    pub(super) fn send_frames(&mut self) {
        let Some(live) = &self.live_session else {
            return;
        };
        let now = self.clock.now();
        while let Some(id) = self.send_queue.front() {
            let Some(held) = self.supervised.get_mut(id) else {
                self.send_queue.pop_front();
                continue;
            };
            let unsent = held
                .outbox
                .next_unsent()
                .filter(|_| !held.must_not_send(now));
            let Some(record) = unsent else {
                held.is_queued = false;
                self.send_queue.pop_front();
                continue;
            };
            let frame = frames::encode_attempt_frame(&held.attempt, held.token.as_ref(), record);
            if live.session.frames.try_send(frame).is_err() {
                // Full: `room` wakes the loop. Closed: the link says so next.
                return;
            }
            held.outbox.mark_sent();
            self.send_queue.rotate_left(1);
        }
    }

    /// The outlet to wait at: something is to be sent and there was no room.
    pub(super) fn full_frame_queue(&self) -> Option<mpsc::Sender<DaemonFrame>> {
        let live = self
            .live_session
            .as_ref()
            .filter(|_| !self.send_queue.is_empty())?;
        (!live.session.frames.is_closed()).then(|| live.session.frames.clone())
    }
}

/// Returns when the outlet has room again. Cancel safe.
pub(super) async fn wait_for_room(outlet: Option<mpsc::Sender<DaemonFrame>>) {
    match outlet {
        // Closed: the link reports it; until then there is nothing to wait for.
        Some(outlet) => match outlet.reserve().await {
            Ok(_) => {}
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
