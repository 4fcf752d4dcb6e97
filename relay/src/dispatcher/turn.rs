//! The loop itself: what wakes it, what it takes in one turn, and how effects become appends and sends.

use std::collections::HashMap;
use std::sync::Arc;

use baton_core::Core;
use baton_core::effects::{CloseReason, Effects, Outgoing, Send, Write};
use baton_core::gate::Gate;
use baton_core::id::{RequestId, SessionId, TaskId};
use baton_core::input::Input;
use baton_core::record::{TaskRecord, TimelineEvent};
use baton_core::spec::TaskSpec;
use baton_core::time::Mint;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::pace::Pass;
use super::{Dispatcher, FromSession, Refusal, Request, ToSession, Waiting, entries};
use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::inbox::Inbox;
use crate::reader::Reader;
use crate::sealer::Sealer;
use crate::store::{Change, CommitSeq, Journal};
use crate::telemetry::Telemetry;
use crate::watch::Watchers;

/// Inputs of one turn, at least. Frames come first and get more, or submissions would starve the completions that make room.
const FRAMES_PER_TURN: usize = 512;
const REQUESTS_PER_TURN: usize = 128;
/// Writes of one append, about: several appends share a sync anyway.
const WRITES_PER_APPEND: usize = 256;

/// Who hears what became durable. None of them may hold the loop back.
#[derive(Clone, Debug)]
pub(crate) struct Audience {
    pub(crate) watchers: Watchers,
    pub(crate) inbox: Inbox,
    pub(crate) telemetry: Telemetry,
    pub(crate) sealer: Sealer,
}

impl Audience {
    fn hear(&self, spec: &Arc<TaskSpec>, record: &Arc<TaskRecord>, events: &[Arc<TimelineEvent>]) {
        self.watchers.publish(record);
        self.inbox.published(spec, record);
        self.telemetry.published(spec, record, events);
        self.sealer.published(record, events);
    }
}

/// Everything the loop owns or uses, handed over at start.
pub(crate) struct Parts {
    pub(crate) core: Core,
    /// What recovery decided; performed like any other effects.
    pub(crate) first: Effects,
    pub(crate) journal: Journal,
    pub(crate) reader: Reader,
    pub(crate) bodies: Bodies,
    pub(crate) clock: Clock,
    pub(crate) mint: Box<dyn Mint + std::marker::Send>,
    pub(crate) audience: Audience,
}

pub(crate) struct Loop {
    core: Core,
    journal: Journal,
    durable: watch::Receiver<CommitSeq>,
    reader: Reader,
    clock: Clock,
    mint: Box<dyn Mint + std::marker::Send>,
    audience: Audience,
    frames: mpsc::Receiver<FromSession>,
    requests: mpsc::Receiver<Request>,
    gate: Gate<CommitSeq>,
    sessions: HashMap<SessionId, mpsc::Sender<ToSession>>,
    replies: HashMap<RequestId, Waiting>,
    /// Direct writes whose callers wait for their commit.
    writes: Vec<(CommitSeq, oneshot::Sender<Result<(), Refusal>>)>,
    /// Frames whose windows are free again with their commit.
    passes: Vec<(CommitSeq, Pass)>,
    next_request: u64,
    pending: Pending,
    /// No request is taken any more: the relay is about to start again with other data.
    retired: bool,
}

/// Effects of this turn that were not handed to the journal yet.
#[derive(Default)]
struct Pending {
    writes: Vec<Write>,
    tasks: Vec<TaskId>,
    sends: Vec<Outgoing>,
    /// Changes that are no business of the core, and who waits for them.
    direct: Vec<Change>,
    asked: Vec<oneshot::Sender<Result<(), Refusal>>>,
    passes: Vec<Pass>,
}

enum Wake {
    Frame(FromSession),
    Request(Request),
    Time,
    Durable,
    /// The store has caught up.
    Room,
    StoreGone,
}

impl Loop {
    pub(crate) fn new(parts: Parts) -> (Self, Dispatcher) {
        let Parts {
            core,
            first,
            journal,
            reader,
            bodies,
            clock,
            mint,
            audience,
        } = parts;
        let (dispatcher, frames, requests) = Dispatcher::new(
            bodies,
            reader.store().clone(),
            audience.telemetry.look_ups().clone(),
        );
        let durable = reader.store().subscribe();
        let mut this = Self {
            core,
            journal,
            durable,
            reader,
            clock,
            mint,
            audience,
            frames,
            requests,
            gate: Gate::default(),
            sessions: HashMap::new(),
            replies: HashMap::new(),
            writes: Vec::new(),
            passes: Vec::new(),
            next_request: 0,
            pending: Pending::default(),
            retired: false,
        };
        this.collect(first);
        (this, dispatcher)
    }

