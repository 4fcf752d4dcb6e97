//! Daemon sessions: Hello and the settlement of every attempt that the daemon or the relay
//! lists.
//!
//! Listed and leased: the attempt continues. Listed and ended: its final frames are adopted, or
//! it is killed. Leased and not listed: it is lost. A changed boot id proves that all earlier
//! processes of the machine are gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::attempt::fences::FenceGuard;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::{TimerFact, TimerKey, TimerSet};
use crate::core_state::{Core, CoreTurn};
use crate::fleet::frame_check::{FrameOrigin, check_owner};
use crate::fleet::roster::SessionSuccession;
use crate::ids::{AttemptId, DaemonId, SessionId, TaskId};
use crate::io::effects::{
    AttemptSettlement, CloseReason, CommitDependency, CoreMetric, DaemonMessage, Delivery,
    RecordChange, SettlementVerdict,
};
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttempt, ActiveAttemptState, DaemonHello};
use crate::io::stored_lookup::{FinishedTask, StoredTasks, TaskLookup};
use crate::record::{AttemptState, DaemonRecord, InputState, LeaseHolder};
use crate::schedule::placement;
use crate::task::live_task::LiveTask;
use crate::time::MonotonicTime;

impl Core {
    pub(crate) fn open_session(
        &mut self,
        session: SessionId,
        mut hello: DaemonHello,
        turn: &mut CoreTurn<'_>,
    ) {
        let daemon = hello.daemon;
        if self.roster.is_overtaken(daemon, session) && !mutant!(OvertakenHelloHeard) {
            // This Hello was processed after that of a newer stream. Its older boot id would
            // look like a reboot.
            let code = Rejection::Superseded;
            turn.effects.metrics.push(CoreMetric::FrameRejected(code));
            return push_close_session(session, CloseReason::Replaced, turn);
        }
        if !self.make_room_for_daemon(daemon, hello.token, turn) {
            return push_close_session(session, CloseReason::TooManyDaemons, turn);
        }
        let active = std::mem::take(&mut hello.active);
        let last_received_at = self
            .roster
            .get(daemon)
            .and_then(|known| known.presence.last_received_at());
        let outcome = self.roster.apply_hello(
            session,
            &hello,
            self.config.heartbeat_ms,
            turn.now.monotonic,
        );
        match outcome.succession {
            SessionSuccession::First => {}
            SessionSuccession::Replaced(old) => {
                push_close_session(old, CloseReason::Replaced, turn)
            }
            SessionSuccession::Superseded(old) => {
                push_close_session(old, CloseReason::Superseded, turn)
            }
        }
        self.store_daemon(&hello, turn);
        let superseded = matches!(outcome.succession, SessionSuccession::Superseded(_));
        let alive_ms = 2 * self.config.heartbeat_ms;
        if superseded && last_received_at.is_some_and(|at| turn.now.monotonic.since(at) < alive_ms)
        {
            // A machine that sent data just now cannot have rebooted since: the machine or its
            // data directory was cloned.
            self.fences.replace_boot_id(daemon, &hello.boot_id);
        }
        if !mutant!(BootIdIgnored) {
            self.lose_rebooted_attempts(&hello, &active, turn);
        }
        let mut kept_tasks = Vec::new();
        let settlements = active.into_iter().map(|active| {
            let (attempt, task) = (active.frame_ref.attempt, active.frame_ref.task);
            let verdict = self.settle_attempt(session, &hello, active, turn);
            match verdict {
                SettlementVerdict::Keep { .. } => kept_tasks.push(task),
                SettlementVerdict::Adopt { .. } => self.roster.await_final_frames(daemon, attempt),
                SettlementVerdict::Kill { .. } => {}
            }
            AttemptSettlement { attempt, verdict }
        });
        let settlements: Vec<AttemptSettlement> = settlements.collect();
        if !mutant!(MissingFromHelloKept) {
            self.lose_missing_attempts(daemon, &settlements, turn);
        }
        let heartbeat_ms = self.heartbeat_interval_ms(daemon);
        self.roster
            .note_answer_sent(session, None, heartbeat_ms, turn.now.monotonic);
        turn.send_to_session(
            CommitDependency::Everything.unless_broken(mutant!(WelcomeBeforePersist)),
            session,
            DaemonMessage::Welcome {
                heartbeat_ms,
                settlements,
            },
        );
        self.send_drain_state(&hello, session, turn);
        for task in kept_tasks {
            self.resend_pending_messages(task, session, turn);
        }
    }

