//! One live stream of one daemon: decodes frames, checks which attempts they may concern, and
//! forwards them.
//!
//! Control frames go to the dispatcher and output goes directly to the output log. Messages to
//! the daemon arrive over one bounded channel. A session makes no decision about an attempt,
//! and the end of a session ends no attempt.

mod fault;
mod fence_code;
mod frame_decode;
mod frame_encode;
mod handshake;
mod hello;
mod hello_admission;
mod inbound_frames;
mod outbound_messages;
mod output_frame;
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
pub(crate) use output_frame::VISIBLE_BIT;

/// Limit of encoded frames that wait for the wire. When it is reached, the session takes no
/// more messages, and the dispatcher closes the session when its own queue is full as well.
const WIRE_QUEUE: usize = 256;
/// A session whose wire accepts nothing for this long ends: a daemon that cannot receive counts
/// as dead.
const WIRE_STALL_MS: u64 = 10_000;
/// How often a session with unstored output checks for free disk space.
const DISK_CHECK_MS: u64 = 1_000;

/// The parts of the relay that every session uses. Clones share them.
#[derive(Clone, Debug)]
pub struct SessionContext {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: RecordReader,
    pub(crate) output: OutputLog,
    pub(crate) clock: RelayClock,
    pub(crate) encoder: Arc<FrameEncoder>,
    pub(crate) telemetry: Telemetry,
    /// A daemon id is bound to its token while that token is usable.
    pub(crate) token_table: crate::auth::TokenTable,
    /// Limits the rate of Hellos.
    pub(crate) admission: HelloAdmission,
    /// Cancelled when the relay stops; the session then sends Goodbye and ends.
    pub(crate) stop: CancellationToken,
}

/// An entry of the queue to the wire. A frame has about 600 bytes and a queue starts with 32
/// entries. Frames are boxed so that the empty queues of ten thousand idle daemons do not take
/// 200 MB.
type QueuedFrame = Result<Box<v1::RelayFrame>, Status>;

/// Serves one stream until either side ends it. Returns the outgoing half at once; the session
/// runs in a task.
pub(crate) fn serve(
    principal: Principal,
    inbound: Streaming<v1::DaemonFrame>,
    context: SessionContext,
) -> impl Stream<Item = Result<v1::RelayFrame, Status>> + Send + use<> {
    let (wire, frames) = mpsc::channel::<QueuedFrame>(WIRE_QUEUE);
    tokio::spawn(async move {
        match handshake::perform_handshake(principal, inbound, context, wire.clone()).await {
            Ok(session) => session.run().await,
            Err(HandshakeFailure::Refused(fault)) => {
                tracing::info!(%fault, "daemon stream refused");
                let _ = wire
                    .send(Err(crate::api::error::status::status(&fault.into())))
                    .await; // An error means that the peer has disconnected.
            }
            Err(HandshakeFailure::PeerLeft) => {
                tracing::debug!("daemon disconnected before its Hello was admitted")
            }
            Err(HandshakeFailure::RetryLater(goodbye)) => {
                let _ = wire.send(Ok(goodbye)).await; // An error means that the peer has disconnected.
            }
        }
    });
    ReceiverStream::new(frames).map(|frame| frame.map(|frame| *frame))
}

/// A daemon stream after its Hello.
pub(crate) struct DaemonSession {
    id: SessionId,
    daemon: baton_core::ids::DaemonId,
    principal: Principal,
    context: SessionContext,
    inbound: Streaming<v1::DaemonFrame>,
    messages: mpsc::Receiver<SessionDelivery>,
    wire: mpsc::Sender<QueuedFrame>,
    /// Encoded frames that do not fit into the queue to the wire yet.
    pending: VecDeque<v1::RelayFrame>,
    /// Since when the wire has accepted nothing although frames wait.
    stalled_since: Option<MonotonicTime>,
    /// When to check for free disk space again. Set only while some output does not fit on the
    /// disk.
    next_disk_check: Option<MonotonicTime>,
    attempts: SessionAttempts,
    /// Limits the frames of this stream that are not yet durable.
    window: FrameWindow,
    /// Refs that Hello listed. Welcome decides for which of them this session may send frames.
    listed_refs: Vec<FrameRef>,
    /// Messages that became ready before Welcome; `None` after Welcome. There are few, because
    /// Hello is still being handled.
    before_welcome: Option<Vec<DaemonMessage>>,
    acks: AckFeed,
    /// Terminal frames that wait for their output to become durable.
    waiting_terminal: JoinSet<TerminalFrame>,
}

