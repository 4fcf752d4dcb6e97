//! One live stream of one daemon: a pipe that decodes, checks who may speak, and forwards.
//!
//! Control frames go to the dispatcher, output goes straight to the output log, messages come back over one bounded
//! channel. A session decides nothing about an attempt, and its end ends none.

mod fault;
mod frame_decode;
mod frame_encode;
mod handshake;
mod hello;
mod hello_admission;
mod inbound_frames;
mod outbound_messages;
mod session_attempts;
mod unknown_values;

use std::collections::VecDeque;
use std::sync::Arc;

use baton_core::ids::{AttemptId, SessionId};
use baton_core::io::effects::DaemonMessage;
use baton_core::io::session_input::{AttemptFrame, FrameRef, SessionInput};
use baton_core::time::MonotonicTime;
use baton_proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::auth::Principal;
use crate::clock::RelayClock;
use crate::dispatcher::{Dispatcher, FrameWindow, HolderMessage, SessionDelivery};
use crate::output::{AckFeed, OutputEnd, OutputLog};
use crate::reader::RecordReader;
use crate::telemetry::Telemetry;
use handshake::HandshakeFailure;
use hello_admission::HelloClass;
use session_attempts::SessionAttempts;

pub use fault::{FrameFault, LinkFault};
pub(crate) use frame_decode::{artifact, sanitized_text, usage};
pub(crate) use frame_encode::FrameEncoder;
pub(crate) use hello_admission::HelloAdmission;
pub(crate) use inbound_frames::VISIBLE_BIT;

/// Encoded frames that wait for the wire. Full: the session stops taking messages, and the dispatcher closes it
/// when its queue is full as well.
const WIRE_QUEUE: usize = 256;
/// A wire that takes nothing for this long ends the session: a daemon that cannot receive is not alive.
const WIRE_STALL_MS: u64 = 10_000;
const DISK_CHECK_MS: u64 = 1_000;

/// What every session needs of the relay. Clones share it.
#[derive(Clone, Debug)]
pub struct SessionContext {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: RecordReader,
    pub(crate) output: OutputLog,
    pub(crate) clock: RelayClock,
    pub(crate) encoder: Arc<FrameEncoder>,
    pub(crate) telemetry: Telemetry,
    /// Says whether a credential may still be used; a daemon id is bound to one that can.
    pub(crate) token_table: crate::auth::TokenTable,
    /// How fast daemons are let in.
    pub(crate) admission: HelloAdmission,
    /// The relay is going away: say Goodbye and end.
    pub(crate) stop: CancellationToken,
}

/// A place in the queue to the wire. A frame is some 600 bytes and a queue begins with room for 32: boxed, ten thousand idle
/// daemons do not cost 200 MB of empty places.
type QueuedFrame = Result<Box<v1::RelayFrame>, Status>;

/// Serves one stream until either side ends it. Returns its answering half at once; the session runs on its own.
pub(crate) fn serve(
    principal: Principal,
    inbound: Streaming<v1::DaemonFrame>,
    shell: SessionContext,
) -> impl Stream<Item = Result<v1::RelayFrame, Status>> + Send + use<> {
    let (wire, frames) = mpsc::channel::<QueuedFrame>(WIRE_QUEUE);
    tokio::spawn(async move {
        match handshake::perform_handshake(principal, inbound, shell, wire.clone()).await {
            Ok(session) => session.run().await,
            Err(HandshakeFailure::Refused(fault)) => {
                tracing::info!(%fault, "a daemon's stream was refused");
                let _ = wire
                    .send(Err(crate::api::error::status::status(&fault.into())))
                    .await; // The peer may have gone.
            }
            Err(HandshakeFailure::PeerLeft) => {
                tracing::debug!("a daemon left before it was its turn")
            }
            Err(HandshakeFailure::RetryLater(goodbye)) => {
                let _ = wire.send(Ok(goodbye)).await; // The peer may have gone.
            }
        }
    });
    ReceiverStream::new(frames).map(|frame| frame.map(|frame| *frame))
}

