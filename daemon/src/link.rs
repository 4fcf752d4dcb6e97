//! Keeps one stream to the relay: dials, says Hello, reads frames, and after every loss dials again,
//! for ever. Holds no attempt and decides nothing about one; the supervisor gets every frame.

use std::path::PathBuf;
use std::time::Duration;

use baton_proto::WIRE_BYTES;
use baton_proto::codes::refusals;
use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{DaemonFrame, Goodbye, GoodbyeCode, Hello, RelayFrame, daemon_frame};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, info, warn};

use crate::backoff::{self, Retry};
use crate::clock::{Clock, Moment};
use crate::session::Session;
use crate::supervisor::LinkEvent;

mod address;

pub use address::LinkError;
pub(crate) use address::{endpoint, read_token};

/// Connecting, and then the answer to Hello.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After Goodbye, how long the relay has to close its side.
const FAREWELL: Duration = Duration::from_secs(2);
/// Another instance took over this daemon's id.
const SUPERSEDED: Duration = Duration::from_secs(60);
/// How often a refused credential's file is looked at for a new one.
const TOKEN_LOOK: Duration = Duration::from_secs(2);

pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    pub(crate) token_file: PathBuf,
    pub(crate) clock: Clock,
    /// Full: the link waits, and with it the relay.
    pub(crate) supervisor: mpsc::Sender<LinkEvent>,
    pub(crate) shortest_lease: watch::Receiver<Option<Moment>>,
    /// The supervisor is done: say no more, dial no more.
    pub(crate) finish: CancellationToken,
}

/// How one stream, or one try at it, ended.
#[derive(Debug)]
enum Outcome {
    /// The relay had said Welcome.
    Lost {
        retry_after: Option<Duration>,
    },
    NotReached {
        retry_after: Option<Duration>,
    },
    Refused {
        message: String,
    },
    Version {
        message: String,
    },
    /// The supervisor is gone.
    Over,
}

impl Link {
    /// Dials until it is finished or given up.
    pub(crate) async fn run(mut self) {
        let finish = self.finish.clone();
        let mut failures = 0;
        let mut was_welcome = false;
        for number in 1.. {
            let outcome = self.one_stream(number).await;
            if finish.is_cancelled() {
                return;
            }
            let retry_after = match outcome {
                Outcome::Over => return,
                Outcome::Lost { retry_after } => {
                    (failures, was_welcome) = (0, true);
                    retry_after
                }
                Outcome::NotReached { retry_after } => {
                    failures += 1;
                    retry_after
                }
                Outcome::Refused { message } if was_welcome => {
                    warn!(
                        message,
                        "the relay no longer takes this token; waiting for a new one"
                    );
                    self.await_new_token().await;
                    continue;
                }
                Outcome::Refused { message } => {
                    return self.give_up(LinkError::Refused { message }).await;
                }
                Outcome::Version { message } => {
                    return self.give_up(LinkError::Version { message }).await;
                }
            };
            self.back_off(failures, retry_after).await;
        }
    }

    async fn give_up(&self, error: LinkError) {
        // Without a supervisor nobody needs to know.
        let _ = self.supervisor.send(LinkEvent::GivenUp(error)).await;
    }

    async fn back_off(&self, failures: u32, retry_after: Option<Duration>) {
        let now = self.clock.now();
        let shortest_lease = self.shortest_lease.borrow().map(|limit| now.until(limit));
        let shortest_lease = shortest_lease.filter(|left| !left.is_zero());
        let wait = backoff::delay(
            Retry {
                failures,
                retry_after,
                shortest_lease,
            },
            rand::random(),
        );
        debug!(?wait, failures, "dialing again");
        tokio::select! {
            () = self.finish.cancelled() => {}
            () = self.clock.sleep_until(now.after(wait)) => {}
        }
    }

    /// A credential that was refused is not shown again.
    async fn await_new_token(&self) {
        let refused = read_token(&self.token_file).ok();
        while read_token(&self.token_file).ok() == refused && !self.finish.is_cancelled() {
            let look_at = self.clock.now().after(TOKEN_LOOK);
            tokio::select! {
                () = self.finish.cancelled() => {}
                () = self.clock.sleep_until(look_at) => {}
            }
        }
    }

    /// One stream from dialing to its end.
    async fn one_stream(&mut self, number: u64) -> Outcome {
        let (reply, hello) = oneshot::channel();
        if self
            .supervisor
            .send(LinkEvent::HelloWanted(reply))
            .await
            .is_err()
        {
            return Outcome::Over;
        }
        let Ok(hello) = hello.await else {
            return Outcome::Over;
        };
        let close = CancellationToken::new();
        let (session, outgoing) = Session::new(number, close.clone());
        let hello_sent_at = self.clock.now();
        let dialed = tokio::select! {
            () = self.finish.cancelled() => return Outcome::Over,
            dialed = self.dial(hello, outgoing) => dialed,
        };
        let (mut stream, welcome) = match dialed {
            Ok(dialed) => dialed,
            Err(outcome) => return outcome,
        };
        let up = LinkEvent::Up {
            session,
            hello_sent_at,
            welcome: Box::new(welcome),
        };
        if self.supervisor.send(up).await.is_err() {
            return Outcome::Over;
        }
        let outcome = self.read(number, &mut stream, &close).await;
        match self
            .supervisor
            .send(LinkEvent::Down { session: number })
            .await
        {
            Ok(()) => outcome,
            Err(_) => Outcome::Over,
        }
    }

