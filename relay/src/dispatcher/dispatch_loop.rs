//! The dispatch loop: what wakes it, how much it handles in one turn, and how effects become
//! journal appends and deliveries.

use std::collections::HashMap;
use std::sync::Arc;

use baton_core::Core;
use baton_core::ids::{SessionId, TaskId};
use baton_core::io::command::CoreInput;
use baton_core::io::durability_gate::DurabilityGate;
use baton_core::io::effects::{CloseReason, Delivery, Effects, GatedDelivery, RecordChange};
use baton_core::io::session_input::SessionInput;
use baton_core::record::{TaskRecord, TimelineEvent};
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::in_flight_limits::InFlightPermit;
use super::{
    Dispatcher, DispatcherRequest, HolderMessage, QueuedCommand, RequestRefusal, SessionDelivery,
    journal_entries,
};
use crate::body_files::BodyFiles;
use crate::clock::RelayClock;
use crate::open_inputs::OpenInputIndex;
use crate::output_sealer::OutputSealer;
use crate::reader::RecordReader;
use crate::store::{CommitSeq, Journal, StoreChange};
use crate::task_watchers::TaskWatchers;
use crate::telemetry::Telemetry;

/// Inputs of one turn. Frames go first and get more, because submissions must not delay the
/// completions that free slots.
const FRAMES_PER_TURN: usize = 512;
const REQUESTS_PER_TURN: usize = 128;
/// Approximate number of writes of one append. Larger appends save little, because several appends
/// share one sync.
const WRITES_PER_APPEND: usize = 256;

/// The receivers of durable changes. None of them may block the loop.
#[derive(Clone, Debug)]
pub(crate) struct PublishTargets {
    pub(crate) watchers: TaskWatchers,
    pub(crate) inbox: OpenInputIndex,
    pub(crate) telemetry: Telemetry,
    pub(crate) sealer: OutputSealer,
}

impl PublishTargets {
    fn publish(
        &self,
        spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
    ) {
        self.watchers.publish(record);
        self.inbox.record_published(spec, record);
        self.telemetry.record_published(spec, record, events);
        self.sealer.record_published(record, events);
    }
}

/// Everything that the loop owns or uses.
pub(crate) struct DispatchLoopParts {
    pub(crate) core: Core,
    /// The effects of recovery; handled like any other effects.
    pub(crate) initial_effects: Effects,
    pub(crate) journal: Journal,
    pub(crate) reader: RecordReader,
    pub(crate) bodies: BodyFiles,
    pub(crate) clock: RelayClock,
    pub(crate) id_source: Box<dyn IdSource + Send>,
    pub(crate) publish_targets: PublishTargets,
}

pub(crate) struct DispatchLoop {
    core: Core,
    journal: Journal,
    durable: watch::Receiver<CommitSeq>,
    reader: RecordReader,
    clock: RelayClock,
    id_source: Box<dyn IdSource + Send>,
    publish_targets: PublishTargets,
    frames: mpsc::Receiver<HolderMessage>,
    requests: mpsc::Receiver<DispatcherRequest>,
    gate: DurabilityGate<CommitSeq, Delivery>,
    sessions: HashMap<SessionId, mpsc::Sender<SessionDelivery>>,
    /// Callers of direct writes that wait for the commit.
    direct_writes: Vec<(CommitSeq, oneshot::Sender<Result<(), RequestRefusal>>)>,
    /// Permits of frames, released when their commit is durable.
    frame_permits: Vec<(CommitSeq, InFlightPermit)>,
    pending: PendingEffects,
    /// Whether requests are refused because the relay is about to restart with imported data.
    stopped_accepting: bool,
}

/// Effects of this turn that were not appended to the journal yet.
#[derive(Default)]
struct PendingEffects {
    writes: Vec<RecordChange>,
    tasks: Vec<TaskId>,
    deliveries: Vec<GatedDelivery>,
    /// Record changes that bypass the core, and their waiting callers.
    direct_changes: Vec<StoreChange>,
    direct_waiters: Vec<oneshot::Sender<Result<(), RequestRefusal>>>,
    frame_permits: Vec<InFlightPermit>,
}

enum LoopWake {
    Frame(HolderMessage),
    Request(DispatcherRequest),
    Deadline,
    Durable,
    /// The journal accepts requests again.
    JournalHasRoom,
    StoreGone,
}

