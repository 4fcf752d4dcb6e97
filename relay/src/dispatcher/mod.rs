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

mod entries;
mod pace;
mod turn;

use std::sync::Arc;

use baton_core::effects::{CloseReason, Downstream, Reply};
use baton_core::id::{RequestId, SessionId, TokenId};
use baton_core::input::{Frame, Hello, Input};
use baton_core::reject::Rejection;
use tokio::sync::{mpsc, oneshot};

use crate::bodies::{BODY_INLINE_MAX, Bodies, Pinned};
use crate::look_ups::LookUps;
use crate::store::{Change, Store, is_full};

use pace::{Crowded, Pace, Pass};

pub(crate) use pace::Window;
pub(crate) use turn::{Audience, Loop, Parts};

/// Daemon frames that wait for the loop. Full: the session waits, and so does its stream.
const FRAMES: usize = 4096;
/// Client requests that wait for the loop. Full: the caller waits, under its own deadline.
const REQUESTS: usize = 2048;
/// Messages that wait for one session. Full: the session is closed; a daemon that does not read is not alive.
pub(crate) const SESSION_QUEUE: usize = 16_384;

/// A handle to the loop. Clones share it.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    frames: mpsc::Sender<FromSession>,
    requests: mpsc::Sender<Request>,
    bodies: Bodies,
    store: Store,
    look_ups: LookUps,
    pace: Pace,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{}", .0.explain())]
    Rejected(Rejection),
    /// The relay is going away; nothing was done.
    #[error("the relay is stopping; try again when it is back")]
    Stopping,
    /// The request was taken and the relay stopped before its outcome was known.
    #[error(
        "the relay stopped before the outcome was known; ask again with the same idempotency key"
    )]
    Unknown,
    #[error("the disk is full; try again when there is room")]
    DiskFull,
    /// So many words of this caller about goals wait to be stored.
    #[error("too many updates of this caller wait to be stored")]
    Crowded,
    #[error("a long body could not be stored: {0}")]
    Body(Arc<str>),
}

/// What holders of leases tell the loop.
pub(crate) enum FromSession {
    Opened {
        session: SessionId,
        hello: Box<Hello>,
        messages: mpsc::Sender<ToSession>,
    },
    Input(Input),
    /// The window that let it through is free again when what follows from it is durable.
    Frame {
        frame: Box<Frame>,
        pass: Pass,
    },
    /// A call about a lease that its caller holds itself: heard with the frames, for it renews or ends an attempt.
    Held {
        make: MakeInput,
        waiting: Waiting,
    },
}

/// What the loop tells a session.
#[derive(Debug)]
pub(crate) enum ToSession {
    Message(Downstream),
    Close(CloseReason),
}

type MakeInput = Box<dyn FnOnce(RequestId) -> Input + Send>;

/// What a client's call asks of the loop.
enum Request {
    Ask {
        make: MakeInput,
        waiting: Waiting,
    },
    /// Records that are no business of the core (tokens, profiles), made durable in the same order as everything.
    Write {
        changes: Vec<Change>,
        done: oneshot::Sender<Result<(), Refusal>>,
    },
    /// Take nothing more, if nothing was ever submitted; the answer says whether that is so.
    Retire {
        retired: oneshot::Sender<bool>,
    },
}

/// Who waits for a reply, and the long body that must stay until it is sent.
pub(crate) struct Waiting {
    reply: oneshot::Sender<Result<Reply, Refusal>>,
    kept: Option<Pinned>,
    /// Held until the reply is sent, also if the caller goes away.
    pass: Option<Pass>,
}

impl Dispatcher {
    fn new(
        bodies: Bodies,
        store: Store,
        look_ups: LookUps,
    ) -> (Self, mpsc::Receiver<FromSession>, mpsc::Receiver<Request>) {
        let (frames, from_sessions) = mpsc::channel(FRAMES);
        let (requests, from_clients) = mpsc::channel(REQUESTS);
        (
            Self {
                frames,
                requests,
                bodies,
                store,
                look_ups,
                pace: Pace::default(),
            },
            from_sessions,
            from_clients,
        )
    }

    /// For those who ask on their own account, and for no client.
    pub(crate) fn uncounted(&self) -> Self {
        Self {
            look_ups: LookUps::default(),
            ..self.clone()
        }
    }

