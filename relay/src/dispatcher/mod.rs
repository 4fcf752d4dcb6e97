//! The dispatcher: one async task owns the core, and every change of a task goes through it.
//!
//! ```text
//! loop { take the queued inputs (daemon frames before client requests)
//!        core.handle(input, now) -> changes, deliveries
//!        append the changes to the journal
//!        deliver what does not depend on a pending write }
//! ```
//!
//! One owner gives one linear history without locks, and tests can drive the whole relay with a
//! generated sequence of inputs. The loop does not wait for the disk: it continues while the
//! committer syncs, and the `DurabilityGate` delays each delivery until the write that it
//! depends on is durable. The cost is that one CPU core makes all decisions of a relay. If that
//! is ever too slow, tasks can be sharded by id.

mod dispatch_loop;
mod in_flight_limits;
mod journal_entries;

use std::sync::Arc;

use baton_core::ids::{SessionId, TokenId};
use baton_core::io::command::{Command, CoreInput};
use baton_core::io::effects::{CloseReason, DaemonMessage};
use baton_core::io::rejection::Rejection;
use baton_core::io::session_input::{AttemptFrame, DaemonHello, SessionInput};
use tokio::sync::{mpsc, oneshot};

use crate::body_files::{BODY_INLINE_MAX, BodyFiles, BodyPin};
use crate::lookup_counter::LookupCounter;
use crate::store::{Store, StoreChange, is_disk_full_error};

use in_flight_limits::{InFlightLimits, InFlightPermit, TooManyCalls};

pub(crate) use dispatch_loop::{DispatchLoop, DispatchLoopParts, PublishTargets};
pub(crate) use in_flight_limits::FrameWindow;

/// Daemon frames that wait for the loop. If it is full, the session waits and does not read its
/// stream.
const FRAME_QUEUE: usize = 4096;
/// Client requests that wait for the loop. If it is full, the caller waits, up to its own deadline.
const REQUEST_QUEUE: usize = 2048;
/// Messages that wait for one session. If it is full, the session is closed: a daemon that does
/// not read its stream counts as dead.
pub(crate) const SESSION_QUEUE: usize = 16_384;

/// A handle to the loop. Clones share it.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    frames: mpsc::Sender<HolderMessage>,
    requests: mpsc::Sender<DispatcherRequest>,
    bodies: BodyFiles,
    store: Store,
    lookups: LookupCounter,
    in_flight_limits: InFlightLimits,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    #[error("{}", .0.explain())]
    Rejected(Rejection),
    /// The relay is stopping; the request was not handled.
    #[error("the relay is stopping; try again after its restart")]
    Stopping,
    /// The request was accepted, and the relay stopped before the reply.
    #[error(
        "the relay stopped before the outcome was known; repeat the request with the same idempotency key"
    )]
    OutcomeUnknown,
    #[error("the disk is full; free disk space and try again")]
    DiskFull,
    /// The limit of waiting goal updates of this caller is reached.
    #[error("too many updates of this caller are waiting to be stored")]
    TooManyUpdates,
    #[error("storing a long body failed: {0}")]
    BodyNotStored(Arc<str>),
}

/// Messages to the loop from lease holders: the sessions of daemons, and agents.
pub(crate) enum HolderMessage {
    Opened {
        session: SessionId,
        hello: Box<DaemonHello>,
        messages: mpsc::Sender<SessionDelivery>,
    },
    Input(SessionInput),
    /// The relay's disk is nearly full, or has free space again.
    SuspendDispatch {
        suspended: bool,
    },
    /// The permit is released when the frame's changes are durable.
    Frame {
        frame: Box<AttemptFrame>,
        permit: InFlightPermit,
    },
    /// A call of an agent about its own lease. It uses the queue of frames, because it renews or
    /// ends an attempt and must not wait behind requests.
    AgentLeaseCall(Box<dyn QueuedCommand>),
}

/// A message from the loop to a session.
#[derive(Debug)]
pub(crate) enum SessionDelivery {
    Message(DaemonMessage),
    Close(CloseReason),
}

