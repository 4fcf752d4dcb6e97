//! The retention rules of the core. A finished task may be removed once no late result or
//! receipt can arrive for it, and a daemon may be forgotten once it can deliver nothing more.
//! The shell decides when to remove and how much; this module checks that it is safe.

use std::sync::Arc;

use crate::core_state::{Core, CoreTurn};
use crate::ids::{DaemonId, TaskId, TenantId, TenantScope, TokenId};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::{DaemonView, RecordChange};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::{RemovableTask, StoredNeeds, StoredRecords};
use crate::record::{DaemonRecord, ForgottenDaemon};
use crate::task::size_limits;
use crate::time::{ClockReading, WallTime};

/// The stored `last_seen` of a connected daemon is at most this old.
const LAST_SEEN_ACCURACY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Removes finished tasks. Tasks that may still change stay; the reply lists the removed ones.
#[derive(Debug)]
pub struct RemoveFinishedTasks {
    pub tasks: Vec<(TenantId, TaskId)>,
}

impl Command for RemoveFinishedTasks {
    type Reply = Vec<TaskId>;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::removable(&self.tasks)
    }

    fn run(
        self,
        core: &mut Core,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Vec<TaskId>> {
        let mut removed: Vec<TaskId> = Vec::with_capacity(stored.removable.len());
        for candidate in stored.removable {
            let repeated = removed.contains(&candidate.record.task);
            if repeated || !core.may_remove_task(&candidate, turn.now) {
                continue;
            }
            removed.push(candidate.record.task);
            turn.push_change(RecordChange::RemoveTask {
                tenant: candidate.record.tenant.clone(),
                task: candidate.record.task,
                idempotency_key: candidate.idempotency_key,
                body: candidate.body,
                checkpoints: candidate.record.checkpoint_count,
            });
        }
        Ok(CommandReply::after_everything(removed))
    }
}

/// Forgets daemons that were not seen for this long and hold nothing; the reply is their
/// number. Connected daemons get a new `last_seen`.
#[derive(Debug)]
pub struct ForgetAbsentDaemons {
    pub unseen_ms: u64,
}

impl Command for ForgetAbsentDaemons {
    type Reply = usize;

    fn run(
        self,
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<usize> {
        core.update_last_seen(turn);
        let daemons = core.daemon_registry.values();
        let forgettable =
            daemons.filter(|record| core.may_forget_daemon(record, self.unseen_ms, turn.now.wall));
        let forgotten = daemon_ids(forgettable);
        for daemon in &forgotten {
            core.forget_daemon(*daemon, turn);
        }
        Ok(CommandReply::after_everything(forgotten.len()))
    }
}

/// Forgets one daemon; only the audit entry of this request stays. Refused while the daemon
/// holds attempts or fences: it would reconnect as unknown, and its running work would have no
/// owner.
#[derive(Debug)]
pub struct ForgetDaemon {
    pub scope: TenantScope,
    pub daemon: DaemonId,
    pub by: RequestActor,
    pub reason: Arc<str>,
}

impl Command for ForgetDaemon {
    type Reply = Box<DaemonView>;