/// A stream that has said Hello.
pub(crate) struct DaemonSession {
    id: SessionId,
    daemon: baton_core::ids::DaemonId,
    principal: Principal,
    context: SessionContext,
    inbound: Streaming<v1::DaemonFrame>,
    messages: mpsc::Receiver<SessionDelivery>,
    wire: mpsc::Sender<QueuedFrame>,
    /// Encoded frames that the wire has no room for yet.
    pending: VecDeque<v1::RelayFrame>,
    /// Since when the wire has taken nothing although something waits.
    stalled_since: Option<MonotonicTime>,
    /// When to see whether output fits on the disk again; only while some does not.
    next_disk_check: Option<MonotonicTime>,
    attempts: SessionAttempts,
    /// What it may have on its way to the disk.
    window: FrameWindow,
    /// Refs that Hello listed; Welcome says which of them this session may speak for.
    listed_refs: Vec<FrameRef>,
    /// Messages that were free to go before Welcome was; none once it went. Few: Hello is still being handled.
    before_welcome: Option<Vec<DaemonMessage>>,
    acks: AckFeed,
    /// Terminal frames that wait until their output is durable.
    waiting_terminal: JoinSet<TerminalFrame>,
}

/// A terminal frame whose output is durable, or never will be.
type TerminalFrame = (Box<AttemptFrame>, bool);

/// What a session waits for.
enum SessionEvent {
    Stop,
    CredentialEnded,
    WireGone,
    WireHasRoom,
    WireStalled,
    Message(Option<SessionDelivery>),
    TerminalFrameReady(Result<TerminalFrame, tokio::task::JoinError>),
    OutputDurable(Vec<(uuid::Uuid, OutputEnd)>),
    Frame(Box<Result<Option<v1::DaemonFrame>, Status>>),
    Flush,
    CheckDisk,
}

/// Why a session ended.
#[derive(Debug)]
enum SessionEnd {
    /// The daemon closed, or the connection broke.
    ByPeer,
    /// The relay closes it with these words.
    Goodbye(v1::GoodbyeCode, &'static str),
    /// The dispatcher dropped it: it did not read, or a newer stream took its place.
    Dropped,
}

impl DaemonSession {
    /// The bracket: whatever ends the stream, the core is told once.
    async fn run(mut self) {
        tracing::info!(session_id = %self.id, daemon_id = %self.daemon, "daemon connected");
        let ended = loop {
            if let Err(ended) = self.run_step().await {
                break ended;
            }
        };
        tracing::info!(session_id = %self.id, daemon_id = %self.daemon, ?ended, "daemon disconnected");
        self.send_goodbye(&ended);
        let closed = HolderMessage::Input(SessionInput::Closed { session: self.id });
        // An error means that the whole relay stops, which ends every session anyway.
        let _ = self.context.dispatcher.send_to_loop(closed).await;
    }

