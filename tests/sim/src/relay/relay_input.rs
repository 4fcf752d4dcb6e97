//! How inputs reach the relay's loop: from streams, from agents and from clients.

use baton_core::io::command::{Command, CoreInput};
use baton_core::io::session_input::SessionInput;

use crate::checks::agent_calls::RequestProbe;
use crate::relay::sim_reply::{RequestId, SimReply};
use crate::simulation::Simulation;
use crate::stream::UpstreamItem;

/// An input on its way to the core.
#[derive(Debug)]
pub(crate) struct RelayInput {
    pub(crate) input: CoreInput,
    /// Of a frame: which frame of its attempt it is.
    pub(crate) frame_number: Option<u64>,
    /// Of a request: what is checked about it.
    pub(crate) probe: Option<RequestProbe>,
}

impl<I: Into<CoreInput>> From<I> for RelayInput {
    fn from(input: I) -> Self {
        Self {
            input: input.into(),
            frame_number: None,
            probe: None,
        }
    }
}

impl Simulation {
    /// Something came in on a stream; the loop will see it in its next turn.
    pub(crate) fn deliver_to_relay(&mut self, conn: usize, item: UpstreamItem) {
        if self.relay.core.is_none() || !self.streams[conn].relay_open {
            return;
        }
        let session = self.streams[conn].session;
        let (input, nth) = match item {
            UpstreamItem::Hello(hello) => {
                self.streams[conn].hello_read = true;
                (SessionInput::Opened { session, hello }, None)
            }
            UpstreamItem::Input(input) => (input, None),
            // A result that came before its output is refused, and comes again in its place; other
            // ends wait in the session.
            UpstreamItem::Frame {
                frame,
                is_replay: ghost,
                ..
            } if ghost && self.is_before_its_output(&frame) => {
                match self.mark_output_missing(frame) {
                    Some(frame) => (SessionInput::Frame(frame), None),
                    None => return,
                }
            }
            UpstreamItem::Frame {
                frame,
                frame_number: nth,
                ..
            } => (SessionInput::Frame(frame), nth),
            UpstreamItem::Output(chunk) => return self.store_output(conn, &chunk),
            UpstreamItem::End => {
                self.streams[conn].relay_open = false;
                (SessionInput::Closed { session }, None)
            }
        };
        self.relay.inbox.push_back(RelayInput {
            frame_number: nth,
            ..input.into()
        });
        self.wake_relay();
    }

    pub(crate) fn send_request<C: Command>(
        &mut self,
        command: C,
        reply: impl FnOnce(C::Reply) -> SimReply + Send + 'static,
    ) -> Option<RequestId> {
        self.send_probed_request(command, reply, |_| None)
    }

    /// The same for a request whose effects are checked.
    pub(crate) fn send_probed_request<C: Command>(
        &mut self,
        command: C,
        reply: impl FnOnce(C::Reply) -> SimReply + Send + 'static,
        probe: impl FnOnce(RequestId) -> Option<RequestProbe>,
    ) -> Option<RequestId> {
        self.relay.core.as_ref()?;
        let request = RequestId(self.clients.next_request());
        let input = self.relay.reply_ports.input(request, command, reply);
        self.relay.requests.push_back(RelayInput {
            probe: probe(request),
            ..input.into()
        });
        self.wake_relay();
        Some(request)
    }

    pub(crate) fn send_agent_input(&mut self, input: RelayInput) {
        self.relay.inbox.push_back(input);
        self.wake_relay();
    }
}
