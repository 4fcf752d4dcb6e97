//! Scheduler status for operators: counts and ages of what the caller may see. It changes
//! nothing and iterates over no tasks; the counts are maintained in `open_task_limits.rs`.

use crate::config::Config;
use crate::core_state::CoreOwners;
use crate::fleet::roster::DaemonRoster;
use crate::ids::TenantScope;
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::SchedulerView;
use crate::io::stored_lookup::StoredRecords;
use crate::schedule::Schedule;
use crate::turn::CoreTurn;

/// Reads the counts and ages that the caller may see.
#[derive(Debug)]
pub struct ReadSchedulerStatus {
    pub scope: TenantScope,
}

impl Command for ReadSchedulerStatus {
    type Reply = Box<SchedulerView>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let (counts, oldest) = core.tasks.counts(&self.scope);
        let suspended = u64::from(core.schedule.has_active_suspension());
        let view = SchedulerView {
            open: counts.open,
            pending: counts.pending,
            queued: counts.queued,
            running: counts.running,
            needs_attention: counts.needs_attention,
            paused_tasks: counts.paused,
            pending_inputs: counts.inputs,
            inherited: counts.inherited * suspended,
            oldest_queued_ms: oldest.map_or(0, |since| turn.now.wall.0.saturating_sub(since.0)),
            ..pauses_and_daemons(core.schedule, core.fleet.roster(), &self.scope, turn.config)
        };
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

/// What is no task's: pauses and daemons.
fn pauses_and_daemons(
    schedule: &Schedule,
    roster: &DaemonRoster,
    scope: &TenantScope,
    config: &Config,
) -> SchedulerView {
    let tenants = schedule.pauses.active_pauses();
    let theirs = tenants.filter(|(tenant, _)| scope.covers(tenant));
    let changes = schedule.pauses.changes.iter();
    let visible = changes.filter(|change| match &change.scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => scope.covers(tenant),
    });
    let online = roster.iter().filter(|daemon| {
        let works_for_them = match scope {
            TenantScope::All => true,
            TenantScope::One(tenant) => daemon.scope.covers(tenant),
        };
        works_for_them && roster.session_of(daemon.id).is_some()
    });
    let slots: Vec<u64> = online.map(|d| u64::from(d.free_slots())).collect();
    SchedulerView {
        paused: schedule.scheduler.paused.clone(),
        tenants: theirs
            .map(|(tenant, pause)| (tenant.clone(), pause.clone()))
            .collect(),
        changes: visible.cloned().collect(),
        open_limit: config.max_open_tasks as u64,
        daemons_online: slots.len() as u64,
        free_slots: slots.iter().sum(),
        ..SchedulerView::default()
    }
}