    /// Ends as lost every held attempt that does not continue: not listed, or listed without a
    /// valid claim.
    fn lose_missing_attempts(
        &mut self,
        daemon: DaemonId,
        settlements: &[AttemptSettlement],
        turn: &mut CoreTurn<'_>,
    ) {
        let is_kept = |settled: &&AttemptSettlement| {
            !matches!(settled.verdict, SettlementVerdict::Kill { .. })
        };
        let settled = settlements.iter().filter(is_kept);
        let kept: BTreeSet<AttemptId> = settled.map(|settled| settled.attempt).collect();
        let held = self.roster.get(daemon).map(|daemon| &daemon.held_attempts);
        let missing: Vec<AttemptId> = held
            .map(|held| held.difference(&kept).copied().collect())
            .unwrap_or_default();
        for attempt in missing {
            self.apply_to_attempt(attempt, MachineEvent::MissingOnDaemon, turn);
        }
    }

    /// Looks up listed tasks that ended after the shell's lookup. The shell has loaded the
    /// other finished tasks already.
    pub(crate) fn look_up_ended_tasks(&self, hello: &mut DaemonHello, store: &dyn StoredTasks) {
        for active in &mut hello.active {
            let open = matches!(active.lookup, TaskLookup::Open);
            if open && !self.is_live(active.frame_ref.task) {
                let found = store.finished_in_scope(&hello.scope, active.frame_ref.task);
                active.lookup = TaskLookup::from_finished(found);
            }
        }
    }

    pub(crate) fn session_ended(&mut self, session: SessionId, turn: &mut CoreTurn<'_>) {
        if let Some(daemon) = self.roster.close_session(session, turn.now.monotonic) {
            self.mark_daemon_seen(daemon, turn.now);
        }
    }

    /// Sends the drain state: a drain that was set while the daemon was disconnected, or the
    /// end of a drain that the daemon still reports.
    fn send_drain_state(&self, hello: &DaemonHello, session: SessionId, turn: &mut CoreTurn<'_>) {
        let record = self.daemon_registry.get(hello.daemon);
        let drained = record.is_some_and(|record| record.drained.is_some());
        if drained || hello.draining {
            let withdrawn = !drained;
            turn.send_to_session(
                CommitDependency::Everything,
                session,
                DaemonMessage::Drain { withdrawn },
            );
        }
    }

    /// Applies an event to a leased attempt, found by its id.
    pub(crate) fn apply_to_attempt(
        &mut self,
        attempt: AttemptId,
        event: MachineEvent,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(task) = self.leased_attempts.get(&attempt).copied() else {
            return;
        };
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        if live.newest_attempt().id == attempt {
            self.apply_event(&mut live, event, None, turn);
        }
        self.put_back_task(live, turn);
    }

    pub(crate) fn delivery_failed(
        &mut self,
        session: SessionId,
        attempt: AttemptId,
        turn: &mut CoreTurn<'_>,
    ) {
        let holder = self.roster.holder_of(attempt);
        let current = self.roster.daemon_of(session);
        // The stream may be over by now; another daemon's word is not its holder's.
        if holder.is_some() && (current.is_none() || current == holder) {
            self.apply_to_attempt(attempt, MachineEvent::DeliveryFailed, turn);
        }
    }

    /// The heartbeat interval of a daemon, set by the shortest lease that it holds.
    pub(crate) fn heartbeat_interval_ms(&self, daemon: DaemonId) -> u64 {
        let held = self
            .roster
            .get(daemon)
            .into_iter()
            .flat_map(|daemon| &daemon.held_attempts);
        let tasks = held.filter_map(|attempt| self.tasks.get(self.leased_attempts.get(attempt)?));
        let shortest = tasks.map(|live| live.spec.lease_ttl_ms).min();
        shortest.map_or(self.config.heartbeat_ms, |ttl| {
            self.config.heartbeat_ms_for(ttl)
        })
    }

