//! Keeps one stream to the relay: dials, says Hello, reads frames, and after every loss dials again,
//! for ever. Holds no attempt and decides nothing about one; the supervisor gets every frame.

use std::path::PathBuf;
use std::time::Duration;

use baton_daemon_core::backoff::{self, Retry};
use baton_daemon_core::stake::Stake;
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

use crate::clock::Clock;
use crate::session::Session;
use crate::supervisor::LinkEvent;

mod address;

pub use address::LinkError;
pub(crate) use address::{endpoint, read_token};

/// Longest time for connecting, and then again for the answer to Hello.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Least time for each, however little is left of a lease. A relay in a storm lets a daemon with attempts wait for up to
/// three seconds.
const LEAST_CONNECT: Duration = Duration::from_secs(1);
const LEAST_ANSWER: Duration = Duration::from_secs(4);
/// After Goodbye, how long the relay has to close its side. A daemon is gone a second after its deadline, so it is short.
const FAREWELL: Duration = Duration::from_millis(200);
/// Another instance took over this daemon's id. Coming back earlier would take it away from that one again.
const SUPERSEDED: Duration = Duration::from_secs(60);
/// How often a refused credential's file is looked at for a new one.
const TOKEN_LOOK: Duration = Duration::from_secs(2);

pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    pub(crate) token_file: PathBuf,
    pub(crate) clock: Clock,
    /// Full: the link waits, and with it the relay.
    pub(crate) supervisor: mpsc::Sender<LinkEvent>,
    pub(crate) stake: watch::Receiver<Stake>,
    /// Attempts of an earlier daemon are waiting: a refused credential is then no reason to end, and with it them.
    pub(crate) is_expected: bool,
    /// The credential that the relay saw last.
    pub(crate) shown: Option<MetadataValue<Ascii>>,
    /// The supervisor is done: say no more, dial no more.
    pub(crate) finish: CancellationToken,
}

/// How one stream, or one try at it, ended.
#[derive(Debug)]
enum Outcome {
    /// The relay had said Welcome.
    Lost(Pause),
    NotReached(Pause),
    /// Somebody else speaks for this daemon now.
    Superseded(Pause),
    /// The credential is not taken, or not any more.
    Refused {
        message: String,
        welcomed: bool,
    },
    Version {
        message: String,
    },
    /// The supervisor is gone.
    Over,
}

/// Why there is no stream for a while, and how long at least the relay wants it so.
#[derive(Debug)]
struct Pause {
    why: String,
    retry_after: Option<Duration>,
}

impl Pause {
    fn because(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            retry_after: None,
        }
    }
}

impl Link {
    /// Dials until it is finished or given up.
    pub(crate) async fn run(mut self) {
        let finish = self.finish.clone();
        let mut failures = 0;
        let mut was_welcome = self.is_expected;
        for number in 1.. {
            let outcome = self.one_stream(number).await;
            if finish.is_cancelled() {
                return;
            }
            let mut stake = *self.stake.borrow();
            let pause = match outcome {
                Outcome::Over => return,
                Outcome::Lost(pause) => {
                    (failures, was_welcome) = (0, true);
                    pause
                }
                Outcome::NotReached(pause) => {
                    failures += 1;
                    pause
                }
                Outcome::Superseded(pause) => {
                    (failures, was_welcome) = (0, true);
                    // Leases that run out meanwhile are the other one's now, or nobody's.
                    stake = Stake::default();
                    let retry_after = pause.retry_after.unwrap_or_default().max(SUPERSEDED);
                    Pause {
                        retry_after: Some(retry_after),
                        ..pause
                    }
                }
                Outcome::Refused { message, welcomed } if was_welcome || welcomed => {
                    was_welcome = true;
                    warn!(
                        message,
                        "the relay no longer takes this token; waiting for a new one"
                    );
                    self.tell_trouble(format!("the relay no longer takes this token: {message}"))
                        .await;
                    self.await_new_token().await;
                    continue;
                }
                Outcome::Refused { message, .. } => {
                    return self.give_up(LinkError::Refused { message }).await;
                }
                Outcome::Version { message } => {
                    return self.give_up(LinkError::Version { message }).await;
                }
            };
            let retry = Retry {
                failures,
                retry_after: pause.retry_after,
                shortest_lease: stake.lease_left(self.clock.now()),
                last_words: stake.last_words,
            };
            self.tell_trouble(pause.why).await;
            self.back_off(retry).await;
        }
    }

