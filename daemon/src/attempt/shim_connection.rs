//! The exchange with a connected shim: its messages come in, orders, renewals and positions go
//! out, and the transcript is read as it grows. All of it is awaited together, so that neither
//! a full queue nor a shim that does not read can delay a renewal or an order.

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

/// How long a shim may take from SIGKILL to its report: the sweep, reading the pipes, a busy
/// machine.
const REPORT_TIMEOUT: Duration = Duration::from_secs(8);
/// The same when no child could be started: there is nothing to sweep, and the shim itself may
/// hang.
const REPORT_TIMEOUT_UNSTARTED: Duration = Duration::from_secs(1);
/// The same after the limit of the lease, when this side has swept by itself.
const REPORT_TIMEOUT_AFTER_LIMIT: Duration = Duration::from_secs(2);

/// How much output may wait for the supervisor before reading stops.
const MAX_UNACCEPTED_BYTES: u64 = 1024 * 1024;

/// What was last sent to the shim, and what was done in its place.
#[derive(Default)]
struct SentToShim {
    lease: Option<LeaseClock>,
    kill_at: Option<BootTime>,
    consumed: u64,
    /// The number of the last message for stdin.
    stdin: u64,
    /// The lease limit at which all processes but the shim were killed.
    swept_at: Option<BootTime>,
    /// When the limit was first seen to have passed. After a suspend that is later than the
    /// limit, and the shim wakes up with the daemon: it gets the same time to report.
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
    /// Goes on where the earlier daemon stopped.
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
        // A daemon that was killed right after the launch had not reported the start.
        self.enter_phase(OneTimePhase::Started, None);
        if let Some(started) = presence.started {
            self.on_started(started);
        }
        self.on_stdin_done(presence.stdin_done);
        if let Some(failed) = presence.spool_failed {
            self.on_spool_failed(&failed);
        }
        // The attempt was being ended: the order may not have reached the shim.
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

    /// Follows the shim until it has reported, is gone, or is given up.
    pub(super) async fn follow_shim(&mut self, connection: &mut ShimConnection) -> ShimParting {
        let mut sent = SentToShim::default();
        let mut file_check = RequiredFileCheck::default();
        loop {
            self.apply_orders();
            self.check_files_between_turns(&mut file_check);
            self.send_updates(connection, &mut sent);
            let now = self.environment.clock.now();
            self.shim_descendants.scan(self.adopted_shim(), now);
            let give_up = self.give_up_at(&mut sent, now);
            if give_up.is_some_and(|at| at <= now) {
                error!(attempt_id = %self.id, "the shim is stuck; killing it and what it started");
                return ShimParting::Stuck;
            }
            let limit = self.sweep_at(&sent);
            if limit.is_some_and(|at| at <= now) {
                sent.swept_at = limit;
                self.kill_all_but_shim(connection.shim());
            }
            let scan = self.shim_descendants.next_scan_at(self.adopted_shim());
            let interrupt_end = self.interrupt_until.filter(|_| sent.kill_at.is_none());
            let wake = [
                self.wake_at(),
                give_up,
                self.sweep_at(&sent),
                scan,
                interrupt_end,
            ];
            tokio::select! {
                message = connection.next() => match message {
                    Ok(Some(Message::Report(report))) => return ShimParting::Reported(Box::new(report)),
                    Ok(Some(message)) => self.on_message(message),
                    Ok(None) => return ShimParting::Closed,
                    Err(error) => {
                        warn!(attempt_id = %self.id, error = %error, "lost the connection to the shim");
                        return ShimParting::Closed;
                    }
                },
                unmet = file_check.wait() => {
                    file_check = RequiredFileCheck::default();
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
            // A launched shim has this version; its presence is not needed, and its report ends
            // the loop.
            Message::Presence(_) | Message::Report(_) => {}
            Message::Refused(_) => {
                warn!(attempt_id = %self.id, "the shim supports no common version");
            }
        }
    }

    /// A child that closed its stdin will not read more of the prompt either.
    pub(super) fn on_stdin_done(&mut self, id: u64) {
        self.transcript_reader
            .on_stdin_done(id, self.environment.clock.now());
    }

    /// The shim has confirmed a lease with this limit.
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
            "the worker's disk cannot store the output: {}; free space in the daemon's data directory",
            failed.message
        );
        self.decide_end(EndCause::WorkerDisk { message });
    }

