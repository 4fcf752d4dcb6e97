//! The dispatcher: one task owns the core, and everything that changes a task passes through it.
//!
//! ```text
//! loop { take what waits (daemon frames before client requests)
//!        core.handle(input, now) -> writes, sends
//!        hand the writes to the journal as one append
//!        send what depends on nothing that is still on its way to the disk }
//! ```
//!
//! Why one owner: there is one linear history, no lock, and the whole relay can be driven by a made-up stream of inputs.
//! It does not wait for the disk: it goes on handling while the committer syncs, and the `Gate` holds back each
//! send until the write it depends on is durable. The cost: one core's worth of decisions per relay. If that is ever
//! too little, tasks can be sharded by id.

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

/// Daemon frames that wait for the loop. Full: the session waits, and so does its stream.
const FRAME_QUEUE: usize = 4096;
/// Client requests that wait for the loop. Full: the caller waits, under its own deadline.
const REQUEST_QUEUE: usize = 2048;
/// Messages that wait for one session. Full: the session is closed; a daemon that does not read is not alive.
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

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    #[error("{}", .0.explain())]
    Rejected(Rejection),
    /// The relay is going away; nothing was done.
    #[error("the relay is stopping; try again when it is back")]
    Stopping,
    /// The request was taken and the relay stopped before its outcome was known.
    #[error(
        "the relay stopped before the outcome was known; ask again with the same idempotency key"
    )]
    OutcomeUnknown,
    #[error("the disk is full; try again when there is room")]
    DiskFull,
    /// So many words of this caller about goals wait to be stored.
    #[error("too many updates of this caller wait to be stored")]
    TooManyUpdates,
    #[error("a long body could not be stored: {0}")]
    BodyNotStored(Arc<str>),
}

/// What holders of leases tell the loop.
pub(crate) enum HolderMessage {
    Opened {
        session: SessionId,
        hello: Box<DaemonHello>,
        messages: mpsc::Sender<SessionDelivery>,
    },
    Input(SessionInput),
    /// The shell's disk is nearly full, or has room again.
    SuspendDispatch {
        suspended: bool,
    },
    /// The window that let it through is free again when what follows from it is durable.
    Frame {
        frame: Box<AttemptFrame>,
        pass: InFlightPermit,
    },
    /// A call about a lease that its caller holds itself: heard with the frames, for it renews or ends an attempt.
    AgentLeaseCall(Box<dyn QueuedCommand>),
}

/// What the loop tells a session.
#[derive(Debug)]
pub(crate) enum SessionDelivery {
    Message(DaemonMessage),
    Close(CloseReason),
}

type ReplyReceiver<C> = oneshot::Receiver<Result<<C as Command>::Reply, RequestRefusal>>;

/// What a client's call asks of the loop.
enum DispatcherRequest {
    Command(Box<dyn QueuedCommand>),
    /// Records that are no business of the core (tokens, profiles), made durable in the same order as everything.
    WriteRecords {
        changes: Vec<StoreChange>,
        done: oneshot::Sender<Result<(), RequestRefusal>>,
    },
    /// Take nothing more, if nothing was ever submitted; the answer says whether that is so.
    StopAccepting {
        retired: oneshot::Sender<bool>,
    },
}

/// A command that waits for the loop, whatever its type.
pub(crate) trait QueuedCommand: Send {
    /// The core's input: it carries the way back to the caller.
    fn into_input(self: Box<Self>) -> CoreInput;

    /// Answers without asking the core.
    fn refuse(self: Box<Self>, refusal: RequestRefusal);
}

/// A command, where its reply goes, and what is kept until the reply is sent, also if the caller
/// goes away.
struct PendingCommand<C: Command> {
    command: C,
    reply: oneshot::Sender<Result<C::Reply, RequestRefusal>>,
    /// The long body that must not be removed before.
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
            // Before the caller drops its own pin: that one is then the last, and asks for the
            // sweep.
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
        look_ups: LookupCounter,
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
                lookups: look_ups,
                in_flight_limits: InFlightLimits::default(),
            },
            from_sessions,
            from_clients,
        )
    }

    /// For those who ask on their own account, and for no client.
    pub(crate) fn without_lookup_counts(&self) -> Self {
        Self {
            lookups: LookupCounter::default(),
            ..self.clone()
        }
    }

    /// Hands a command to the core and waits for its reply, which is sent after what it reports is
    /// durable.
    pub async fn request<C: Command>(&self, command: C) -> Result<C::Reply, RequestRefusal> {
        self.send_request(command, None, None).await
    }

    /// The same for an agent that holds the lease the command is about: a store that falls behind
    /// must not hold back renewals and ends of attempts. `goal_update_of` is the caller of a goal
    /// update, which waits its turn.
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

    /// The same for a goal update of this caller: it waits its turn.
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
        word: Option<TokenId>,
    ) -> Result<Option<InFlightPermit>, RequestRefusal> {
        let Some(token) = word else {
            return Ok(None);
        };
        let pass = self.in_flight_limits.acquire_call(token).await;
        pass.map(Some)
            .map_err(|TooManyCalls| RequestRefusal::TooManyUpdates)
    }

    /// What one daemon's stream may have on its way.
    pub(crate) fn frame_window(&self) -> FrameWindow {
        self.in_flight_limits.frame_window()
    }

    /// The same for a command whose long body must not be removed before it is answered, also if
    /// the caller goes away.
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

    /// Makes a prompt durable that is too long for a record. Call it before the submission that carries the prompt, and
    /// give what it returns to `request_keeping`.
    pub(crate) async fn store_body(&self, prompt: &str) -> Result<Option<BodyPin>, RequestRefusal> {
        if prompt.len() <= BODY_INLINE_MAX {
            return Ok(None);
        }
        let (bodies, bytes) = (self.bodies.clone(), prompt.as_bytes().to_vec());
        let kept = tokio::task::spawn_blocking(move || bodies.store(&bytes)).await;
        match kept {
            Ok(Ok(pinned)) => Ok(Some(pinned)),
            Ok(Err(error)) if is_disk_full_error(&error) => Err(RequestRefusal::DiskFull),
            Ok(Err(error)) => Err(RequestRefusal::BodyNotStored(error.to_string().into())),
            Err(_) => Err(RequestRefusal::Stopping),
        }
    }

    /// Makes records durable that are no business of the core.
    pub async fn write_records(&self, changes: Vec<StoreChange>) -> Result<(), RequestRefusal> {
        let (done, durable) = oneshot::channel();
        self.requests
            .send(DispatcherRequest::WriteRecords { changes, done })
            .await
            .map_err(|_| RequestRefusal::Stopping)?;
        durable.await.map_err(|_| RequestRefusal::OutcomeUnknown)?
    }

    /// Ends the taking of requests if the relay has no task. From a true answer on nothing but the daemons' own records
    /// changes, until the relay starts again.
    pub(crate) async fn stop_accepting(&self) -> Result<bool, RequestRefusal> {
        let (retired, answer) = oneshot::channel();
        self.requests
            .send(DispatcherRequest::StopAccepting { retired })
            .await
            .map_err(|_| RequestRefusal::Stopping)?;
        answer.await.map_err(|_| RequestRefusal::OutcomeUnknown)
    }

    /// The reading half of what this loop writes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits for room; an error means that the relay is stopping.
    pub(crate) async fn send_to_loop(&self, message: HolderMessage) -> Result<(), RequestRefusal> {
        self.frames
            .send(message)
            .await
            .map_err(|_| RequestRefusal::Stopping)
    }
}