    fn run(
        self,
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<DaemonView>> {
        let (daemon, mut reason) = (self.daemon, self.reason);
        let view = core.daemon_view(daemon, turn.now);
        let own = view.filter(|_| core.may_operate_daemon(&self.scope, daemon));
        let view = own.ok_or(Rejection::UnknownDaemon)?;
        if core.is_connected(daemon) {
            return Err(Rejection::DaemonConnected);
        }
        if core.has_attempts_or_fences(daemon) {
            return Err(Rejection::DaemonHolds);
        }
        size_limits::clip(&mut reason, size_limits::MAX_NOTE_BYTES);
        core.forgotten_daemons.record_forgotten(ForgottenDaemon {
            daemon,
            scope: view.record.scope.clone(),
            name: view.record.name.clone(),
            last_seen: view.record.last_seen,
            by: self.by.name,
            reason,
            at: turn.now.wall,
        });
        core.forget_daemon(daemon, turn);
        turn.push_change(RecordChange::PutForgotten(core.forgotten_daemons.clone()));
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

impl Core {
    fn may_remove_task(&self, candidate: &RemovableTask, now: ClockReading) -> bool {
        let record = &candidate.record;
        let ended = record.state.is_terminal() && !self.is_live(record.task);
        let awaited = self.awaits_late_end(record, now) && !mutant!(AwaitedRemoved);
        let fenced = self.fences.has_task(record.task) && !mutant!(FencedRemoved);
        ended && !awaited && !fenced
    }

    fn update_last_seen(&mut self, turn: &mut CoreTurn<'_>) {
        let connected = self
            .daemon_registry
            .values()
            .filter(|record| self.is_connected(record.daemon));
        let stale =
            connected.filter(|record| unseen_for(record, turn.now.wall) >= LAST_SEEN_ACCURACY_MS);
        for daemon in daemon_ids(stale) {
            self.mark_daemon_seen(daemon, turn.now);
            let record = self.daemon_registry.get(daemon).cloned();
            turn.effects
                .changes
                .extend(record.map(RecordChange::PutDaemon));
        }
    }

    /// Makes room for one more daemon of this credential; false if the limit is reached.
    pub(crate) fn make_room_for_daemon(
        &mut self,
        daemon: DaemonId,
        token: TokenId,
        turn: &mut CoreTurn<'_>,
    ) -> bool {
        if self.daemon_registry.get(daemon).is_some() {
            return true;
        }
        let of_token = || {
            self.daemon_registry
                .values()
                .filter(|record| record.token == token)
        };
        if of_token().count() < self.config.max_daemons_per_token {
            return true;
        }
        // A daemon that may still deliver a result of its last attempt keeps its id.
        let away_ms = LAST_SEEN_ACCURACY_MS + self.config.adopt_late_ms;
        let may_go =
            of_token().filter(|record| self.may_forget_daemon(record, away_ms, turn.now.wall));
        let Some(longest_away) = may_go.min_by_key(|record| (record.last_seen, record.daemon))
        else {
            return false;
        };
        let longest_away = longest_away.daemon;
        self.forget_daemon(longest_away, turn);
        true
    }

    /// Updates `last_seen`. It is not written each time, because a broken stream changes
    /// nothing that is stored.
    pub(crate) fn mark_daemon_seen(&mut self, daemon: DaemonId, now: ClockReading) {
        self.daemon_registry.set_last_seen(daemon, now.wall);
    }

    fn may_forget_daemon(&self, record: &DaemonRecord, unseen_ms: u64, now: WallTime) -> bool {
        let disconnected = !self.is_connected(record.daemon);
        let long_absent = unseen_for(record, now) >= unseen_ms.max(self.config.adopt_late_ms);
        // A drain mark must not be lost with the record: the daemon would reconnect and take
        // work.
        let drained = record.drained.is_some() && !mutant!(DrainForgotten);
        disconnected && long_absent && !drained && !self.has_attempts_or_fences(record.daemon)
    }

    fn is_connected(&self, daemon: DaemonId) -> bool {
        self.roster.session_of(daemon).is_some()
    }

    fn has_attempts_or_fences(&self, daemon: DaemonId) -> bool {
        let held = self
            .roster
            .get(daemon)
            .is_some_and(|daemon| !daemon.held_attempts.is_empty());
        held || self.fences.has_daemon(daemon)
    }

    fn forget_daemon(&mut self, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        if let Some(record) = self.daemon_registry.remove(daemon) {
            self.roster.forget_daemon(daemon);
            turn.push_change(RecordChange::DropDaemon(record));
        }
    }
}

fn unseen_for(record: &DaemonRecord, now: WallTime) -> u64 {
    now.0.saturating_sub(record.last_seen.0)
}

fn daemon_ids<'a>(records: impl Iterator<Item = &'a Arc<DaemonRecord>>) -> Vec<DaemonId> {
    records.map(|record| record.daemon).collect()
}