    /// The first cause counts. The shim's report shows whether the child had exited before.
    fn decide_end(&mut self, cause: EndCause) {
        if self.cause.is_some() {
            return;
        }
        if let EndCause::Deadline(kind) = &cause {
            self.transcript_reader.set_passed_deadline(*kind);
        }
        self.cause = Some(cause);
        // Without a process there is nothing to clean up.
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

    /// The program could not be started in time, perhaps because its file is on a disk that
    /// hangs. A program that runs and is not ready in time is ended with the usual grace.
    fn is_unstarted(&self) -> bool {
        let too_late = matches!(
            self.cause,
            Some(EndCause::Deadline(DeadlineKind::ProcessStart))
        );
        too_late && !self.spawned
    }

    /// Applies orders and deadlines that have passed.
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

    fn send_updates(&mut self, connection: &mut ShimConnection, sent: &mut SentToShim) {
        let orders = self.control.orders();
        if let Some(lease) = orders.lease.filter(|_| sent.lease != orders.lease) {
            sent.lease = Some(lease);
            let lease = lease.shim_deadlines(self.cleanup_term);
            connection.renew(to_message(lease));
        }
        self.write_lease_in_background();
        let due = !self.is_interrupting() && sent.kill_at != self.kill_at;
        if let Some(kill_at) = self.kill_at.filter(|_| due) {
            sent.kill_at = Some(kill_at);
            connection.order_stop(StopOrder {
                kill_at_ms: kill_at.as_millis(),
            });
        }
        let unsent = self
            .transcript_reader
            .stdin_after(sent.stdin, orders.stored_answers);
        for message in unsent {
            sent.stdin = message.id;
            connection.push_stdin(message);
        }
        if orders.consumed > sent.consumed {
            sent.consumed = orders.consumed;
            connection.set_consumed(orders.consumed);
        }
    }

    /// Does what needs no shim: reads the transcript and reports events. Returns after one
    /// step, when an order has come, or when it is time. Cancel safe.
    pub(super) async fn advance_transcript(&mut self, wake: Option<BootTime>) {
        let now = self.environment.clock.now();
        if self.pending_event.is_none() {
            self.pending_event = self.transcript_reader.next_event(now);
        }
        let paused = self.control.orders().output_paused || self.is_too_far_ahead();
        self.transcript_reader.set_output_paused(paused, now);
        let reading = !paused && self.pending_event.is_none() && self.transcript.has_more();
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

    /// When time alone causes something. Output that is due behind an event that waits for room
    /// causes nothing.
    fn wake_at(&self) -> Option<BootTime> {
        match self.pending_event {
            None => self.transcript_reader.wake_at(),
            Some(_) => self.transcript_reader.deadline_at(),
        }
    }

    /// Limits the output that the supervisor has not received: it is in memory, and the
    /// supervisor's own order to pause would come too late.
    fn is_too_far_ahead(&self) -> bool {
        let received = self.control.orders().received_position;
        self.transcript_reader
            .delivered_end()
            .saturating_sub(received)
            > MAX_UNACCEPTED_BYTES
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

    /// Reports everything that is due now.
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

    /// When this side kills the attempt's processes because the shim has not ended them by the
    /// limit of the lease.
    fn sweep_at(&self, sent: &SentToShim) -> Option<BootTime> {
        let limit = self.control.orders().lease.map(|lease| lease.limit());
        limit.filter(|_| sent.swept_at != limit)
    }

    /// When the shim is given up because it has not reported.
    fn give_up_at(&self, sent: &mut SentToShim, now: BootTime) -> Option<BootTime> {
        let limit = self.control.orders().lease.map(|lease| lease.limit());
        sent.expired_seen_at = limit
            .filter(|limit| *limit <= now)
            .map(|_| sent.expired_seen_at.unwrap_or(now));
        let expired_at = sent.expired_seen_at.or(limit);
        let by_lease = expired_at.map(|expired_at| expired_at.after(REPORT_TIMEOUT_AFTER_LIMIT));
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
            let sweep = kill_by_marker(ATTEMPT_MARKER, &id, shim, &clock).await;
            if sweep.killed > 0 {
                warn!(
                    attempt_id = id,
                    killed = sweep.killed,
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

    /// Written in the background: an older limit on disk only ends an attempt earlier. One
    /// write at a time, so that a disk that hangs blocks one thread per attempt and not all of
    /// them.
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
                warn!(attempt_id = id, error = %error, "cannot store the lease");
            }
        }));
    }
}
