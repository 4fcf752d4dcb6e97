//! While a shim is connected: its messages come in, orders, renewals and positions go out, and the transcript is
//! folded as it grows. Nothing in here waits for a single thing, so that neither a full queue nor a shim that
//! does not read can keep a renewal or an order back.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use baton_daemon_core::lease::LeaseClock;
use baton_proto::v1::LeaseToken;
use baton_proto::worker::from_shim::Message;
use baton_proto::worker::{Launch, Lease, SpoolFailed, Started, Stop as StopOrder, Variable};
use tracing::{error, warn};

use super::looking::Looking;
use super::{Attempt, AttemptPlan, Cause, Found, Parting, write_lease};
use crate::clock::{Moment, whole_millis};
use crate::phases::OncePhase;
use crate::process::{ATTEMPT_MARKER, ProcessId, kill_below, kill_marked};
use crate::shim::client::Connection;
use crate::shim::lease::to_message;
use crate::spool::{Chunk, SpoolError};
use crate::timers::DeadlineKind;

/// What a shim may take from KILL to its report: the sweep, the drain, a busy machine.
const REPORT: Duration = Duration::from_secs(8);
/// The same when a child could not even be started: there is nothing to sweep, and the shim itself may be what waits.
const REPORT_UNSTARTED: Duration = Duration::from_secs(1);
/// The same after the limit of the lease, when this side has swept by itself.
const REPORT_AFTER_LIMIT: Duration = Duration::from_secs(2);

/// Output on its way to the supervisor at which reading stops.
const UNHEARD: u64 = 1024 * 1024;

/// What the shim was told last, and what was done in its place.
#[derive(Default)]
struct Told {
    lease: Option<LeaseClock>,
    kill_at: Option<Moment>,
    consumed: u64,
    /// Number of the last message for stdin.
    stdin: u64,
    /// The limit at which everything but the shim was killed.
    swept_at: Option<Moment>,
    /// When the limit was first seen to be over. After a suspend that is later than the limit, and the shim wakes up
    /// with the daemon: it has the same time to report as any other.
    seen_over: Option<Moment>,
}

/// What a shim needs to start the child.
pub(super) fn launch(plan: AttemptPlan, token: LeaseToken, lease: Option<Lease>) -> Launch {
    let bytes = |text: OsString| text.into_vec().into();
    Launch {
        attempt_id: plan.attempt_id,
        program: bytes(plan.child.program),
        args: plan.child.args.into_iter().map(bytes).collect(),
        cwd: bytes(plan.child.cwd.into_os_string()),
        environment: plan
            .child
            .environment
            .into_iter()
            .map(|(name, value)| Variable {
                name: bytes(name),
                value: bytes(value),
            })
            .collect(),
        lease,
        token: Some(token),
        cleanup_term_ms: whole_millis(plan.cleanup_term),
        control_group: plan
            .child
            .group
            .map(|group| bytes(group.into_os_string()))
            .unwrap_or_default(),
    }
}

impl Attempt {
    /// Goes on where the daemon before stopped.
    pub(super) fn take_over(&mut self, found: Found) -> Connection {
        let Found {
            mut connection,
            presence,
        } = found;
        self.transcript.grown(presence.transcript_end);
        self.shim = connection.shim();
        let limit = presence.lease.map(|lease| lease.limit_ms);
        self.on_lease_kept(limit.map(Moment::from_millis));
        if !presence.says_lease_kept {
            connection.tell_of_leases(self.lines.told.clone());
        }
        // A daemon that was killed right after the launch had not said so.
        self.enter(OncePhase::Started, None);
        if let Some(started) = presence.started {
            self.on_started(started);
        }
        self.on_stdin_done(presence.stdin_done);
        if let Some(failed) = presence.spool_failed {
            self.on_spool_failed(&failed);
        }
        // It was ending: the order may not have reached the shim.
        if self.fold.reached(OncePhase::CleanupStarted) {
            let cause = match self.fold.deadline() {
                Some(deadline) => Cause::Deadline(deadline),
                None if self.fold.ended_by_itself() => Cause::Lingered,
                None => Cause::Stopped,
            };
            self.decide(cause);
        }
        connection.consumed(*self.lines.consumed.borrow());
        connection
    }