    /// The same for an agent that holds the lease it speaks of: a store that falls behind must not hold back renewals
    /// and ends of attempts. `word` is whose word about a goal it is, where it is one that waits its turn.
    pub(crate) async fn request_held(
        &self,
        make: impl FnOnce(RequestId) -> Input + Send + 'static,
        word: Option<TokenId>,
    ) -> Result<Reply, Refusal> {
        let pass = self.pass(word).await?;
        let (reply, outcome) = oneshot::channel();
        self.look_ups.request();
        let held = FromSession::Held {
            make: Box::new(make),
            waiting: Waiting {
                reply,
                kept: None,
                pass,
            },
        };
        self.hear(held).await?;
        outcome.await.map_err(|_| Refusal::Unknown)?
    }

    /// Hands the core an input and waits for its reply, which is sent after what it tells of is durable.
    pub async fn request(
        &self,
        make: impl FnOnce(RequestId) -> Input + Send + 'static,
    ) -> Result<Reply, Refusal> {
        self.ask(make, None, None).await
    }

    /// The same for a word about a goal, of this caller: it waits its turn.
    pub(crate) async fn request_word(
        &self,
        make: impl FnOnce(RequestId) -> Input + Send + 'static,
        token: TokenId,
    ) -> Result<Reply, Refusal> {
        let pass = self.pass(Some(token)).await?;
        self.ask(make, None, pass).await
    }

    async fn pass(&self, word: Option<TokenId>) -> Result<Option<Pass>, Refusal> {
        let Some(token) = word else {
            return Ok(None);
        };
        let pass = self.pace.call(token).await;
        pass.map(Some).map_err(|Crowded| Refusal::Crowded)
    }

    /// What one daemon's stream may have on its way.
    pub(crate) fn window(&self) -> Window {
        self.pace.window()
    }

    /// The same for an input whose long body must not be removed before it is answered, also if the caller goes away.
    pub(crate) async fn request_keeping(
        &self,
        make: impl FnOnce(RequestId) -> Input + Send + 'static,
        kept: Option<Pinned>,
    ) -> Result<Reply, Refusal> {
        self.ask(make, kept, None).await
    }

    async fn ask(
        &self,
        make: impl FnOnce(RequestId) -> Input + Send + 'static,
        kept: Option<Pinned>,
        pass: Option<Pass>,
    ) -> Result<Reply, Refusal> {
        let (reply, outcome) = oneshot::channel();
        self.look_ups.request();
        let ask = Request::Ask {
            make: Box::new(make),
            waiting: Waiting { reply, kept, pass },
        };
        self.requests
            .send(ask)
            .await
            .map_err(|_| Refusal::Stopping)?;
        outcome.await.map_err(|_| Refusal::Unknown)?
    }

    /// Makes a prompt durable that is too long for a record. Call it before the submission that carries the prompt, and
    /// give what it returns to `request_keeping`.
    pub(crate) async fn keep_body(&self, prompt: &str) -> Result<Option<Pinned>, Refusal> {
        if prompt.len() <= BODY_INLINE_MAX {
            return Ok(None);
        }
        let (bodies, bytes) = (self.bodies.clone(), prompt.as_bytes().to_vec());
        let kept = tokio::task::spawn_blocking(move || bodies.keep(&bytes)).await;
        match kept {
            Ok(Ok(pinned)) => Ok(Some(pinned)),
            Ok(Err(error)) if is_full(&error) => Err(Refusal::DiskFull),
            Ok(Err(error)) => Err(Refusal::Body(error.to_string().into())),
            Err(_) => Err(Refusal::Stopping),
        }
    }

    /// Makes records durable that are no business of the core.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), Refusal> {
        let (done, durable) = oneshot::channel();
        self.requests
            .send(Request::Write { changes, done })
            .await
            .map_err(|_| Refusal::Stopping)?;
        durable.await.map_err(|_| Refusal::Unknown)?
    }

    /// Ends the taking of requests if the relay has no task. From a true answer on nothing but the daemons' own records
    /// changes, until the relay starts again.
    pub(crate) async fn retire(&self) -> Result<bool, Refusal> {
        let (retired, answer) = oneshot::channel();
        self.requests
            .send(Request::Retire { retired })
            .await
            .map_err(|_| Refusal::Stopping)?;
        answer.await.map_err(|_| Refusal::Unknown)
    }

    /// The reading half of what this loop writes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits for room; an error means that the relay is stopping.
    pub(crate) async fn hear(&self, message: FromSession) -> Result<(), Refusal> {
        self.frames
            .send(message)
            .await
            .map_err(|_| Refusal::Stopping)
    }
}
