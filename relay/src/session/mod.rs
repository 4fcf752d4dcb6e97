//! One live stream of one daemon: a pipe that decodes, checks who may speak, and forwards.
//!
//! Control frames go to the dispatcher, output goes straight to the output log, messages come back over one bounded
//! channel. A session decides nothing about an attempt, and its end ends none.

mod admission;
mod decode;
mod encode;
mod fault;
mod handshake;
mod held;
mod hello;
mod inbound;
mod outbound;
mod unknown;

use std::collections::VecDeque;
use std::sync::Arc;

use baton_core::effects::Downstream;
use baton_core::id::{AttemptId, SessionId};
use baton_core::input::{Frame, FrameRef, Input};
use baton_core::time::Moment;
use baton_proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::auth::Principal;
use crate::clock::Clock;
use crate::dispatcher::{Dispatcher, FromSession, ToSession, Window};
use crate::output::{AckFeed, OutputEnd, OutputLog};
use crate::reader::Reader;
use crate::telemetry::Telemetry;
use admission::Caller;
use handshake::Turned;
use held::Held;

pub(crate) use admission::Admission;
pub(crate) use decode::{artifact, usage, words_of};
pub(crate) use encode::Stamp;
pub use fault::{FrameFault, LinkFault};
pub(crate) use inbound::VISIBLE;

/// Encoded frames that wait for the wire. Full: the session stops taking messages, and the dispatcher closes it
/// when its queue is full as well.
const WIRE_QUEUE: usize = 256;
/// A wire that takes nothing for this long ends the session: a daemon that cannot receive is not alive.
const WIRE_STALL_MS: u64 = 10_000;
const LOOK_FOR_ROOM_MS: u64 = 1_000;

/// What every session needs of the relay. Clones share it.
#[derive(Clone, Debug)]
pub struct Shell {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: Reader,
    pub(crate) output: OutputLog,
    pub(crate) clock: Clock,
    pub(crate) stamp: Arc<Stamp>,
    pub(crate) telemetry: Telemetry,
    /// Says whether a credential may still be used; a daemon id is bound to one that can.
    pub(crate) tokens: crate::auth::Tokens,
    /// How fast daemons are let in.
    pub(crate) admission: Admission,
    /// The relay is going away: say Goodbye and end.
    pub(crate) stop: CancellationToken,
}

/// A place in the queue to the wire. A frame is some 600 bytes and a queue begins with room for 32: boxed, ten thousand idle
/// daemons do not cost 200 MB of empty places.
type OnWire = Result<Box<v1::RelayFrame>, Status>;

/// Serves one stream until either side ends it. Returns its answering half at once; the session runs on its own.
pub(crate) fn serve(
    principal: Principal,
    inbound: Streaming<v1::DaemonFrame>,
    shell: Shell,
) -> impl Stream<Item = Result<v1::RelayFrame, Status>> + Send + use<> {
    let (wire, frames) = mpsc::channel::<OnWire>(WIRE_QUEUE);
    tokio::spawn(async move {
        match handshake::greet(principal, inbound, shell, wire.clone()).await {
            Ok(session) => session.run().await,
            Err(Turned::Away(fault)) => {
                tracing::info!(%fault, "a daemon's stream was refused");
                let _ = wire
                    .send(Err(crate::api::status::status(&fault.into())))
                    .await; // The peer may have gone.
            }
            Err(Turned::Left) => tracing::debug!("a daemon left before it was its turn"),
            Err(Turned::Later(goodbye)) => {
                let _ = wire.send(Ok(goodbye)).await; // The peer may have gone.
            }
        }
    });
    ReceiverStream::new(frames).map(|frame| frame.map(|frame| *frame))
}

/// A stream that has said Hello.
pub(crate) struct Session {
    id: SessionId,
    daemon: baton_core::id::DaemonId,
    principal: Principal,
    shell: Shell,
    inbound: Streaming<v1::DaemonFrame>,
    messages: mpsc::Receiver<ToSession>,
    wire: mpsc::Sender<OnWire>,
    /// Encoded frames that the wire has no room for yet.
    pending: VecDeque<v1::RelayFrame>,
    /// Since when the wire has taken nothing although something waits.
    stuck_since: Option<Moment>,
    /// When to see whether output fits on the disk again; only while some does not.
    next_look: Option<Moment>,
    held: Held,
    /// What it may have on its way to the disk.
    window: Window,
    /// Refs that Hello listed; Welcome says which of them this session may speak for.
    listed: Vec<FrameRef>,
    /// Messages that were free to go before Welcome was; none once it went. Few: Hello is still being handled.
    early: Option<Vec<Downstream>>,
    acks: AckFeed,
    /// Terminal frames that wait until their output is durable.
    settling: JoinSet<Settled>,
}

/// A terminal frame whose output is durable, or never will be.
type Settled = (Box<Frame>, bool);

/// What a session waits for.
enum Next {
    Stop,
    CredentialEnded,
    WireGone,
    WireHasRoom,
    WireStuck,
    Message(Option<ToSession>),
    Settled(Result<Settled, tokio::task::JoinError>),
    OutputDurable(Vec<(uuid::Uuid, OutputEnd)>),
    Frame(Box<Result<Option<v1::DaemonFrame>, Status>>),
    Flush,
    LookForRoom,
}