    fn store_daemon(&mut self, hello: &DaemonHello, turn: &mut CoreTurn<'_>) {
        let known = self.daemon_registry.get(hello.daemon);
        let record = Arc::new(DaemonRecord {
            daemon: hello.daemon,
            scope: hello.scope.clone(),
            token: hello.token,
            name: hello.name.clone(),
            version: hello.version.clone(),
            platform: hello.platform.clone(),
            boot_id: hello.boot_id.clone(),
            slots: hello.slots,
            labels: hello.labels.clone(),
            capabilities: hello.capabilities.clone(),
            agents: hello.agents.clone(),
            workspaces: hello.workspaces.clone(),
            drained: known.and_then(|known| known.drained.clone()),
            first_seen: known.map_or(turn.now.wall, |known| known.first_seen),
            last_seen: turn.now.wall,
        });
        self.daemon_registry.insert(Arc::clone(&record));
        turn.push_change(RecordChange::PutDaemon(record));
    }

    /// Ends every attempt that was leased to this machine under an earlier boot id. A finished
    /// attempt whose result is still in the daemon's outbox is kept.
    fn lose_rebooted_attempts(
        &mut self,
        hello: &DaemonHello,
        active: &[ActiveAttempt],
        turn: &mut CoreTurn<'_>,
    ) {
        let incarnation = self.config.incarnation;
        let finished = |attempt: AttemptId| {
            active.iter().any(|a| {
                let same = a.frame_ref.attempt == attempt && a.frame_ref.incarnation == incarnation;
                same && a.state == ActiveAttemptState::Finished
            })
        };
        for fence in self.fences.remove_rebooted(hello.daemon, &hello.boot_id) {
            match fence.guard {
                FenceGuard::Until(_) => self.remove_fallen_fence(&fence, turn),
                FenceGuard::Leased if finished(fence.attempt) => self.fences.insert_fence(fence),
                FenceGuard::Leased => {
                    self.apply_to_attempt(fence.attempt, MachineEvent::Rebooted, turn);
                    placement::release_fenced(&mut self.queue, &fence);
                }
            }
        }
    }

    fn settle_attempt(
        &mut self,
        session: SessionId,
        hello: &DaemonHello,
        active: ActiveAttempt,
        turn: &mut CoreTurn<'_>,
    ) -> SettlementVerdict {
        let re = active.frame_ref;
        if re.incarnation != self.config.incarnation && !mutant!(IncarnationIgnored) {
            return kill_unknown(Rejection::StaleIncarnation);
        }
        let from = FrameOrigin {
            session,
            daemon: hello.daemon,
            frame_ref: re,
            control_seq: 0,
        };
        if let Some(mut live) = self.tasks.remove(&re.task) {
            let verdict = match check_owner(&live, from, active.proof.as_ref(), turn) {
                Ok(()) => self.settle_live_attempt(&mut live, hello, &active, turn),
                Err(code) => kill_unknown(code),
            };
            self.put_back_task(live, turn);
            return verdict;
        }
        match active.lookup.clone() {
            TaskLookup::Finished(FinishedTask { record, spec }) => {
                let live = LiveTask::new(spec, record, TimerSet::default());
                match check_owner(&live, from, active.proof.as_ref(), turn) {
                    Ok(()) => settle_ended_attempt(&live, &active),
                    Err(code) => kill_unknown(code),
                }
            }
            TaskLookup::Open | TaskLookup::Missing => kill_unknown(Rejection::UnknownAttempt),
        }
    }

    fn settle_live_attempt(
        &mut self,
        live: &mut LiveTask,
        hello: &DaemonHello,
        active: &ActiveAttempt,
        turn: &mut CoreTurn<'_>,
    ) -> SettlementVerdict {
        let current = |live: &LiveTask| {
            live.newest_attempt().id == active.frame_ref.attempt && live.is_newest_leased()
        };
        if current(live)
            && live
                .lease_ends_at()
                .is_some_and(|ends| ends <= turn.now.monotonic)
        {
            self.apply_event(
                live,
                MachineEvent::TimerExpired(TimerKey::Lease),
                None,
                turn,
            );
        }
        if !current(live) {
            return settle_ended_attempt(live, active);
        }
        let held_by = live.newest_attempt().daemon_holder();
        if held_by.is_some_and(|holder| holder.instance != hello.instance)
            && let Some(LeaseHolder::Daemon(holder)) = &mut live.newest_attempt_mut().holder
        {
            holder.instance = hello.instance;
        }
        self.restart_cleanup_timer(live, turn.now.monotonic);
        match (active.state, &active.proof) {
            (ActiveAttemptState::Running, Some(_)) => self.continue_attempt(live, turn),
            // The attempt no longer runs, so heartbeats need not list it while its final frames
            // are replayed.
            (ActiveAttemptState::Finished, _) => {
                self.renew_full_lease(live, turn);
                live.confirmed_at = None;
                SettlementVerdict::Adopt {
                    acked: live.ackable_seq,
                }
            }
            // Heartbeats do not list it while its shim does not answer, and without a token
            // nothing is renewed: only the lease limits it.
            (ActiveAttemptState::Unreachable, _) | (ActiveAttemptState::Running, None) => {
                live.confirmed_at = None;
                SettlementVerdict::Keep {
                    acked: live.ackable_seq,
                    granted_ms: None,
                }
            }
        }
    }