    async fn give_up(&self, error: LinkError) {
        // Without a supervisor nobody needs to know.
        let _ = self.supervisor.send(LinkEvent::GivenUp(error)).await;
    }

    async fn tell_trouble(&self, why: String) {
        // Without a supervisor nobody needs to know.
        let _ = self.supervisor.send(LinkEvent::Trouble(why)).await;
    }

    async fn back_off(&self, retry: Retry) {
        let wait = backoff::delay(retry, rand::random());
        debug!(?wait, ?retry, "dialing again");
        let at = self.clock.now().after(wait);
        tokio::select! {
            () = self.finish.cancelled() => {}
            () = self.clock.sleep_until(at) => {}
        }
    }

    /// A credential that was refused is not shown again. The file may hold the next one already: it is the one that was
    /// shown that counts.
    async fn await_new_token(&self) {
        let is_new =
            || read_token(&self.token_file).is_ok_and(|token| Some(&token) != self.shown.as_ref());
        while !is_new() && !self.finish.is_cancelled() {
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
        let finish = self.finish.clone();
        let dialed = tokio::select! {
            () = finish.cancelled() => return Outcome::Over,
            dialed = self.dial(hello, outgoing) => dialed,
        };
        let (mut stream, welcome) = match dialed {
            Ok(dialed) => dialed,
            Err(outcome) => return outcome,
        };
        let (admitted, admission) = oneshot::channel();
        let up = LinkEvent::Up {
            session,
            hello_sent_at,
            welcome: Box::new(welcome),
            admitted,
        };
        if self.supervisor.send(up).await.is_err() {
            return Outcome::Over;
        }
        match admission.await {
            Ok(true) => {}
            // It may stay as it is for long: a failure like any other, with its growing pause.
            Ok(false) => return not_reached("a relay of the past answered"),
            Err(_) => return Outcome::Over,
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
        &mut self,
        hello: Hello,
        outgoing: crate::session::Outgoing,
    ) -> Result<(Streaming<RelayFrame>, RelayFrame), Outcome> {
        let token = read_token(&self.token_file).map_err(|error| {
            warn!(error = %error, "cannot dial");
            not_reached(error.to_string())
        })?;
        self.shown = Some(token.clone());
        let stake = *self.stake.borrow();
        let patience = Patience::with(stake.lease_left(self.clock.now()));
        let silent = |what: &str, limit: Duration| not_reached(format!("{what} within {limit:?}"));
        let channel = tokio::time::timeout(patience.connect, self.endpoint.connect())
            .await
            .map_err(|_| silent("the relay did not answer", patience.connect))?
            .map_err(|error| {
                let error = full(&error);
                let hint = hint(&error);
                not_reached(format!("the relay cannot be reached: {error}{hint}"))
            })?;
        let greeted = tokio::time::timeout(patience.answer, greet(channel, token, hello, outgoing));
        greeted
            .await
            .unwrap_or_else(|_| Err(silent("the relay said no Welcome", patience.answer)))
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
                () = close.cancelled() => return lost("the relay was not heard any more"),
                () = self.finish.cancelled() => {
                    // Dropping the stream at once could overtake the Goodbye that is on its way.
                    let _ = tokio::time::timeout(FAREWELL, drain(stream)).await;
                    return Outcome::Over;
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
                return Outcome::Over;
            }
        }
    }
}

/// How long one try may take. With a lease at stake a try that hangs makes place for a fresh one: TCP waits longer and
/// longer before it looks whether a network is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    connect: Duration,
    answer: Duration,
}

