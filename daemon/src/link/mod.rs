//! Keeps one stream to the relay: connects, sends Hello, reads frames, and reconnects after
//! every loss, without end. It has no attempts and decides nothing about them; the supervisor
//! gets every frame.

use std::path::PathBuf;
use std::time::Duration;

use baton_daemon_core::reconnect_delay;
use baton_daemon_core::reconnect_delay::ReconnectState;
use baton_daemon_core::reconnect_urgency::ReconnectUrgency;
use baton_proto::MAX_WIRE_BYTES;
use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{DaemonFrame, Hello, RelayFrame, daemon_frame};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::link::link_session::LinkSession;
use crate::supervisor::LinkEvent;

pub(crate) mod link_session;
mod relay_address;
mod stream_outcome;

pub use relay_address::LinkError;
pub(crate) use relay_address::{endpoint, read_token};

use stream_outcome::{
    ReconnectPause, StreamOutcome, error_hint, full_error_text, lost, not_reached, on_goodbye,
    on_status,
};

/// The longest time for connecting, and again for the answer to Hello.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The least time for each, however little is left of a lease. A relay under load lets a daemon
/// with attempts wait for up to three seconds.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const MIN_WELCOME_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the relay has to close its side after Goodbye. Short, because a daemon must have
/// exited a second after its deadline.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(200);
/// Another instance took over this daemon's id. Reconnecting earlier would take it away from
/// that one again.
const SUPERSEDED_PAUSE: Duration = Duration::from_secs(60);
/// How often the token file is read while the relay refuses the current token.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct RelayLink {
    pub(crate) endpoint: Endpoint,
    pub(crate) token_file: PathBuf,
    pub(crate) clock: Clock,
    /// When it is full the link waits, and with it the relay.
    pub(crate) supervisor: mpsc::Sender<LinkEvent>,
    pub(crate) reconnect_urgency: watch::Receiver<ReconnectUrgency>,
    /// Attempts of an earlier daemon are adopted: a refused token is then no reason to stop,
    /// which would end them.
    pub(crate) has_adopted_attempts: bool,
    /// The token that the relay received last.
    pub(crate) last_token: Option<MetadataValue<Ascii>>,
    /// The supervisor has finished: send nothing more, do not reconnect.
    pub(crate) finish: CancellationToken,
}

impl RelayLink {
    /// Connects and reconnects until it is finished or given up.
    pub(crate) async fn run(mut self) {
        let finish = self.finish.clone();
        let mut failures = 0;
        let mut was_welcome = self.has_adopted_attempts;
        for number in 1.. {
            let outcome = self.run_stream(number).await;
            if finish.is_cancelled() {
                return;
            }
            let mut urgency = *self.reconnect_urgency.borrow();
            let pause = match outcome {
                StreamOutcome::SupervisorGone => return,
                StreamOutcome::Lost(pause) => {
                    (failures, was_welcome) = (0, true);
                    pause
                }
                StreamOutcome::NotReached(pause) => {
                    failures += 1;
                    pause
                }
                StreamOutcome::Superseded(pause) => {
                    (failures, was_welcome) = (0, true);
                    // Leases that end meanwhile belong to the other instance, or are lost
                    // anyway.
                    urgency = ReconnectUrgency::default();
                    let retry_after = pause.retry_after.unwrap_or_default().max(SUPERSEDED_PAUSE);
                    ReconnectPause {
                        retry_after: Some(retry_after),
                        ..pause
                    }
                }
                StreamOutcome::Refused { message, welcomed } if was_welcome || welcomed => {
                    was_welcome = true;
                    warn!(
                        message,
                        "the relay no longer accepts this token; waiting for a new one in the token file"
                    );
                    self.report_not_connected(format!(
                        "the relay no longer accepts this token: {message}"
                    ))
                    .await;
                    self.await_new_token().await;
                    continue;
                }
                StreamOutcome::Refused { message, .. } => {
                    return self.give_up(LinkError::Refused { message }).await;
                }
                StreamOutcome::UnsupportedVersion { message } => {
                    return self.give_up(LinkError::Version { message }).await;
                }
            };
            let state = ReconnectState {
                failures,
                retry_after: pause.retry_after,
                shortest_lease: urgency.remaining_lease(self.clock.now()),
                max_result_delay: urgency.max_result_delay,
            };
            self.report_not_connected(pause.why).await;
            self.back_off(state).await;
        }
    }