impl DispatchLoop {
    pub(crate) fn new(parts: DispatchLoopParts) -> (Self, Dispatcher) {
        let DispatchLoopParts {
            core,
            initial_effects,
            journal,
            reader,
            bodies,
            clock,
            id_source,
            publish_targets,
        } = parts;
        let (dispatcher, frames, requests) = Dispatcher::new(
            bodies,
            reader.store().clone(),
            publish_targets.telemetry.lookups().clone(),
        );
        let durable = reader.store().subscribe();
        let mut this = Self {
            core,
            journal,
            durable,
            reader,
            clock,
            id_source,
            publish_targets,
            frames,
            requests,
            gate: DurabilityGate::default(),
            sessions: HashMap::new(),
            direct_writes: Vec::new(),
            frame_permits: Vec::new(),
            pending: PendingEffects::default(),
            stopped_accepting: false,
        };
        this.collect(initial_effects);
        (this, dispatcher)
    }

    /// Runs until `stop`, then waits for all pending commits and closes the journal.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.append_and_deliver();
        while !stop.is_cancelled() {
            let wake = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                wake = self.wake() => wake,
            };
            if matches!(wake, LoopWake::StoreGone) {
                return;
            }
            self.run_turn(wake);
        }
        self.finish().await;
    }

    /// Waits for the next event. Cancel-safe: each branch removes only what it returns.
    async fn wake(&mut self) -> LoopWake {
        let deadline = self.core.next_deadline();
        let clock = self.clock.clone();
        let room = self.journal.has_room();
        tokio::select! {
            biased;
            // Commits first: clients and daemons wait for the deliveries that they release.
            changed = self.durable.changed() => if changed.is_ok() { LoopWake::Durable } else { LoopWake::StoreGone },
            Some(frame) = self.frames.recv() => LoopWake::Frame(frame),
            () = sleep_until(&clock, deadline) => LoopWake::Deadline,
            // If the store falls behind, only new requests wait. Heartbeats and ends of attempts
            // are still handled.
            Some(request) = self.requests.recv(), if room => LoopWake::Request(request),
            ready = self.journal.wait_for_room(), if !room => if ready.is_ok() { LoopWake::JournalHasRoom } else { LoopWake::StoreGone },
        }
    }

    fn run_turn(&mut self, wake: LoopWake) {
        match wake {
            LoopWake::Frame(frame) => self.take_frame(frame),
            LoopWake::Request(request) => self.take_request(request),
            LoopWake::Deadline
            | LoopWake::Durable
            | LoopWake::JournalHasRoom
            | LoopWake::StoreGone => {}
        }
        // All frames that have arrived are handled before any deadline: a busy loop must not
        // expire a lease whose renewal is queued. Frames that arrive meanwhile wait for the next
        // turn, or deadlines would never be checked under load.
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
        self.append_and_deliver();
        self.release_durable();
    }

    fn take_frame(&mut self, message: HolderMessage) {
        match message {
            HolderMessage::Opened {
                session,
                hello,
                messages,
            } => {
                self.sessions.insert(session, messages);
                self.handle(SessionInput::Opened { session, hello }.into());
            }
            HolderMessage::Input(input) => {
                if let SessionInput::Closed { session } = &input {
                    self.sessions.remove(session);
                }
                self.handle(input.into());
            }
            HolderMessage::SuspendDispatch { suspended } => {
                self.handle(CoreInput::SuspendDispatch { suspended });
            }
            HolderMessage::Frame { frame, permit } => {
                self.handle(SessionInput::Frame(frame).into());
                self.pending.frame_permits.push(permit);
            }
            HolderMessage::AgentLeaseCall(command) => self.take_command(command),
        }
    }

    fn take_request(&mut self, request: DispatcherRequest) {
        match request {
            DispatcherRequest::Command(command) => self.take_command(command),
            // Sending fails if the caller has gone.
            DispatcherRequest::WriteRecords { done, .. } if self.stopped_accepting => {
                drop(done.send(Err(RequestRefusal::Stopping)))
            }
            DispatcherRequest::StopAccepting { stopped } => {
                self.append_pending();
                self.stopped_accepting |= self.reader.has_no_task();
                let _ = stopped.send(self.stopped_accepting); // The caller may have gone.
            }
            DispatcherRequest::WriteRecords { changes, done } => {
                self.append_pending();
                self.pending.direct_changes = changes;
                self.pending.direct_waiters.push(done);
            }
        }
    }

    fn take_command(&mut self, command: Box<dyn QueuedCommand>) {
        if self.stopped_accepting {
            command.refuse(RequestRefusal::Stopping);
        } else {
            self.handle(command.into_input());
        }
    }

    fn tick_if_due(&mut self) {
        let now = self.clock.now();
        if self
            .core
            .next_deadline()
            .is_some_and(|deadline| deadline <= now.monotonic)
        {
            self.handle(CoreInput::Tick);
        }
    }

    fn handle(&mut self, input: CoreInput) {
        // The core no longer has a task that ended in this turn, and the store does not contain the
        // pending writes yet. They are appended first, so that the command finds the task.
        let ended_now =
            |task: TaskId| !self.core.is_live(task) && self.pending.tasks.contains(&task);
        // The same applies to progress that was added in this turn.
        let added_now = input
            .progress_task()
            .is_some_and(|task| self.pending.tasks.contains(&task));
        if added_now || input.named_tasks().into_iter().any(ended_now) {
            self.append_pending();
        }
        let now = self.clock.now();
        let effects = self
            .core
            .handle(input, &self.reader, now, &mut *self.id_source);
        self.collect(effects);
    }

    fn collect(&mut self, effects: Effects) {
        let Effects {
            changes,
            deliveries,
            metrics,
        } = effects;
        self.publish_targets.telemetry.add_counts(&metrics);
        for task in changes.iter().filter_map(RecordChange::task) {
            if self.pending.tasks.last() != Some(&task) {
                self.pending.tasks.push(task);
            }
        }
        self.pending.writes.extend(changes);
        self.pending.deliveries.extend(deliveries);
        if self.pending.writes.len() >= WRITES_PER_APPEND {
            self.append_pending();
        }
    }

    /// Appends this turn's changes to the journal, then passes its deliveries to the gate.
    fn append_and_deliver(&mut self) {
        self.append_pending();
        // Every write of this turn's frames is in this append or an earlier one.
        let last = self.journal.last();
        self.frame_permits.extend(
            self.pending
                .frame_permits
                .drain(..)
                .map(|permit| (last, permit)),
        );
        for gated in std::mem::take(&mut self.pending.deliveries) {
            if let Some(delivery) = self.gate.admit(gated) {
                self.deliver(delivery);
            }
        }
    }

    fn append_pending(&mut self) {
        let writes = std::mem::take(&mut self.pending.writes);
        let mut last = None;
        for changes in journal_entries::journal_entries(&writes) {
            last = Some(self.append_entry(changes));
        }
        let direct = std::mem::take(&mut self.pending.direct_changes);
        if !direct.is_empty() {
            last = Some(self.append_entry(direct));
        }
        let Some(commit) = last else {
            return;
        };
        // With several appends, deliveries wait for the last one. The appends are synced together
        // anyway.
        self.gate.note_appended(commit);
        for task in self.pending.tasks.drain(..) {
            self.gate.note_task_write(task, commit);
        }
        self.direct_writes.extend(
            self.pending
                .direct_waiters
                .drain(..)
                .map(|done| (commit, done)),
        );
    }

    fn append_entry(&mut self, changes: Vec<StoreChange>) -> CommitSeq {
        match self.journal.append(changes) {
            Ok(commit) => commit,
            Err(error) => {
                // The core's state contains changes that can never be stored. Only a restart
                // from the store makes both equal again.
                tracing::error!(%error, "journal append failed; aborting");
                std::process::abort();
            }
        }
    }

    /// Releases everything that waited for the newest durable commit.
    fn release_durable(&mut self) {
        let durable = *self.durable.borrow_and_update();
        for delivery in self.gate.release(durable) {
            self.deliver(delivery);
        }
        for (_, done) in self
            .direct_writes
            .extract_if(.., |(commit, _)| *commit <= durable)
        {
            let _ = done.send(Ok(())); // The caller may have gone.
        }
        self.frame_permits.retain(|(commit, _)| *commit > durable);
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Reply(reply) => reply.send(),
            Delivery::ToSession { session, message } => {
                self.send_to_session(session, SessionDelivery::Message(message))
            }
            Delivery::CloseSession { session, reason } => self.close_session(session, reason),
            Delivery::Published {
                record,
                spec,
                events,
            } => {
                self.publish_targets.publish(&spec, &record, &events);
            }
        }
    }

    fn send_to_session(&mut self, session: SessionId, message: SessionDelivery) {
        let Some(messages) = self.sessions.get(&session) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = messages.try_send(message) {
            tracing::warn!(session_id = %session, "daemon does not read its stream; closing the session");
            self.sessions.remove(&session);
        }
    }

    fn close_session(&mut self, session: SessionId, reason: CloseReason) {
        self.send_to_session(session, SessionDelivery::Close(reason));
        self.sessions.remove(&session);
    }

    /// Accepts nothing new. Accepted requests become durable and are answered.
    async fn finish(mut self) {
        self.frames.close();
        self.requests.close();
        self.sessions.clear();
        self.append_and_deliver();
        while !self.gate.is_empty() || !self.direct_writes.is_empty() {
            if self.durable.changed().await.is_err() {
                break;
            }
            self.release_durable();
        }
        let journal = self.journal;
        let closed = tokio::task::spawn_blocking(move || journal.close()).await;
        if !matches!(closed, Ok(Ok(()))) {
            tracing::error!("store did not close cleanly; the next start recovers it");
        }
    }
}

async fn sleep_until(clock: &RelayClock, deadline: Option<baton_core::time::MonotonicTime>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl std::fmt::Debug for DispatchLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchLoop").finish_non_exhaustive()
    }
}
