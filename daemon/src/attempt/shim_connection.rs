//! While a shim is connected: its messages come in, orders, renewals and positions go out, and the transcript is
//! folded as it grows. Nothing in here waits for a single thing, so that neither a full queue nor a shim that
//! does not read can keep a renewal or an order back.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::LeaseToken;
use baton_proto::worker::from_shim::Message;
use baton_proto::worker::{Launch, Lease, SpoolFailed, Started, Stop as StopOrder, Variable};
use tracing::{error, warn};

use super::attempt_control::ControlEvent;
use super::required_file_check::RequiredFileCheck;
use super::{AttemptPlan, AttemptTask, EndCause, ReachedShim, ShimParting, write_lease};
use crate::clock::{BootTime, whole_millis};
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::process::{ATTEMPT_MARKER, ProcessId, kill_by_marker, kill_descendants};
use crate::shim::client::ShimConnection;
use crate::shim::lease_message::to_message;
use crate::spool::{SpoolChunk, SpoolError};

/// What a shim may take from KILL to its report: the sweep, the drain, a busy machine.
const REPORT_TIMEOUT: Duration = Duration::from_secs(8);
/// The same when a child could not even be started: there is nothing to sweep, and the shim itself may be what waits.
const REPORT_TIMEOUT_UNSTARTED: Duration = Duration::from_secs(1);
/// The same after the limit of the lease, when this side has swept by itself.
const REPORT_TIMEOUT_AFTER_LIMIT: Duration = Duration::from_secs(2);

/// Output on its way to the supervisor at which reading stops.
const MAX_UNACCEPTED_BYTES: u64 = 1024 * 1024;

/// What the shim was told last, and what was done in its place.
#[derive(Default)]
struct SentToShim {
    lease: Option<LeaseClock>,
    kill_at: Option<BootTime>,
    consumed: u64,
    /// Number of the last message for stdin.
    stdin: u64,
    /// The limit at which everything but the shim was killed.
    swept_at: Option<BootTime>,
    /// When the limit was first seen to be over. After a suspend that is later than the limit, and the shim wakes up
    /// with the daemon: it has the same time to report as any other.
    expired_seen_at: Option<BootTime>,
}

/// What a shim needs to start the child.
pub(super) fn launch_message(plan: AttemptPlan, token: LeaseToken, lease: Option<Lease>) -> Launch {
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
            .control_group
            .map(|group| bytes(group.into_os_string()))
            .unwrap_or_default(),
    }
}

impl AttemptTask {
    /// Goes on where the daemon before stopped.
    pub(super) fn adopt_shim(&mut self, found: ReachedShim) -> ShimConnection {
        let ReachedShim {
            mut connection,
            presence,
        } = found;
        self.transcript.extend_end(presence.transcript_end);
        self.shim = connection.shim();
        let limit = presence.lease.map(|lease| lease.limit_ms);
        self.on_lease_received(limit.map(BootTime::from_millis));
        if !presence.says_lease_kept {
            connection.watch_lease_delivery(self.control.lease_confirmations());
        }
        // A daemon that was killed right after the launch had not said so.
        self.enter_phase(OneTimePhase::Started, None);
        if let Some(started) = presence.started {
            self.on_started(started);
        }
        self.on_stdin_done(presence.stdin_done);
        if let Some(failed) = presence.spool_failed {
            self.on_spool_failed(&failed);
        }
        // It was ending: the order may not have reached the shim.
        if self
            .transcript_reader
            .has_reached(OneTimePhase::CleanupStarted)
        {
            let cause = match self.transcript_reader.passed_deadline() {
                Some(deadline) => EndCause::Deadline(deadline),
                None if self.transcript_reader.turn_ended_unprompted() => EndCause::Lingered,
                None => EndCause::Stopped,
            };
            self.decide_end(cause);
        }
        connection.set_consumed(self.control.orders().consumed);
        connection
    }