    async fn give_up(&self, error: LinkError) {
        // Without a supervisor the event has no receiver.
        let _ = self.supervisor.send(LinkEvent::GivenUp(error)).await;
    }

    async fn report_not_connected(&self, why: String) {
        // Without a supervisor the event has no receiver.
        let _ = self.supervisor.send(LinkEvent::NotConnected(why)).await;
    }

    async fn back_off(&self, state: ReconnectState) {
        let wait = reconnect_delay::reconnect_delay(state, rand::random());
        debug!(?wait, ?state, "dialing again");
        let at = self.clock.now().after(wait);
        tokio::select! {
            () = self.finish.cancelled() => {}
            () = self.clock.sleep_until(at) => {}
        }
    }

    /// A refused token is not sent again. The file may already contain the next one, so it is
    /// compared with the token that was sent.
    async fn await_new_token(&self) {
        let is_new = || {
            read_token(&self.token_file).is_ok_and(|token| Some(&token) != self.last_token.as_ref())
        };
        while !is_new() && !self.finish.is_cancelled() {
            let look_at = self.clock.now().after(TOKEN_CHECK_INTERVAL);
            tokio::select! {
                () = self.finish.cancelled() => {}
                () = self.clock.sleep_until(look_at) => {}
            }
        }
    }

    /// One stream from connecting to its end.
    async fn run_stream(&mut self, number: u64) -> StreamOutcome {
        let (reply, hello) = oneshot::channel();
        if self
            .supervisor
            .send(LinkEvent::HelloRequested(reply))
            .await
            .is_err()
        {
            return StreamOutcome::SupervisorGone;
        }
        let Ok(hello) = hello.await else {
            return StreamOutcome::SupervisorGone;
        };
        let close = CancellationToken::new();
        let (session, outgoing) = LinkSession::new(number, close.clone());
        let hello_sent_at = self.clock.now();
        let finish = self.finish.clone();
        let dialed = tokio::select! {
            () = finish.cancelled() => return StreamOutcome::SupervisorGone,
            dialed = self.dial(hello, outgoing) => dialed,
        };
        let (mut stream, welcome) = match dialed {
            Ok(dialed) => dialed,
            Err(outcome) => return outcome,
        };
        let (admitted, admission) = oneshot::channel();
        let up = LinkEvent::Connected {
            session,
            hello_sent_at,
            welcome: Box::new(welcome),
            admitted,
        };
        if self.supervisor.send(up).await.is_err() {
            return StreamOutcome::SupervisorGone;
        }
        match admission.await {
            Ok(true) => {}
            // The old relay may stay reachable for long: treated as a failure, with a growing
            // delay.
            Ok(false) => return not_reached("a replaced relay answered"),
            Err(_) => return StreamOutcome::SupervisorGone,
        }
        let outcome = self.forward_frames(number, &mut stream, &close).await;
        match self
            .supervisor
            .send(LinkEvent::Disconnected { session: number })
            .await
        {
            Ok(()) => outcome,
            Err(_) => StreamOutcome::SupervisorGone,
        }
    }

    async fn dial(
        &mut self,
        hello: Hello,
        outgoing: link_session::OutgoingFrames,
    ) -> Result<(Streaming<RelayFrame>, RelayFrame), StreamOutcome> {
        let token = read_token(&self.token_file).map_err(|error| {
            warn!(error = %error, "cannot connect to the relay");
            not_reached(error.to_string())
        })?;
        self.last_token = Some(token.clone());
        let urgency = *self.reconnect_urgency.borrow();
        let timeouts = DialTimeouts::for_shortest_lease(urgency.remaining_lease(self.clock.now()));
        let no_answer =
            |what: &str, limit: Duration| not_reached(format!("{what} within {limit:?}"));
        let channel = tokio::time::timeout(timeouts.connect, self.endpoint.connect())
            .await
            .map_err(|_| no_answer("the relay did not answer", timeouts.connect))?
            .map_err(|error| {
                let error = full_error_text(&error);
                let hint = error_hint(&error);
                not_reached(format!("the relay cannot be reached: {error}{hint}"))
            })?;
        let opened = tokio::time::timeout(
            timeouts.answer,
            open_stream(channel, token, hello, outgoing),
        );
        opened
            .await
            .unwrap_or_else(|_| Err(no_answer("the relay did not send Welcome", timeouts.answer)))
    }

