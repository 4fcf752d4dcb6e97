//! What the relay's gate lets go: to streams, to whoever asked, and to watchers.

use baton_core::effects::{Downstream, Send};
use baton_core::input::Input;

use crate::links::Down;
use crate::sent;
use crate::world::World;

impl World {
    /// What the core says, and what the session adds to it: how much output is stored.
    fn tell(&mut self, conn: usize, message: Downstream) {
        match &message {
            Downstream::Ack { attempt, .. } => {
                let (attempt, offset) = (*attempt, self.relay.outputs.durable(*attempt));
                self.send_down(conn, Down::OutputAck { attempt, offset });
            }
            Downstream::Welcome { settlements, .. } => {
                let known = settlements.iter().map(|one| {
                    let offset = self.relay.outputs.durable(one.attempt);
                    (one.attempt, offset)
                });
                let known = known.collect();
                self.send_down(conn, Down::Offsets(known));
            }
            _ => {}
        }
        self.send_down(conn, Down::Message(message));
    }

    pub(crate) fn perform(&mut self, send: Send) {
        sent::check(&self.relay.store.durable, &send, self.now);
        match send {
            Send::Reply { request, outcome } => self.replied(request, outcome),
            Send::ToSession { session, message } => {
                let conn = self
                    .conns
                    .iter()
                    .rposition(|c| c.session == session && c.relay_open);
                match (conn, message) {
                    (Some(conn), message) => self.tell(conn, message),
                    (None, Downstream::Dispatch(dispatch)) if self.rng.chance(50) => {
                        let attempt = dispatch.to.attempt;
                        self.relay
                            .inbox
                            .push_back((Input::DeliveryFailed { session, attempt }, None));
                        self.wake_relay();
                    }
                    (None, _) => {}
                }
            }
            Send::CloseSession { session, .. } => {
                let conn = self
                    .conns
                    .iter()
                    .rposition(|c| c.session == session && c.relay_open);
                if let Some(conn) = conn {
                    self.relay_hangs_up(conn);
                    let closed = Input::SessionClosed { session };
                    self.relay.inbox.push_back((closed, None));
                    self.wake_relay();
                }
            }
            Send::Published { record, events, .. } => {
                self.watchers_see(&record, events.iter().map(AsRef::as_ref));
                for event in events {
                    self.count_event(&event);
                }
            }
        }
    }
}