    async fn run_step(&mut self) -> Result<(), SessionEnd> {
        match self.next_event().await {
            SessionEvent::Stop => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::Shutdown,
                "the relay is stopping",
            )),
            SessionEvent::CredentialEnded => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::AuthExpired,
                "the credential is revoked or expired",
            )),
            SessionEvent::WireGone => Err(SessionEnd::ByPeer),
            SessionEvent::WireHasRoom => {
                self.stalled_since = None;
                Ok(())
            }
            SessionEvent::WireStalled => Err(SessionEnd::Dropped),
            SessionEvent::Message(message) => {
                self.send_messages(message.ok_or(SessionEnd::Dropped)?)
            }
            SessionEvent::TerminalFrameReady(settled) => self.forward_terminal_frame(settled).await,
            SessionEvent::OutputDurable(ends) => {
                self.output_durable(ends);
                Ok(())
            }
            // An undecodable frame ends this stream and nothing else.
            SessionEvent::Frame(frame) => match *frame {
                Ok(Some(frame)) => self.handle_frame(frame).await,
                Ok(None) => Err(SessionEnd::ByPeer),
                // A broken connection looks the same, and then nobody hears the goodbye.
                Err(_) => Err(SessionEnd::Goodbye(
                    v1::GoodbyeCode::ProtocolError,
                    "a frame cannot be decoded",
                )),
            },
            SessionEvent::Flush => self.flush_due().await,
            SessionEvent::CheckDisk if self.context.output.has_room() => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::Busy,
                "there is room for output again; bring what was not acknowledged",
            )),
            SessionEvent::CheckDisk => {
                self.next_disk_check = None;
                Ok(())
            }
        }
    }

    /// Waits for one thing. Each branch is cancel safe: what it took is in what it returns, or in `self`.
    async fn next_event(&mut self) -> SessionEvent {
        let flush = self.attempts.next_flush();
        let clock = &self.context.clock;
        self.stalled_since = match (self.pending.is_empty(), self.stalled_since) {
            (true, _) => None,
            (false, since) => since.or_else(|| Some(clock.now().monotonic)),
        };
        let stuck = self.stalled_since.map(|since| since + WIRE_STALL_MS);
        let room = self.pending.len() < WIRE_QUEUE;
        if self.attempts.is_disk_full() && self.next_disk_check.is_none() {
            self.next_disk_check = Some(clock.now().monotonic + DISK_CHECK_MS);
        }
        let look = self.next_disk_check;
        tokio::select! {
            biased;
            () = self.context.stop.cancelled() => SessionEvent::Stop,
            () = self.principal.ended(clock) => SessionEvent::CredentialEnded,
            permit = self.wire.reserve(), if !self.pending.is_empty() => match (permit, self.pending.pop_front()) {
                (Ok(permit), Some(frame)) => {
                    permit.send(Ok(Box::new(frame)));
                    SessionEvent::WireHasRoom
                }
                (Ok(_), None) => SessionEvent::WireHasRoom,
                (Err(_), _) => SessionEvent::WireGone,
            },
            message = self.messages.recv(), if room => SessionEvent::Message(message),
            Some(settled) = self.waiting_terminal.join_next() => SessionEvent::TerminalFrameReady(settled),
            ends = self.acks.changed() => SessionEvent::OutputDurable(ends),
            // Every frame may need an answer, so none is taken while answers cannot leave.
            frame = self.inbound.message(), if room => SessionEvent::Frame(Box::new(frame)),
            () = sleep_until(clock, stuck) => SessionEvent::WireStalled,
            () = sleep_until(clock, flush) => SessionEvent::Flush,
            () = sleep_until(clock, look) => SessionEvent::CheckDisk,
        }
    }

    async fn forward(&self, input: SessionInput) -> Result<(), SessionEnd> {
        self.context
            .dispatcher
            .send_to_loop(HolderMessage::Input(input))
            .await
            .map_err(|_| SessionEnd::Dropped)
    }

    /// Waits while this stream has as much on its way as it may: nothing more of it is read meanwhile.
    async fn forward_frame(&self, frame: Box<AttemptFrame>) -> Result<(), SessionEnd> {
        let pass = self.window.acquire(&frame.body).await;
        self.context
            .dispatcher
            .send_to_loop(HolderMessage::Frame { frame, pass })
            .await
            .map_err(|_| SessionEnd::Dropped)
    }

    /// Says why, if the wire has room; a peer that does not read cannot be told.
    fn send_goodbye(&mut self, ended: &SessionEnd) {
        let SessionEnd::Goodbye(code, words) = ended else {
            return;
        };
        let goodbye = self
            .context
            .encoder
            .goodbye(*code, words, self.return_after_ms(*code));
        let rest = self.pending.drain(..).chain(std::iter::once(goodbye));
        for frame in rest {
            if self.wire.try_send(Ok(Box::new(frame))).is_err() {
                return;
            }
        }
    }

    /// All daemons return when a stopped relay is back: each is told its moment.
    fn return_after_ms(&self, code: v1::GoodbyeCode) -> Option<u64> {
        let caller = HelloClass::from_holding(!self.attempts.is_empty());
        let now = self.context.clock.now().monotonic;
        (code == v1::GoodbyeCode::Shutdown)
            .then(|| self.context.admission.return_after_ms(caller, now))
    }

    fn durable_offset(&self, attempt: AttemptId) -> u64 {
        self.context
            .output
            .end(attempt.0)
            .map_or(0, |end| end.durable)
    }
}

async fn sleep_until(clock: &RelayClock, at: Option<MonotonicTime>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