/// A terminal frame, and whether its output is durable. False means that it cannot become
/// durable.
type TerminalFrame = (Box<AttemptFrame>, bool);

/// The events that a session waits for.
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
    /// The relay closes the session with this code and message.
    Goodbye(v1::GoodbyeCode, &'static str),
    /// The dispatcher dropped the session: it did not read, or a newer stream replaced it.
    Dropped,
}

impl DaemonSession {
    /// Runs the session. However the stream ends, the core gets exactly one `SessionClosed`.
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
                "the credential was revoked or has expired",
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
            SessionEvent::TerminalFrameReady(result) => self.forward_terminal_frame(result).await,
            SessionEvent::OutputDurable(ends) => {
                self.output_durable(ends);
                Ok(())
            }
            // An undecodable frame ends this stream and nothing else.
            SessionEvent::Frame(frame) => match *frame {
                Ok(Some(frame)) => self.handle_frame(frame).await,
                Ok(None) => Err(SessionEnd::ByPeer),
                // A broken connection gives the same error; the goodbye is lost then, which is
                // harmless.
                Err(_) => Err(SessionEnd::Goodbye(
                    v1::GoodbyeCode::ProtocolError,
                    "a frame cannot be decoded",
                )),
            },
            SessionEvent::Flush => self.flush_due().await,
            SessionEvent::CheckDisk if self.context.output.has_room() => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::Busy,
                "the disk has space for output again; connect again and replay what was not acknowledged",
            )),
            SessionEvent::CheckDisk => {
                self.next_disk_check = None;
                Ok(())
            }
        }
    }

    /// Waits for the next event. Each branch is cancel safe: what it took is in the returned
    /// event, or in `self`.
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
        let disk_check = self.next_disk_check;
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
            Some(result) = self.waiting_terminal.join_next() => SessionEvent::TerminalFrameReady(result),
            ends = self.acks.changed() => SessionEvent::OutputDurable(ends),
            // Every frame may need an answer, so no frame is read while answers cannot be sent.
            frame = self.inbound.message(), if room => SessionEvent::Frame(Box::new(frame)),
            () = sleep_until(clock, stuck) => SessionEvent::WireStalled,
            () = sleep_until(clock, flush) => SessionEvent::Flush,
            () = sleep_until(clock, disk_check) => SessionEvent::CheckDisk,
        }
    }

    async fn forward(&self, input: SessionInput) -> Result<(), SessionEnd> {
        self.context
            .dispatcher
            .send_to_loop(HolderMessage::Input(input))
            .await
            .map_err(|_| SessionEnd::Dropped)
    }

    /// Forwards a frame to the dispatcher. Waits while the frame window of this stream is full;
    /// nothing more is read meanwhile.
    async fn forward_frame(&self, frame: Box<AttemptFrame>) -> Result<(), SessionEnd> {
        let pass = self.window.acquire(&frame.body).await;
        self.context
            .dispatcher
            .send_to_loop(HolderMessage::Frame {
                frame,
                permit: pass,
            })
            .await
            .map_err(|_| SessionEnd::Dropped)
    }

    /// Sends the reason for the end if the queue to the wire has room. A peer that does not
    /// read cannot receive it.
    fn send_goodbye(&mut self, ended: &SessionEnd) {
        let SessionEnd::Goodbye(code, message) = ended else {
            return;
        };
        let goodbye = self
            .context
            .encoder
            .goodbye(*code, message, self.return_after_ms(*code));
        let rest = self.pending.drain(..).chain(std::iter::once(goodbye));
        for frame in rest {
            if self.wire.try_send(Ok(Box::new(frame))).is_err() {
                return;
            }
        }
    }

    /// When to reconnect after a stop of the relay. Each daemon gets its own time, so that they
    /// do not all return at once.
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