    /// Runs until `stop`; then finishes what is on its way to the disk and closes the journal.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.hand_over();
        while !stop.is_cancelled() {
            let wake = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                wake = self.wake() => wake,
            };
            if matches!(wake, Wake::StoreGone) {
                return;
            }
            self.turn(wake);
        }
        self.finish().await;
    }

    /// Waits for the next thing to do. Safe to drop: each branch takes only what it returns.
    async fn wake(&mut self) -> Wake {
        let deadline = self.core.next_deadline();
        let clock = self.clock.clone();
        let room = self.journal.has_room();
        tokio::select! {
            biased;
            // Commits first: they free the sends that clients and daemons wait for.
            changed = self.durable.changed() => if changed.is_ok() { Wake::Durable } else { Wake::StoreGone },
            Some(frame) = self.frames.recv() => Wake::Frame(frame),
            () = sleep_until(&clock, deadline) => Wake::Time,
            // A store that falls behind holds back new requests; heartbeats and ends of attempts still get through.
            Some(request) = self.requests.recv(), if room => Wake::Request(request),
            roomy = self.journal.room(), if !room => if roomy.is_ok() { Wake::Room } else { Wake::StoreGone },
        }
    }

    fn turn(&mut self, wake: Wake) {
        match wake {
            Wake::Frame(frame) => self.take_frame(frame),
            Wake::Request(request) => self.take_request(request),
            Wake::Time | Wake::Durable | Wake::Room | Wake::StoreGone => {}
        }
        // Frames that have arrived are handled before any deadline, all of them: a busy loop must not expire a lease that
        // was renewed. What arrives meanwhile waits for the next turn, or time would stand still under load.
        let arrived = self.frames.len().max(FRAMES_PER_TURN);
        for _ in 0..arrived {
            let Ok(frame) = self.frames.try_recv() else {
                break;
            };
            self.take_frame(frame);
        }
        self.tick_if_due();
        for _ in 0..REQUESTS_PER_TURN {
            if !self.journal.has_room() {
                break;
            }
            let Ok(request) = self.requests.try_recv() else {
                break;
            };
            self.take_request(request);
        }
        self.hand_over();
        self.release();
    }

    fn take_frame(&mut self, message: FromSession) {
        match message {
            FromSession::Opened {
                session,
                hello,
                messages,
            } => {
                self.sessions.insert(session, messages);
                self.handle(Input::SessionOpened { session, hello });
            }
            FromSession::Input(Input::SessionClosed { session }) => {
                self.sessions.remove(&session);
                self.handle(Input::SessionClosed { session });
            }
            FromSession::Input(input) => self.handle(input),
            FromSession::Frame { frame, pass } => {
                self.handle(Input::Frame(frame));
                self.pending.passes.push(pass);
            }
            FromSession::Held { make, waiting } => {
                self.take_request(Request::Ask { make, waiting });
            }
        }
    }

    fn take_request(&mut self, request: Request) {
        match request {
            // The caller may have gone.
            Request::Ask { waiting, .. } if self.retired => {
                drop(waiting.reply.send(Err(Refusal::Stopping)));
            }
            Request::Write { done, .. } if self.retired => drop(done.send(Err(Refusal::Stopping))),
            Request::Retire { retired } => {
                self.append();
                self.retired |= self.reader.has_no_task();
                let _ = retired.send(self.retired); // The caller may have gone.
            }
            Request::Ask { make, waiting } => {
                self.next_request += 1;
                let request = RequestId(self.next_request);
                self.replies.insert(request, waiting);
                self.handle(make(request));
            }
            Request::Write { changes, done } => {
                self.append();
                self.pending.direct = changes;
                self.pending.asked.push(done);
            }
        }
    }

    fn tick_if_due(&mut self) {
        let now = self.clock.now();
        if self
            .core
            .next_deadline()
            .is_some_and(|deadline| deadline <= now.at)
        {
            self.handle(Input::Tick);
        }
    }

    fn handle(&mut self, mut input: Input) {
        // The store does not know this turn's writes yet, and the core has let go of what they finished.
        let ended_now =
            |task: TaskId| !self.core.is_live(task) && self.pending.tasks.contains(&task);
        // The same goes for progress that was added in this turn.
        let added_now = input
            .progress_of()
            .is_some_and(|task| self.pending.tasks.contains(&task));
        if added_now || input.named_tasks().into_iter().any(ended_now) {
            self.append();
        }
        self.core.load_finished(&mut input, &self.reader);
        let effects = self.core.handle(input, self.clock.now(), &mut *self.mint);
        self.collect(effects);
    }

    fn collect(&mut self, effects: Effects) {
        let Effects {
            writes,
            sends,
            counts,
        } = effects;
        self.audience.telemetry.count(&counts);
        for task in writes.iter().filter_map(Write::task) {
            if self.pending.tasks.last() != Some(&task) {
                self.pending.tasks.push(task);
            }
        }
        self.pending.writes.extend(writes);
        self.pending.sends.extend(sends);
        if self.pending.writes.len() >= WRITES_PER_APPEND {
            self.append();
        }
    }

    /// Hands this turn's changes to the journal, then admits its sends.
    fn hand_over(&mut self) {
        self.append();
        // All that this turn's frames wrote was handed in by now, at the latest as the last.
        let last = self.journal.last();
        self.passes
            .extend(self.pending.passes.drain(..).map(|pass| (last, pass)));
        for outgoing in std::mem::take(&mut self.pending.sends) {
            if let Some(send) = self.gate.admit(outgoing) {
                self.perform(send);
            }
        }
    }

    fn append(&mut self) {
        let writes = std::mem::take(&mut self.pending.writes);
        let mut last = None;
        for changes in entries::of(&writes) {
            last = Some(self.hand_in(changes));
        }
        let direct = std::mem::take(&mut self.pending.direct);
        if !direct.is_empty() {
            last = Some(self.hand_in(direct));
        }
        let Some(commit) = last else {
            return;
        };
        // Where it took several, what depends on an earlier one waits for the last; they are synced together anyway.
        self.gate.appended(commit);
        for task in self.pending.tasks.drain(..) {
            self.gate.wrote(task, commit);
        }
        self.writes
            .extend(self.pending.asked.drain(..).map(|done| (commit, done)));
    }

    fn hand_in(&mut self, changes: Vec<Change>) -> CommitSeq {
        match self.journal.append(changes) {
            Ok(commit) => commit,
            Err(error) => {
                // Memory is now ahead of what can ever be stored; only a restart brings them together again.
                tracing::error!(%error, "the journal refused an append; stopping");
                std::process::abort();
            }
        }
    }

    /// Performs what the newest durable commit allows.
    fn release(&mut self) {
        let durable = *self.durable.borrow_and_update();
        for send in self.gate.release(durable) {
            self.perform(send);
        }
        for (_, done) in self.writes.extract_if(.., |(commit, _)| *commit <= durable) {
            let _ = done.send(Ok(())); // The caller may have gone.
        }
        self.passes.retain(|(commit, _)| *commit > durable);
    }

    fn perform(&mut self, send: Send) {
        match send {
            Send::Reply { request, outcome } => {
                if let Some(Waiting { reply, kept, pass }) = self.replies.remove(&request) {
                    // Before the caller's own, which then is the one that waits for the sweep, if any does.
                    drop((kept, pass));
                    let _ = reply.send(outcome.map_err(Refusal::Rejected)); // The caller may have gone.
                }
            }
            Send::ToSession { session, message } => self.tell(session, ToSession::Message(message)),
            Send::CloseSession { session, reason } => self.close(session, reason),
            Send::Published {
                record,
                spec,
                events,
            } => {
                self.audience.hear(&spec, &record, &events);
            }
        }
    }

    fn tell(&mut self, session: SessionId, message: ToSession) {
        let Some(messages) = self.sessions.get(&session) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = messages.try_send(message) {
            tracing::warn!(session_id = %session, "a daemon does not read its stream; closing it");
            self.sessions.remove(&session);
        }
    }

    fn close(&mut self, session: SessionId, reason: CloseReason) {
        self.tell(session, ToSession::Close(reason));
        self.sessions.remove(&session);
    }

    /// Nothing new is taken; what was taken becomes durable and is answered.
    async fn finish(mut self) {
        self.frames.close();
        self.requests.close();
        self.sessions.clear();
        self.hand_over();
        while !self.gate.is_empty() || !self.writes.is_empty() {
            if self.durable.changed().await.is_err() {
                break;
            }
            self.release();
        }
        let journal = self.journal;
        let closed = tokio::task::spawn_blocking(move || journal.close()).await;
        if !matches!(closed, Ok(Ok(()))) {
            tracing::error!("the store did not close cleanly; the next start recovers");
        }
    }
}

async fn sleep_until(clock: &Clock, deadline: Option<baton_core::time::Moment>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl std::fmt::Debug for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop").finish_non_exhaustive()
    }
}
