//! Deliveries of the relay's durability gate: to streams, callers and watchers.

use baton_core::io::effects::DaemonMessage;
use baton_core::io::session_input::SessionInput;

use crate::checks::durable_delivery;
use crate::relay::sim_reply::SimDelivery;
use crate::simulation::Simulation;
use crate::stream::DownstreamItem;

impl Simulation {
    /// Sends the core's message with the session's addition: the stored output offsets.
    fn send_core_message(&mut self, conn: usize, message: DaemonMessage) {
        match &message {
            DaemonMessage::Ack { attempt, .. } => {
                let (attempt, offset) = (*attempt, self.relay.output_log.durable_end(*attempt));
                self.send_to_daemon(conn, DownstreamItem::OutputAck { attempt, offset });
            }
            DaemonMessage::Welcome { settlements, .. } => {
                let known = settlements.iter().map(|one| {
                    let offset = self.relay.output_log.durable_end(one.attempt);
                    (one.attempt, offset)
                });
                let known = known.collect();
                self.send_to_daemon(conn, DownstreamItem::Offsets(known));
            }
            _ => {}
        }
        self.send_to_daemon(conn, DownstreamItem::Message(message));
    }

    pub(crate) fn deliver(&mut self, send: SimDelivery) {
        durable_delivery::check(&self.relay.store.durable, &send, self.now);
        match send {
            SimDelivery::Reply { request, outcome } => self.handle_reply(request, outcome),
            SimDelivery::ToSession { session, message } => {
                let conn = self
                    .streams
                    .iter()
                    .rposition(|c| c.session == session && c.relay_open);
                match (conn, message) {
                    (Some(conn), message) => self.send_core_message(conn, message),
                    (None, DaemonMessage::Dispatch(dispatch)) if self.rng.chance(50) => {
                        let attempt = dispatch.to.attempt;
                        let failed = SessionInput::DeliveryFailed { session, attempt };
                        self.relay.inbox.push_back(failed.into());
                        self.wake_relay();
                    }
                    (None, _) => {}
                }
            }
            SimDelivery::CloseSession { session, .. } => {
                let conn = self
                    .streams
                    .iter()
                    .rposition(|c| c.session == session && c.relay_open);
                if let Some(conn) = conn {
                    self.close_from_relay(conn);
                    let closed = SessionInput::Closed { session };
                    self.relay.inbox.push_back(closed.into());
                    self.wake_relay();
                }
            }
            SimDelivery::Published { record, events } => {
                self.notify_watchers(&record, events.iter().map(AsRef::as_ref));
                for event in events {
                    self.count_timeline_event(&event);
                }
            }
        }
    }
}