impl Patience {
    fn with(shortest_lease: Option<Duration>) -> Self {
        let left = shortest_lease.unwrap_or(Duration::MAX);
        Self {
            connect: (left / 4).clamp(LEAST_CONNECT, HANDSHAKE),
            answer: (left / 2).clamp(LEAST_ANSWER, HANDSHAKE),
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
    let first = first.ok_or_else(|| not_reached("the relay closed the stream"))?;
    match &first.frame {
        Some(Frame::Goodbye(goodbye)) => Err(on_goodbye(goodbye, false)),
        _ => Ok((stream, first)),
    }
}

async fn drain(stream: &mut Streaming<RelayFrame>) {
    while let Ok(Some(_)) = stream.message().await {}
}

fn lost(why: &str) -> Outcome {
    Outcome::Lost(Pause::because(why))
}

fn not_reached(why: impl Into<String>) -> Outcome {
    Outcome::NotReached(Pause::because(why))
}

fn ended(welcomed: bool, pause: Pause) -> Outcome {
    if welcomed {
        Outcome::Lost(pause)
    } else {
        Outcome::NotReached(pause)
    }
}

fn on_status(status: &Status, welcomed: bool) -> Outcome {
    info!(code = ?status.code(), message = status.message(), "the stream ended");
    let message = status.message().to_owned();
    let detail = baton_proto::unpack_error_detail(status).unwrap_or_default();
    if detail.code == refusals::VERSION_UNSUPPORTED {
        return Outcome::Version { message };
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Outcome::Refused { message, welcomed },
        _ => {
            let pause = Pause {
                why: format!("the stream ended: {message}"),
                retry_after: detail.retry_after_ms.map(Duration::from_millis),
            };
            ended(welcomed, pause)
        }
    }
}

fn on_goodbye(goodbye: &Goodbye, welcomed: bool) -> Outcome {
    info!(code = ?goodbye.code(), message = %goodbye.message, "the relay said goodbye");
    let pause = Pause {
        why: format!("the relay said goodbye: {}", goodbye.message),
        retry_after: goodbye.retry_after_ms.map(Duration::from_millis),
    };
    match goodbye.code() {
        GoodbyeCode::AuthExpired => Outcome::Refused {
            message: goodbye.message.clone(),
            welcomed,
        },
        GoodbyeCode::VersionUnsupported => Outcome::Version {
            message: goodbye.message.clone(),
        },
        GoodbyeCode::Superseded => Outcome::Superseded(pause),
        GoodbyeCode::Unspecified
        | GoodbyeCode::Shutdown
        | GoodbyeCode::Draining
        | GoodbyeCode::ProtocolError
        | GoodbyeCode::IdleTimeout
        | GoodbyeCode::Busy
        | GoodbyeCode::Disconnected
        | GoodbyeCode::TooManyDaemons
        | GoodbyeCode::Restarting => ended(welcomed, pause),
    }
}

/// What to look at, where the cause tells.
fn hint(error: &str) -> &'static str {
    if error.contains("certificate") {
        "; see whether --ca names the authority of the relay's certificate, and --relay the host it was made for"
    } else {
        ""
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
    fn a_try_takes_less_time_when_a_lease_is_at_stake() {
        let patience = |left: Option<u64>| {
            let patience = Patience::with(left.map(Duration::from_secs));
            (patience.connect.as_secs(), patience.answer.as_secs())
        };
        assert_eq!(patience(None), (10, 10));
        assert_eq!(patience(Some(600)), (10, 10));
        assert_eq!(patience(Some(16)), (4, 8));
        assert_eq!(patience(Some(2)), (1, 4));
    }

    #[test]
    fn a_superseded_daemon_is_told_apart_from_one_that_lost_its_stream() {
        let goodbye = |code: GoodbyeCode| Goodbye {
            code: code.into(),
            retry_after_ms: Some(7),
            ..Goodbye::default()
        };
        let wish = Some(Duration::from_millis(7));
        let superseded = on_goodbye(&goodbye(GoodbyeCode::Superseded), true);
        assert!(
            matches!(&superseded, Outcome::Superseded(pause) if pause.retry_after == wish),
            "{superseded:?}"
        );
        let busy = on_goodbye(&goodbye(GoodbyeCode::Busy), false);
        assert!(
            matches!(&busy, Outcome::NotReached(pause) if pause.retry_after == wish),
            "{busy:?}"
        );
    }

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