type ReplyReceiver<C> = oneshot::Receiver<Result<<C as Command>::Reply, RequestRefusal>>;

/// A request of a client's call to the loop.
enum DispatcherRequest {
    Command(Box<dyn QueuedCommand>),
    /// Writes records that bypass the core (tokens, profiles), in order with all other writes.
    WriteRecords {
        changes: Vec<StoreChange>,
        done: oneshot::Sender<Result<(), RequestRefusal>>,
    },
    /// Stop accepting requests if the relay has no task. The reply is whether it stopped.
    StopAccepting {
        stopped: oneshot::Sender<bool>,
    },
}

/// A queued command of any type.
pub(crate) trait QueuedCommand: Send {
    /// The core's input, with the channel to the caller.
    fn into_input(self: Box<Self>) -> CoreInput;

    /// Replies without involving the core.
    fn refuse(self: Box<Self>, refusal: RequestRefusal);
}

/// A command, its reply channel, and the guards that live until the reply is sent, even if the
/// caller goes away.
struct PendingCommand<C: Command> {
    command: C,
    reply: oneshot::Sender<Result<C::Reply, RequestRefusal>>,
    /// Protects the long body of the command from removal.
    body_pin: Option<BodyPin>,
    permit: Option<InFlightPermit>,
}

impl<C: Command> QueuedCommand for PendingCommand<C> {
    fn into_input(self: Box<Self>) -> CoreInput {
        let Self {
            command,
            reply,
            body_pin,
            permit,
        } = *self;
        CoreInput::command(command, move |outcome| {
            // Must happen before the reply: then the caller's own pin is the last one, and
            // dropping it triggers the sweep.
            drop((body_pin, permit));
            let _ = reply.send(outcome.map_err(RequestRefusal::Rejected)); // The caller may have gone.
        })
    }

    fn refuse(self: Box<Self>, refusal: RequestRefusal) {
        let _ = self.reply.send(Err(refusal)); // The caller may have gone.
    }
}

impl Dispatcher {
    fn new(
        bodies: BodyFiles,
        store: Store,
        lookups: LookupCounter,
    ) -> (
        Self,
        mpsc::Receiver<HolderMessage>,
        mpsc::Receiver<DispatcherRequest>,
    ) {
        let (frames, from_sessions) = mpsc::channel(FRAME_QUEUE);
        let (requests, from_clients) = mpsc::channel(REQUEST_QUEUE);
        (
            Self {
                frames,
                requests,
                bodies,
                store,
                lookups,
                in_flight_limits: InFlightLimits::default(),
            },
            from_sessions,
            from_clients,
        )
    }

    /// A handle for internal requests, which must not count as client requests.
    pub(crate) fn without_lookup_counts(&self) -> Self {
        Self {
            lookups: LookupCounter::default(),
            ..self.clone()
        }
    }

    /// Sends a command to the core and waits for the reply, which comes after the command's
    /// changes are durable.
    pub async fn request<C: Command>(&self, command: C) -> Result<C::Reply, RequestRefusal> {
        self.send_request(command, None, None).await
    }

    /// As `request`, for an agent that holds the lease of the command: if the store falls
    /// behind, renewals and ends of attempts must not wait. `goal_update_of` is the caller if
    /// the command is a goal update, which is limited.
    pub(crate) async fn request_with_lease<C: Command>(
        &self,
        command: C,
        goal_update_of: Option<TokenId>,
    ) -> Result<C::Reply, RequestRefusal> {
        let permit = self.acquire_permit(goal_update_of).await?;
        let (queued, outcome) = self.queue_command(command, None, permit);
        self.send_to_loop(HolderMessage::AgentLeaseCall(queued))
            .await?;
        outcome.await.map_err(|_| RequestRefusal::OutcomeUnknown)?
    }

    /// As `request`, for a goal update of this caller, which is limited.
    pub(crate) async fn request_goal_update<C: Command>(
        &self,
        command: C,
        token: TokenId,
    ) -> Result<C::Reply, RequestRefusal> {
        let permit = self.acquire_permit(Some(token)).await?;
        self.send_request(command, None, permit).await
    }