    /// Forwards frames until the stream ends. The supervisor ends it with `close`.
    async fn forward_frames(
        &self,
        number: u64,
        stream: &mut Streaming<RelayFrame>,
        close: &CancellationToken,
    ) -> StreamOutcome {
        loop {
            let message = tokio::select! {
                () = close.cancelled() => return lost("the relay did not answer heartbeats"),
                () = self.finish.cancelled() => {
                    // Dropping the stream at once could lose the Goodbye that is being sent.
                    let _ = tokio::time::timeout(GOODBYE_TIMEOUT, drain_stream(stream)).await;
                    return StreamOutcome::SupervisorGone;
                }
                message = stream.message() => message,
            };
            let frame = match message {
                Ok(Some(frame)) => frame,
                Ok(None) => return lost("the relay closed the stream"),
                Err(status) => return on_status(&status, true),
            };
            if let Some(Frame::Goodbye(goodbye)) = &frame.frame {
                return on_goodbye(goodbye, true);
            }
            let event = LinkEvent::Frame {
                session: number,
                frame: Box::new(frame),
            };
            if self.supervisor.send(event).await.is_err() {
                return StreamOutcome::SupervisorGone;
            }
        }
    }
}

/// The time limits of one try. When a lease is at stake, a try that hangs is replaced early:
/// TCP waits longer and longer before it detects that a network is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DialTimeouts {
    connect: Duration,
    answer: Duration,
}

impl DialTimeouts {
    fn for_shortest_lease(shortest_lease: Option<Duration>) -> Self {
        let left = shortest_lease.unwrap_or(Duration::MAX);
        Self {
            connect: (left / 4).clamp(MIN_CONNECT_TIMEOUT, HANDSHAKE_TIMEOUT),
            answer: (left / 2).clamp(MIN_WELCOME_TIMEOUT, HANDSHAKE_TIMEOUT),
        }
    }
}

/// Opens the stream with Hello as its first frame and waits for the relay's first frame.
async fn open_stream(
    channel: Channel,
    token: MetadataValue<Ascii>,
    hello: Hello,
    outgoing: link_session::OutgoingFrames,
) -> Result<(Streaming<RelayFrame>, RelayFrame), StreamOutcome> {
    let mut client = DaemonLinkClient::new(channel)
        .max_decoding_message_size(MAX_WIRE_BYTES)
        .max_encoding_message_size(MAX_WIRE_BYTES);
    let hello = DaemonFrame {
        frame: Some(daemon_frame::Frame::Hello(hello)),
    };
    let mut request = Request::new(tokio_stream::once(hello).chain(outgoing));
    request.metadata_mut().insert("authorization", token);
    let opened = client
        .link(request)
        .await
        .map_err(|status| on_status(&status, false))?;
    let mut stream = opened.into_inner();
    let first = stream
        .message()
        .await
        .map_err(|status| on_status(&status, false))?;
    let first = first.ok_or_else(|| not_reached("the relay closed the stream"))?;
    match &first.frame {
        Some(Frame::Goodbye(goodbye)) => Err(on_goodbye(goodbye, false)),
        _ => Ok((stream, first)),
    }
}

async fn drain_stream(stream: &mut Streaming<RelayFrame>) {
    while let Ok(Some(_)) = stream.message().await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_takes_less_time_when_a_lease_is_at_stake() {
        let timeouts = |left: Option<u64>| {
            let timeouts = DialTimeouts::for_shortest_lease(left.map(Duration::from_secs));
            (timeouts.connect.as_secs(), timeouts.answer.as_secs())
        };
        assert_eq!(timeouts(None), (10, 10));
        assert_eq!(timeouts(Some(600)), (10, 10));
        assert_eq!(timeouts(Some(16)), (4, 8));
        assert_eq!(timeouts(Some(2)), (1, 4));
    }
}