/// Why a session ended.
#[derive(Debug)]
enum Ended {
    /// The daemon closed, or the connection broke.
    ByPeer,
    /// The relay closes it with these words.
    Goodbye(v1::GoodbyeCode, &'static str),
    /// The dispatcher dropped it: it did not read, or a newer stream took its place.
    Dropped,
}

impl Session {
    /// The bracket: whatever ends the stream, the core is told once.
    async fn run(mut self) {
        tracing::info!(session_id = %self.id, daemon_id = %self.daemon, "daemon connected");
        let ended = loop {
            if let Err(ended) = self.step().await {
                break ended;
            }
        };
        tracing::info!(session_id = %self.id, daemon_id = %self.daemon, ?ended, "daemon disconnected");
        self.farewell(&ended);
        let closed = FromSession::Input(Input::SessionClosed { session: self.id });
        // An error means that the whole relay stops, which ends every session anyway.
        let _ = self.shell.dispatcher.hear(closed).await;
    }

    async fn step(&mut self) -> Result<(), Ended> {
        match self.next().await {
            Next::Stop => Err(Ended::Goodbye(
                v1::GoodbyeCode::Shutdown,
                "the relay is stopping",
            )),
            Next::CredentialEnded => Err(Ended::Goodbye(
                v1::GoodbyeCode::AuthExpired,
                "the credential is revoked or expired",
            )),
            Next::WireGone => Err(Ended::ByPeer),
            Next::WireHasRoom => {
                self.stuck_since = None;
                Ok(())
            }
            Next::WireStuck => Err(Ended::Dropped),
            Next::Message(message) => self.tell(message.ok_or(Ended::Dropped)?),
            Next::Settled(settled) => self.settled(settled).await,
            Next::OutputDurable(ends) => {
                self.output_durable(ends);
                Ok(())
            }
            // An undecodable frame ends this stream and nothing else.
            Next::Frame(frame) => match *frame {
                Ok(Some(frame)) => self.take(frame).await,
                Ok(None) => Err(Ended::ByPeer),
                // A broken connection looks the same, and then nobody hears the goodbye.
                Err(_) => Err(Ended::Goodbye(
                    v1::GoodbyeCode::ProtocolError,
                    "a frame cannot be decoded",
                )),
            },
            Next::Flush => self.flush_due().await,
            Next::LookForRoom if self.shell.output.has_room() => Err(Ended::Goodbye(
                v1::GoodbyeCode::Busy,
                "there is room for output again; bring what was not acknowledged",
            )),
            Next::LookForRoom => {
                self.next_look = None;
                Ok(())
            }
        }
    }

    /// Waits for one thing. Each branch is cancel safe: what it took is in what it returns, or in `self`.
    async fn next(&mut self) -> Next {
        let flush = self.held.next_flush();
        let clock = &self.shell.clock;
        self.stuck_since = match (self.pending.is_empty(), self.stuck_since) {
            (true, _) => None,
            (false, since) => since.or_else(|| Some(clock.now().at)),
        };
        let stuck = self.stuck_since.map(|since| since + WIRE_STALL_MS);
        let room = self.pending.len() < WIRE_QUEUE;
        if self.held.lacks_room() && self.next_look.is_none() {
            self.next_look = Some(clock.now().at + LOOK_FOR_ROOM_MS);
        }
        let look = self.next_look;
        tokio::select! {
            biased;
            () = self.shell.stop.cancelled() => Next::Stop,
            () = self.principal.ended(clock) => Next::CredentialEnded,
            permit = self.wire.reserve(), if !self.pending.is_empty() => match (permit, self.pending.pop_front()) {
                (Ok(permit), Some(frame)) => {
                    permit.send(Ok(Box::new(frame)));
                    Next::WireHasRoom
                }
                (Ok(_), None) => Next::WireHasRoom,
                (Err(_), _) => Next::WireGone,
            },
            message = self.messages.recv(), if room => Next::Message(message),
            Some(settled) = self.settling.join_next() => Next::Settled(settled),
            ends = self.acks.changed() => Next::OutputDurable(ends),
            // Every frame may need an answer, so none is taken while answers cannot leave.
            frame = self.inbound.message(), if room => Next::Frame(Box::new(frame)),
            () = sleep_until(clock, stuck) => Next::WireStuck,
            () = sleep_until(clock, flush) => Next::Flush,
            () = sleep_until(clock, look) => Next::LookForRoom,
        }
    }

    async fn forward(&self, input: Input) -> Result<(), Ended> {
        self.shell
            .dispatcher
            .hear(FromSession::Input(input))
            .await
            .map_err(|_| Ended::Dropped)
    }

    /// Waits while this stream has as much on its way as it may: nothing more of it is read meanwhile.
    async fn forward_frame(&self, frame: Box<Frame>) -> Result<(), Ended> {
        let pass = self.window.pass(&frame.body).await;
        self.shell
            .dispatcher
            .hear(FromSession::Frame { frame, pass })
            .await
            .map_err(|_| Ended::Dropped)
    }

    /// Says why, if the wire has room; a peer that does not read cannot be told.
    fn farewell(&mut self, ended: &Ended) {
        let Ended::Goodbye(code, words) = ended else {
            return;
        };
        let goodbye = self
            .shell
            .stamp
            .goodbye(*code, words, self.back_in_ms(*code));
        let rest = self.pending.drain(..).chain(std::iter::once(goodbye));
        for frame in rest {
            if self.wire.try_send(Ok(Box::new(frame))).is_err() {
                return;
            }
        }
    }

    /// All daemons return when a stopped relay is back: each is told its moment.
    fn back_in_ms(&self, code: v1::GoodbyeCode) -> Option<u64> {
        let caller = Caller::with(!self.held.is_empty());
        let now = self.shell.clock.now().at;
        (code == v1::GoodbyeCode::Shutdown).then(|| self.shell.admission.back_in_ms(caller, now))
    }

    fn durable_offset(&self, attempt: AttemptId) -> u64 {
        self.shell
            .output
            .end(attempt.0)
            .map_or(0, |end| end.durable)
    }
}

async fn sleep_until(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