    /// Until the shim has reported, is gone, or is given up.
    pub(super) async fn follow(&mut self, connection: &mut Connection) -> Parting {
        let mut told = Told::default();
        let mut looking = Looking::default();
        loop {
            self.obey();
            self.look_between_turns(&mut looking);
            self.pass_on(connection, &mut told);
            let now = self.workshop.clock.now();
            self.kin.look(self.adopted_shim(), now);
            let give_up = self.give_up_at(&mut told, now);
            if give_up.is_some_and(|at| at <= now) {
                error!(attempt_id = %self.id, "the shim is stuck; killing it and what it started");
                return Parting::Stuck;
            }
            let limit = self.sweep_at(&told);
            if limit.is_some_and(|at| at <= now) {
                told.swept_at = limit;
                self.sweep_all_but(connection.shim());
            }
            let look = self.kin.look_at(self.adopted_shim());
            let asked = self.asked_until.filter(|_| told.kill_at.is_none());
            let wake = [self.wake_at(), give_up, self.sweep_at(&told), look, asked];
            tokio::select! {
                message = connection.next() => match message {
                    Ok(Some(Message::Report(report))) => return Parting::Reported(Box::new(report)),
                    Ok(Some(message)) => self.on_message(message),
                    Ok(None) => return Parting::Closed,
                    Err(error) => {
                        warn!(attempt_id = %self.id, error = %error, "lost the shim");
                        return Parting::Closed;
                    }
                },
                unmet = looking.done() => {
                    looking = Looking::default();
                    self.on_looked(&unmet);
                }
                () = self.advance(wake.into_iter().flatten().min()) => {}
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Started(started) => self.on_started(started),
            Message::Grown(grown) => self.transcript.grown(grown.end),
            Message::StdinDone(done) => self.on_stdin_done(done.id),
            Message::SpoolFailed(failed) => self.on_spool_failed(&failed),
            Message::LeaseKept(kept) => {
                self.on_lease_kept(Some(Moment::from_millis(kept.limit_ms)));
            }
            // A launched shim is of this version; its presence has no news, and its report ends the loop.
            Message::Presence(_) | Message::Report(_) => {}
            Message::Refused(_) => {
                warn!(attempt_id = %self.id, "the shim speaks no common version");
            }
        }
    }

    /// A child that wants no more of the prompt has as much as it will ever have.
    pub(super) fn on_stdin_done(&mut self, id: u64) {
        self.fold.stdin_done(id, self.workshop.clock.now());
    }

    /// It has read a lease with this limit.
    fn on_lease_kept(&self, limit: Option<Moment>) {
        self.lines.told.send_replace(limit);
    }

    fn on_started(&mut self, started: Started) {
        self.spawned = true;
        self.fold.spawned(started.pid, self.workshop.clock.now());
    }

    fn on_spool_failed(&mut self, failed: &SpoolFailed) {
        let message = format!(
            "the worker's disk does not take the output: {}; free space in the daemon's data directory",
            failed.message
        );
        self.decide(Cause::Disk { message });
    }

    /// The first decision counts. The shim's report says whether the child was quicker.
    fn decide(&mut self, cause: Cause) {
        if self.cause.is_some() {
            return;
        }
        if let Cause::Deadline(kind) = &cause {
            self.fold.ended_by(*kind);
        }
        self.cause = Some(cause);
        // What does not run needs no grace.
        let grace = if self.is_unstarted() {
            Duration::ZERO
        } else {
            self.cleanup_term
        };
        let by_grace = self.workshop.clock.now().after(grace);
        self.kill_at.get_or_insert(by_grace);
        self.ask_to_end();
        self.enter(OncePhase::CleanupStarted, None);
    }

    /// The program could not be started in time: its file may be on a disk that hangs. One that runs and does not get
    /// ready is ended like any other.
    fn is_unstarted(&self) -> bool {
        let too_late = matches!(
            self.cause,
            Some(Cause::Deadline(DeadlineKind::ProcessStart))
        );
        too_late && !self.spawned
    }

    /// Takes note of orders and of deadlines that have passed.
    fn obey(&mut self) {
        let ordered = *self.lines.stop.borrow_and_update();
        if let Some(stop) = ordered {
            self.kill_by(stop.kill_at);
            self.decide(Cause::Stopped);
        }
        let now = self.workshop.clock.now();
        if self.fold.lingers(now) {
            self.decide(Cause::Lingered);
        }
        let expired = self.fold.expired(now);
        if let Some(kind) = expired {
            self.decide(Cause::Deadline(kind));
        }
    }

    fn pass_on(&mut self, connection: &mut Connection, told: &mut Told) {
        let lease = *self.lines.lease.borrow_and_update();
        if let Some(lease) = lease.filter(|_| told.lease != lease) {
            told.lease = Some(lease);
            let lease = lease.for_shim(self.cleanup_term);
            connection.renew(to_message(lease));
        }
        self.note_lease();
        let due = !self.is_being_asked() && told.kill_at != self.kill_at;
        if let Some(kill_at) = self.kill_at.filter(|_| due) {
            told.kill_at = Some(kill_at);
            connection.stop(StopOrder {
                kill_at_ms: kill_at.as_millis(),
            });
        }
        let answered = *self.lines.answered.borrow_and_update();
        for message in self.fold.stdin_after(told.stdin, answered) {
            told.stdin = message.id;
            connection.stdin(message);
        }
        let consumed = *self.lines.consumed.borrow_and_update();
        if consumed > told.consumed {
            told.consumed = consumed;
            connection.consumed(consumed);
        }
    }

    /// Moves on what needs no shim: the transcript into the fold, and events out of it. Returns after one step,
    /// when an order has come, or when it is time. Cancel safe.
    pub(super) async fn advance(&mut self, wake: Option<Moment>) {
        let now = self.workshop.clock.now();
        if self.pending.is_none() {
            self.pending = self.fold.next(now);
        }
        let held = *self.lines.hold_back.borrow_and_update() || self.is_far_ahead();
        self.fold.hold_back(held, now);
        let reading = !held && self.pending.is_none() && self.transcript.has_more();
        let batch = tokio::select! {
            room = self.lines.events.reserve(), if self.pending.is_some() => {
                if let (Ok(room), Some(event)) = (room, self.pending.take()) {
                    room.send((self.id.clone(), event));
                }
                None
            }
            batch = self.transcript.next(), if reading => Some(batch),
            Ok(()) = self.lines.hold_back.changed() => None,
            Ok(()) = self.lines.stop.changed() => None,
            Ok(()) = self.lines.lease.changed() => None,
            Ok(()) = self.lines.heard.changed() => None,
            Ok(()) = self.lines.consumed.changed() => None,
            Ok(()) = self.lines.answered.changed() => None,
            Some(word) = self.lines.words.recv() => {
                self.fold.answer(word, now);
                None
            }
            () = self.workshop.clock.sleep_until_some(wake) => None,
        };
        if let Some(batch) = batch {
            self.take_in(batch);
        }
    }

    /// When time alone makes something happen. Output that is due waits for room behind an event that does, and makes
    /// nothing happen.
    fn wake_at(&self) -> Option<Moment> {
        match self.pending {
            None => self.fold.wake_at(),
            Some(_) => self.fold.deadline_at(),
        }
    }

    /// What the supervisor has not taken in is in memory, and it says too late that the relay cannot keep up.
    fn is_far_ahead(&mut self) -> bool {
        let heard = *self.lines.heard.borrow_and_update();
        self.fold.position().saturating_sub(heard) > UNHEARD
    }

    fn take_in(&mut self, batch: Result<Vec<Chunk>, SpoolError>) {
        let now = self.workshop.clock.now();
        match batch {
            Ok(batch) => {
                for chunk in batch {
                    self.fold.take_in(chunk.kind, &chunk.bytes, now);
                }
            }
            Err(error) => {
                error!(attempt_id = %self.id, error = %error, "the transcript cannot be read");
                let message = format!("the worker's disk has lost output: {error}");
                self.decide(Cause::Disk { message });
            }
        }
    }

    /// Everything that is due now goes out.
    pub(super) async fn deliver_all(&mut self) {
        loop {
            let next = self.pending.take();
            let Some(event) = next.or_else(|| self.fold.next(self.workshop.clock.now())) else {
                return;
            };
            self.tell(event).await;
        }
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        let lease = *self.lines.lease.borrow();
        lease.map(|lease| to_message(lease.for_shim(self.cleanup_term)))
    }

    /// The shim ends the child by its limit. When it does not, this side does.
    fn sweep_at(&self, told: &Told) -> Option<Moment> {
        let limit = self.lines.lease.borrow().map(|lease| lease.limit());
        limit.filter(|_| told.swept_at != limit)
    }

    /// When there must have been a report.
    fn give_up_at(&self, told: &mut Told, now: Moment) -> Option<Moment> {
        let limit = self.lines.lease.borrow().map(|lease| lease.limit());
        told.seen_over = limit
            .filter(|limit| *limit <= now)
            .map(|_| told.seen_over.unwrap_or(now));
        let over = told.seen_over.or(limit);
        let by_lease = over.map(|over| over.after(REPORT_AFTER_LIMIT));
        let report = if self.is_unstarted() {
            REPORT_UNSTARTED
        } else {
            REPORT
        };
        let by_order = self.kill_at.map(|kill_at| kill_at.after(report));
        [by_lease, by_order].into_iter().flatten().min()
    }

    fn sweep_all_but(&self, shim: Option<ProcessId>) {
        let (id, clock) = (self.id.clone(), self.workshop.clock.clone());
        tokio::spawn(async move {
            if let Some(shim) = shim {
                kill_below(shim, &clock).await;
            }
            let swept = kill_marked(ATTEMPT_MARKER, &id, shim, &clock).await;
            if swept.killed > 0 {
                warn!(
                    attempt_id = id,
                    killed = swept.killed,
                    "the shim had not ended everything by the limit of the lease"
                );
            }
        });
    }

    /// Written before the child may run.
    pub(super) async fn store_lease(&mut self) -> io::Result<()> {
        let lease = *self.lines.lease.borrow();
        let directory = self.directory.clone();
        self.noted = lease;
        let Some(lease) = lease else { return Ok(()) };
        let stored = tokio::task::spawn_blocking(move || write_lease(&directory, lease));
        stored.await.expect("writing a file does not panic")
    }

    /// Later, and without waiting: a limit that is too early on disk ends nothing too late. One at a time, so that a
    /// disk that hangs takes one thread of each attempt and not all there are.
    fn note_lease(&mut self) {
        let lease = *self.lines.lease.borrow();
        if lease == self.noted || self.noting.as_ref().is_some_and(|job| !job.is_finished()) {
            return;
        }
        self.noted = lease;
        let Some(lease) = lease else { return };
        let (id, directory) = (self.id.clone(), self.directory.clone());
        self.noting = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = write_lease(&directory, lease) {
                warn!(attempt_id = id, error = %error, "cannot note the lease");
            }
        }));
    }
}