    async fn dial(
        &self,
        hello: Hello,
        outgoing: crate::session::Outgoing,
    ) -> Result<(Streaming<RelayFrame>, RelayFrame), Outcome> {
        let not_reached = || Outcome::NotReached { retry_after: None };
        let token = read_token(&self.token_file).map_err(|error| {
            warn!(error = %error, "cannot dial");
            not_reached()
        })?;
        let channel = self.endpoint.connect().await.map_err(|error| {
            debug!(error = %full(&error), "the relay cannot be reached");
            not_reached()
        })?;
        let welcomed = tokio::time::timeout(HANDSHAKE, greet(channel, token, hello, outgoing));
        welcomed.await.unwrap_or_else(|_| Err(not_reached()))
    }

    /// Passes frames on until the stream ends. The supervisor ends it by `close`.
    async fn read(
        &self,
        number: u64,
        stream: &mut Streaming<RelayFrame>,
        close: &CancellationToken,
    ) -> Outcome {
        loop {
            let message = tokio::select! {
                () = close.cancelled() => return Outcome::Lost { retry_after: None },
                () = self.finish.cancelled() => {
                    // Dropping the stream at once could overtake the Goodbye that is on its way.
                    let _ = tokio::time::timeout(FAREWELL, drain(stream)).await;
                    return Outcome::Over;
                }
                message = stream.message() => message,
            };
            let frame = match message {
                Ok(Some(frame)) => frame,
                Ok(None) => return Outcome::Lost { retry_after: None },
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
                return Outcome::Over;
            }
        }
    }
}

/// Opens the stream with Hello as its first frame and waits for the relay's first word.
async fn greet(
    channel: Channel,
    token: MetadataValue<Ascii>,
    hello: Hello,
    outgoing: crate::session::Outgoing,
) -> Result<(Streaming<RelayFrame>, RelayFrame), Outcome> {
    let mut client = DaemonLinkClient::new(channel)
        .max_decoding_message_size(WIRE_BYTES)
        .max_encoding_message_size(WIRE_BYTES);
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
    let first = first.ok_or(Outcome::NotReached { retry_after: None })?;
    match &first.frame {
        Some(Frame::Goodbye(goodbye)) => Err(on_goodbye(goodbye, false)),
        _ => Ok((stream, first)),
    }
}

async fn drain(stream: &mut Streaming<RelayFrame>) {
    while let Ok(Some(_)) = stream.message().await {}
}

fn ended(welcomed: bool, retry_after: Option<Duration>) -> Outcome {
    if welcomed {
        Outcome::Lost { retry_after }
    } else {
        Outcome::NotReached { retry_after }
    }
}

fn on_status(status: &Status, welcomed: bool) -> Outcome {
    info!(code = ?status.code(), message = status.message(), "the stream ended");
    let message = status.message().to_owned();
    let detail = baton_proto::unpack_error_detail(status);
    if detail.is_some_and(|detail| detail.code == refusals::VERSION_UNSUPPORTED) {
        return Outcome::Version { message };
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Outcome::Refused { message },
        _ => ended(welcomed, None),
    }
}

fn on_goodbye(goodbye: &Goodbye, welcomed: bool) -> Outcome {
    info!(code = ?goodbye.code(), message = %goodbye.message, "the relay said goodbye");
    let asked = goodbye.retry_after_ms.map(Duration::from_millis);
    match goodbye.code() {
        GoodbyeCode::AuthExpired => Outcome::Refused {
            message: goodbye.message.clone(),
        },
        GoodbyeCode::VersionUnsupported => Outcome::Version {
            message: goodbye.message.clone(),
        },
        GoodbyeCode::Superseded => ended(welcomed, Some(asked.unwrap_or(SUPERSEDED))),
        GoodbyeCode::Unspecified
        | GoodbyeCode::Shutdown
        | GoodbyeCode::Draining
        | GoodbyeCode::ProtocolError
        | GoodbyeCode::IdleTimeout
        | GoodbyeCode::Busy
        | GoodbyeCode::Disconnected
        | GoodbyeCode::Restarting => ended(welcomed, asked),
    }
}

/// tonic's transport errors say the useful part in their sources.
fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::ErrorDetail;

    use super::*;

    #[test]
    fn a_relay_without_a_common_version_is_not_dialed_again() {
        let detail = ErrorDetail {
            code: refusals::VERSION_UNSUPPORTED.to_owned(),
            ..ErrorDetail::default()
        };
        let packed = baton_proto::pack_error_detail(Code::FailedPrecondition, "version", &detail);
        let refused = Status::with_details(Code::FailedPrecondition, "version", packed);
        assert!(matches!(
            on_status(&refused, false),
            Outcome::Version { .. }
        ));
        let other = Status::with_details(Code::FailedPrecondition, "other", Default::default());
        assert!(!matches!(on_status(&other, false), Outcome::Version { .. }));
    }
}