    /// Until the shim has reported, is gone, or is given up.
    pub(super) async fn follow_shim(&mut self, connection: &mut ShimConnection) -> ShimParting {
        let mut told = SentToShim::default();
        let mut looking = RequiredFileCheck::default();
        loop {
            self.apply_orders();
            self.check_files_between_turns(&mut looking);
            self.send_updates(connection, &mut told);
            let now = self.environment.clock.now();
            self.shim_descendants.scan(self.adopted_shim(), now);
            let give_up = self.give_up_at(&mut told, now);
            if give_up.is_some_and(|at| at <= now) {
                error!(attempt_id = %self.id, "the shim is stuck; killing it and what it started");
                return ShimParting::Stuck;
            }
            let limit = self.sweep_at(&told);
            if limit.is_some_and(|at| at <= now) {
                told.swept_at = limit;
                self.kill_all_but_shim(connection.shim());
            }
            let look = self.shim_descendants.next_scan_at(self.adopted_shim());
            let asked = self.interrupt_until.filter(|_| told.kill_at.is_none());
            let wake = [self.wake_at(), give_up, self.sweep_at(&told), look, asked];
            tokio::select! {
                message = connection.next() => match message {
                    Ok(Some(Message::Report(report))) => return ShimParting::Reported(Box::new(report)),
                    Ok(Some(message)) => self.on_message(message),
                    Ok(None) => return ShimParting::Closed,
                    Err(error) => {
                        warn!(attempt_id = %self.id, error = %error, "lost the shim");
                        return ShimParting::Closed;
                    }
                },
                unmet = looking.wait() => {
                    looking = RequiredFileCheck::default();
                    self.on_files_checked(&unmet);
                }
                () = self.advance_transcript(wake.into_iter().flatten().min()) => {}
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Started(started) => self.on_started(started),
            Message::Grown(grown) => self.transcript.extend_end(grown.end),
            Message::StdinDone(done) => self.on_stdin_done(done.id),
            Message::SpoolFailed(failed) => self.on_spool_failed(&failed),
            Message::LeaseKept(kept) => {
                self.on_lease_received(Some(BootTime::from_millis(kept.limit_ms)));
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
        self.transcript_reader
            .on_stdin_done(id, self.environment.clock.now());
    }

    /// It has read a lease with this limit.
    fn on_lease_received(&self, limit: Option<BootTime>) {
        self.control.confirm_lease(limit);
    }

    fn on_started(&mut self, started: Started) {
        self.spawned = true;
        self.transcript_reader
            .on_spawned(started.pid, self.environment.clock.now());
    }

    fn on_spool_failed(&mut self, failed: &SpoolFailed) {
        let message = format!(
            "the worker's disk does not take the output: {}; free space in the daemon's data directory",
            failed.message
        );
        self.decide_end(EndCause::WorkerDisk { message });
    }

    /// The first decision counts. The shim's report says whether the child was quicker.
    fn decide_end(&mut self, cause: EndCause) {
        if self.cause.is_some() {
            return;
        }
        if let EndCause::Deadline(kind) = &cause {
            self.transcript_reader.set_passed_deadline(*kind);
        }
        self.cause = Some(cause);
        // What does not run needs no grace.
        let grace = if self.is_unstarted() {
            Duration::ZERO
        } else {
            self.cleanup_term
        };
        let by_grace = self.environment.clock.now().after(grace);
        self.kill_at.get_or_insert(by_grace);
        self.interrupt_turn();
        self.enter_phase(OneTimePhase::CleanupStarted, None);
    }

    /// The program could not be started in time: its file may be on a disk that hangs. One that runs and does not get
    /// ready is ended like any other.
    fn is_unstarted(&self) -> bool {
        let too_late = matches!(
            self.cause,
            Some(EndCause::Deadline(DeadlineKind::ProcessStart))
        );
        too_late && !self.spawned
    }

    /// Takes note of orders and of deadlines that have passed.
    fn apply_orders(&mut self) {
        if let Some(stop) = self.control.apply_orders().stop {
            self.kill_by(stop.kill_at);
            self.decide_end(EndCause::Stopped);
        }
        let now = self.environment.clock.now();
        if self.transcript_reader.is_past_self_exit(now) {
            self.decide_end(EndCause::Lingered);
        }
        let expired = self.transcript_reader.expired_deadline(now);
        if let Some(kind) = expired {
            self.decide_end(EndCause::Deadline(kind));
        }
    }

    fn send_updates(&mut self, connection: &mut ShimConnection, told: &mut SentToShim) {
        let orders = self.control.orders();
        if let Some(lease) = orders.lease.filter(|_| told.lease != orders.lease) {
            told.lease = Some(lease);
            let lease = lease.shim_deadlines(self.cleanup_term);
            connection.renew(to_message(lease));
        }
        self.write_lease_in_background();
        let due = !self.is_interrupting() && told.kill_at != self.kill_at;
        if let Some(kill_at) = self.kill_at.filter(|_| due) {
            told.kill_at = Some(kill_at);
            connection.order_stop(StopOrder {
                kill_at_ms: kill_at.as_millis(),
            });
        }
        let unsent = self
            .transcript_reader
            .stdin_after(told.stdin, orders.stored_answers);
        for message in unsent {
            told.stdin = message.id;
            connection.push_stdin(message);
        }
        if orders.consumed > told.consumed {
            told.consumed = orders.consumed;
            connection.set_consumed(orders.consumed);
        }
    }

    /// Moves on what needs no shim: the transcript into the fold, and events out of it. Returns after one step,
    /// when an order has come, or when it is time. Cancel safe.
    pub(super) async fn advance_transcript(&mut self, wake: Option<BootTime>) {
        let now = self.environment.clock.now();
        if self.pending_event.is_none() {
            self.pending_event = self.transcript_reader.next_event(now);
        }
        let held = self.control.orders().output_paused || self.is_too_far_ahead();
        self.transcript_reader.set_output_paused(held, now);
        let reading = !held && self.pending_event.is_none() && self.transcript.has_more();
        let batch = tokio::select! {
            room = self.events.reserve(), if self.pending_event.is_some() => {
                if let (Ok(room), Some(event)) = (room, self.pending_event.take()) {
                    room.send((self.id.clone(), event));
                }
                None
            }
            batch = self.transcript.next_batch(), if reading => Some(batch),
            event = self.control.next_event() => {
                if let ControlEvent::Answered(answer) = event {
                    self.transcript_reader.answer_input(answer, now);
                }
                None
            }
            () = self.environment.clock.sleep_until_some(wake) => None,
        };
        if let Some(batch) = batch {
            self.push_batch(batch);
        }
    }

    /// When time alone makes something happen. Output that is due waits for room behind an event that does, and makes
    /// nothing happen.
    fn wake_at(&self) -> Option<BootTime> {
        match self.pending_event {
            None => self.transcript_reader.wake_at(),
            Some(_) => self.transcript_reader.deadline_at(),
        }
    }

    /// What the supervisor has not taken in is in memory, and it says too late that the relay cannot keep up.
    fn is_too_far_ahead(&self) -> bool {
        let heard = self.control.orders().received_position;
        self.transcript_reader.delivered_end().saturating_sub(heard) > MAX_UNACCEPTED_BYTES
    }

    fn push_batch(&mut self, batch: Result<Vec<SpoolChunk>, SpoolError>) {
        let now = self.environment.clock.now();
        match batch {
            Ok(batch) => {
                for chunk in batch {
                    self.transcript_reader.push(chunk.kind, &chunk.bytes, now);
                }
            }
            Err(error) => {
                error!(attempt_id = %self.id, error = %error, "the transcript cannot be read");
                let message = format!("the worker's disk has lost output: {error}");
                self.decide_end(EndCause::WorkerDisk { message });
            }
        }
    }

    /// Everything that is due now goes out.
    pub(super) async fn deliver_events(&mut self) {
        loop {
            let next = self.pending_event.take();
            let Some(event) = next.or_else(|| {
                self.transcript_reader
                    .next_event(self.environment.clock.now())
            }) else {
                return;
            };
            self.send_event(event).await;
        }
    }

    pub(super) fn shim_lease(&self) -> Option<Lease> {
        let lease = self.control.orders().lease;
        lease.map(|lease| to_message(lease.shim_deadlines(self.cleanup_term)))
    }

    /// The shim ends the child by its limit. When it does not, this side does.
    fn sweep_at(&self, told: &SentToShim) -> Option<BootTime> {
        let limit = self.control.orders().lease.map(|lease| lease.limit());
        limit.filter(|_| told.swept_at != limit)
    }

    /// When there must have been a report.
    fn give_up_at(&self, told: &mut SentToShim, now: BootTime) -> Option<BootTime> {
        let limit = self.control.orders().lease.map(|lease| lease.limit());
        told.expired_seen_at = limit
            .filter(|limit| *limit <= now)
            .map(|_| told.expired_seen_at.unwrap_or(now));
        let over = told.expired_seen_at.or(limit);
        let by_lease = over.map(|over| over.after(REPORT_TIMEOUT_AFTER_LIMIT));
        let report = if self.is_unstarted() {
            REPORT_TIMEOUT_UNSTARTED
        } else {
            REPORT_TIMEOUT
        };
        let by_order = self.kill_at.map(|kill_at| kill_at.after(report));
        [by_lease, by_order].into_iter().flatten().min()
    }

    fn kill_all_but_shim(&self, shim: Option<ProcessId>) {
        let (id, clock) = (self.id.clone(), self.environment.clock.clone());
        tokio::spawn(async move {
            if let Some(shim) = shim {
                kill_descendants(shim, &clock).await;
            }
            let swept = kill_by_marker(ATTEMPT_MARKER, &id, shim, &clock).await;
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
        let lease = self.control.orders().lease;
        let directory = self.directory.clone();
        self.stored_lease = lease;
        let Some(lease) = lease else { return Ok(()) };
        let stored = tokio::task::spawn_blocking(move || write_lease(&directory, lease));
        stored.await.expect("writing a file does not panic")
    }

    /// Later, and without waiting: a limit that is too early on disk ends nothing too late. One at a time, so that a
    /// disk that hangs takes one thread of each attempt and not all there are.
    fn write_lease_in_background(&mut self) {
        let lease = self.control.orders().lease;
        if lease == self.stored_lease
            || self
                .lease_write
                .as_ref()
                .is_some_and(|job| !job.is_finished())
        {
            return;
        }
        self.stored_lease = lease;
        let Some(lease) = lease else { return };
        let (id, directory) = (self.id.clone(), self.directory.clone());
        self.lease_write = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = write_lease(&directory, lease) {
                warn!(attempt_id = id, error = %error, "cannot note the lease");
            }
        }));
    }
}
