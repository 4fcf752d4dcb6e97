//! Daemons that are forgotten: only where nothing can still come from them.

use std::sync::Arc;

use crate::core_state::CoreOwners;
use crate::fleet::Fleet;
use crate::ids::{DaemonId, TenantScope, TokenId};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::{DaemonView, RecordChange};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::operator::inspection::daemon_view;
use crate::record::{DaemonRecord, ForgottenDaemon};
use crate::schedule::Schedule;
use crate::task::size_limits;
use crate::time::WallTime;
use crate::turn::CoreTurn;

/// The stored record of a daemon dates its last presence at least as exactly as this.
const LAST_SEEN_ACCURACY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Retention wants daemons forgotten that were not seen for this long and hold nothing; the reply
/// counts them. Connected daemons get a new date.
#[derive(Debug)]
pub struct ForgetAbsentDaemons {
    pub unseen_ms: u64,
}

impl Command for ForgetAbsentDaemons {
    type Reply = usize;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<usize> {
        core.fleet.date_connected_daemons(turn);
        let may_go = |record: &&Arc<DaemonRecord>| {
            may_forget_daemon(core.fleet, core.schedule, record, self.unseen_ms, turn)
        };
        let gone = daemon_ids(core.fleet.records().filter(may_go));
        for daemon in &gone {
            core.fleet.forget_daemon(*daemon, turn);
        }
        Ok(CommandReply::after_everything(gone.len()))
    }
}

/// The daemon is gone for good: nothing of it stays on record but this request. Refused while it
/// could come back to what it holds: it would come back unknown, and what it runs would have no
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
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<DaemonView>> {
        let (daemon, mut reason) = (self.daemon, self.reason);
        let view = daemon_view(core.fleet, core.tasks, core.leases, daemon, turn.now);
        let own = view.filter(|_| core.fleet.may_operate(&self.scope, daemon));
        let view = own.ok_or(Rejection::UnknownDaemon)?;
        if core.fleet.is_connected(daemon) {
            return Err(Rejection::DaemonConnected);
        }
        if has_attempts_or_fences(core.fleet, core.schedule, daemon) {
            return Err(Rejection::DaemonHolds);
        }
        size_limits::clip(&mut reason, size_limits::MAX_NOTE_BYTES);
        let forgotten = ForgottenDaemon {
            daemon,
            scope: view.record.scope.clone(),
            name: view.record.name.clone(),
            last_seen: view.record.last_seen,
            by: self.by.name,
            reason,
            at: turn.now.wall,
        };
        core.fleet.forget_daemon_on_record(forgotten, turn);
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

impl Fleet {
    fn date_connected_daemons(&mut self, turn: &mut CoreTurn<'_>) {
        let here = self
            .registry
            .values()
            .filter(|record| self.is_connected(record.daemon));
        let stale =
            here.filter(|record| unseen_for(record, turn.now.wall) >= LAST_SEEN_ACCURACY_MS);
        for daemon in daemon_ids(stale) {
            self.mark_seen(daemon, turn.now.wall);
            let record = self.registry.get(daemon).cloned();
            turn.effects
                .changes
                .extend(record.map(RecordChange::PutDaemon));
        }
    }

    fn forget_daemon(&mut self, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        if let Some(record) = self.registry.remove(daemon) {
            self.roster.forget_daemon(daemon);
            turn.push_change(RecordChange::DropDaemon(record));
        }
    }

    fn forget_daemon_on_record(&mut self, forgotten: ForgottenDaemon, turn: &mut CoreTurn<'_>) {
        let daemon = forgotten.daemon;
        self.forgotten.record_forgotten(forgotten);
        self.forget_daemon(daemon, turn);
        turn.push_change(RecordChange::PutForgotten(self.forgotten.clone()));
    }
}

/// Makes room for one more daemon of this credential; false if it has as many as it may.
pub(crate) fn make_room_for_daemon(
    fleet: &mut Fleet,
    schedule: &Schedule,
    daemon: DaemonId,
    token: TokenId,
    turn: &mut CoreTurn<'_>,
) -> bool {
    if fleet.record(daemon).is_some() {
        return true;
    }
    let of_token = || fleet.records().filter(|record| record.token == token);
    if of_token().count() < turn.config.max_daemons_per_token {
        return true;
    }
    // A daemon that may still bring a result of its last attempt keeps its id.
    let away_ms = LAST_SEEN_ACCURACY_MS + turn.config.adopt_late_ms;
    let may_go =
        of_token().filter(|record| may_forget_daemon(fleet, schedule, record, away_ms, turn));
    let Some(longest_away) = may_go.min_by_key(|record| (record.last_seen, record.daemon)) else {
        return false;
    };
    let longest_away = longest_away.daemon;
    fleet.forget_daemon(longest_away, turn);
    true
}

fn may_forget_daemon(
    fleet: &Fleet,
    schedule: &Schedule,
    record: &DaemonRecord,
    unseen_ms: u64,
    turn: &CoreTurn<'_>,
) -> bool {
    let away = !fleet.is_connected(record.daemon);
    let long = unseen_for(record, turn.now.wall) >= unseen_ms.max(turn.config.adopt_late_ms);
    // An operator's mark must not be lost with the record: the daemon would come back and take
    // work.
    let marked = record.drained.is_some() && !mutant!(DrainForgotten);
    away && long && !marked && !has_attempts_or_fences(fleet, schedule, record.daemon)
}

fn has_attempts_or_fences(fleet: &Fleet, schedule: &Schedule, daemon: DaemonId) -> bool {
    let held = fleet
        .roster
        .get(daemon)
        .is_some_and(|daemon| !daemon.held_attempts.is_empty());
    held || schedule.has_fence_of_daemon(daemon)
}

fn unseen_for(record: &DaemonRecord, now: WallTime) -> u64 {
    now.0.saturating_sub(record.last_seen.0)
}

fn daemon_ids<'a>(records: impl Iterator<Item = &'a Arc<DaemonRecord>>) -> Vec<DaemonId> {
    records.map(|record| record.daemon).collect()
}