    /// Restarts the cleanup timer of an attempt that was ending when the stream broke. Its
    /// final frames are replayed and get the full time again.
    fn restart_cleanup_timer(&self, live: &mut LiveTask, now: MonotonicTime) {
        if live.newest_attempt().state == (AttemptState::CleaningUp { pending: None }) {
            let limits = LiveTask::timer_limits(&live.spec, &self.config);
            live.timers.disarm(&TimerKey::CleanupTerm);
            live.timers.on_fact(&TimerFact::CancelSent, now, &limits);
        }
    }

    fn continue_attempt(
        &mut self,
        live: &mut LiveTask,
        turn: &mut CoreTurn<'_>,
    ) -> SettlementVerdict {
        if live.newest_attempt().state == AttemptState::Offered {
            self.apply_event(live, MachineEvent::KeptBySettlement, None, turn);
        }
        live.confirmed_at = Some(turn.now.monotonic);
        if !mutant!(KeepNotRenewed) {
            self.renew_full_lease(live, turn);
        }
        let granted_ms = Some(live.spec.lease_ttl_ms);
        SettlementVerdict::Keep {
            acked: live.ackable_seq,
            granted_ms,
        }
    }

    fn renew_full_lease(&self, live: &mut LiveTask, turn: &CoreTurn<'_>) {
        let until = turn.now.monotonic + live.spec.lease_ttl_ms;
        live.renew_lease(until, &self.config, turn.now.monotonic);
    }

    /// Sends again what the daemon may have missed: a cancel, and answers that it has not
    /// confirmed.
    fn resend_pending_messages(
        &mut self,
        task: TaskId,
        session: SessionId,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        if matches!(
            live.newest_attempt().state,
            AttemptState::CleaningUp { pending: Some(_) }
        ) {
            let limits = LiveTask::timer_limits(&live.spec, &self.config);
            live.timers
                .on_fact(&TimerFact::CancelSent, turn.now.monotonic, &limits);
            self.send_cancel(&live, turn);
        }
        for input in &live.newest_attempt().inputs {
            if let InputState::Answered(answer) = &input.state {
                let message = self.answer_message(&live, input, answer);
                turn.send_to_session(CommitDependency::Task(task), session, message);
            }
        }
        self.put_back_task(live, turn);
    }
}

/// The verdict on an ended attempt. If it finished, its final frames are adopted, as the result
/// or as evidence. If it still runs, it is killed.
fn settle_ended_attempt(live: &LiveTask, active: &ActiveAttempt) -> SettlementVerdict {
    let attempt = live.record().attempt(active.frame_ref.attempt);
    let acked = attempt.map_or(0, |attempt| attempt.control_seq);
    let code = if live.record().state.is_terminal() {
        Rejection::TaskTerminal
    } else {
        Rejection::StaleAttempt
    };
    match active.state {
        ActiveAttemptState::Finished => SettlementVerdict::Adopt { acked },
        ActiveAttemptState::Running | ActiveAttemptState::Unreachable => SettlementVerdict::Kill {
            code,
            acked: Some(acked),
        },
    }
}

/// The verdict on an attempt that does not belong to this daemon. Not even its receipt is
/// requested.
fn kill_unknown(code: Rejection) -> SettlementVerdict {
    SettlementVerdict::Kill { code, acked: None }
}

fn push_close_session(session: SessionId, reason: CloseReason, turn: &mut CoreTurn<'_>) {
    turn.push_delivery(
        CommitDependency::Nothing,
        Delivery::CloseSession { session, reason },
    );
}