    async fn acquire_permit(
        &self,
        goal_update_of: Option<TokenId>,
    ) -> Result<Option<InFlightPermit>, RequestRefusal> {
        let Some(token) = goal_update_of else {
            return Ok(None);
        };
        let permit = self.in_flight_limits.acquire_call(token).await;
        permit
            .map(Some)
            .map_err(|TooManyCalls| RequestRefusal::TooManyUpdates)
    }

    /// The in-flight limit for one daemon's stream.
    pub(crate) fn frame_window(&self) -> FrameWindow {
        self.in_flight_limits.frame_window()
    }

    /// As `request`, for a command with a long body. The pin protects the body from removal
    /// until the reply is sent, even if the caller goes away.
    pub(crate) async fn request_with_body<C: Command>(
        &self,
        command: C,
        body_pin: Option<BodyPin>,
    ) -> Result<C::Reply, RequestRefusal> {
        self.send_request(command, body_pin, None).await
    }

    async fn send_request<C: Command>(
        &self,
        command: C,
        body_pin: Option<BodyPin>,
        permit: Option<InFlightPermit>,
    ) -> Result<C::Reply, RequestRefusal> {
        let (queued, outcome) = self.queue_command(command, body_pin, permit);
        self.requests
            .send(DispatcherRequest::Command(queued))
            .await
            .map_err(|_| RequestRefusal::Stopping)?;
        outcome.await.map_err(|_| RequestRefusal::OutcomeUnknown)?
    }

    fn queue_command<C: Command>(
        &self,
        command: C,
        body_pin: Option<BodyPin>,
        permit: Option<InFlightPermit>,
    ) -> (Box<dyn QueuedCommand>, ReplyReceiver<C>) {
        let (reply, outcome) = oneshot::channel();
        self.lookups.count_request();
        let pending = PendingCommand {
            command,
            reply,
            body_pin,
            permit,
        };
        (Box::new(pending), outcome)
    }

    /// Stores a prompt that is too long for a record as a file. Must be called before the
    /// submission; the returned pin goes to `request_with_body`.
    pub(crate) async fn store_body(&self, prompt: &str) -> Result<Option<BodyPin>, RequestRefusal> {
        if prompt.len() <= BODY_INLINE_MAX {
            return Ok(None);
        }
        let (bodies, bytes) = (self.bodies.clone(), prompt.as_bytes().to_vec());
        let stored = tokio::task::spawn_blocking(move || bodies.store(&bytes)).await;
        match stored {
            Ok(Ok(pin)) => Ok(Some(pin)),
            Ok(Err(error)) if is_disk_full_error(&error) => Err(RequestRefusal::DiskFull),
            Ok(Err(error)) => Err(RequestRefusal::BodyNotStored(error.to_string().into())),
            Err(_) => Err(RequestRefusal::Stopping),
        }
    }

    /// Writes records that bypass the core, and waits until they are durable.
    pub async fn write_records(&self, changes: Vec<StoreChange>) -> Result<(), RequestRefusal> {
        let (done, durable) = oneshot::channel();
        self.requests
            .send(DispatcherRequest::WriteRecords { changes, done })
            .await
            .map_err(|_| RequestRefusal::Stopping)?;
        durable.await.map_err(|_| RequestRefusal::OutcomeUnknown)?
    }

    /// Stops accepting requests if the relay has no task, and returns whether it did. After that
    /// only daemon records change until the relay restarts.
    pub(crate) async fn stop_accepting(&self) -> Result<bool, RequestRefusal> {
        let (stopped, reply) = oneshot::channel();
        self.requests
            .send(DispatcherRequest::StopAccepting { stopped })
            .await
            .map_err(|_| RequestRefusal::Stopping)?;
        reply.await.map_err(|_| RequestRefusal::OutcomeUnknown)
    }

    /// The store that this loop writes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits while the queue is full. An error means that the relay is stopping.
    pub(crate) async fn send_to_loop(&self, message: HolderMessage) -> Result<(), RequestRefusal> {
        self.frames
            .send(message)
            .await
            .map_err(|_| RequestRefusal::Stopping)
    }
}
