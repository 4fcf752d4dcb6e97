//! Scheduler status for operators: counts and ages of what the caller may see. It changes
//! nothing and iterates over no tasks; the counts are maintained in `open_task_limits.rs`.

use crate::core_state::{Core, CoreTurn};
use crate::ids::TenantScope;
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::SchedulerView;
use crate::io::stored_lookup::StoredRecords;
use crate::schedule::open_task_limits::OpenTaskLimits;

/// Reads the counts and ages that the caller may see.
#[derive(Debug)]
pub struct ReadSchedulerStatus {
    pub scope: TenantScope,
}

impl Command for ReadSchedulerStatus {
    type Reply = Box<SchedulerView>;

    fn run(
        self,
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let (counts, oldest) = core.open_limits.counts(&self.scope);
        let suspended = u64::from(core.scheduler.active_suspension().is_some());
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
            ..core.pauses_and_daemons(&self.scope)
        };
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

impl Core {
    /// The part of the status that concerns no task: pauses and daemons.
    fn pauses_and_daemons(&self, scope: &TenantScope) -> SchedulerView {
        let tenants = self.pauses.active_pauses();
        let visible_pauses = tenants.filter(|(tenant, _)| scope.covers(tenant));
        let changes = self.pauses.changes.iter();
        let visible = changes.filter(|change| match &change.scope {
            TenantScope::All => true,
            TenantScope::One(tenant) => scope.covers(tenant),
        });
        let online = self.roster.iter().filter(|daemon| {
            let in_scope = match scope {
                TenantScope::All => true,
                TenantScope::One(tenant) => daemon.scope.covers(tenant),
            };
            in_scope && self.roster.session_of(daemon.id).is_some()
        });
        let slots: Vec<u64> = online.map(|d| u64::from(d.free_slots())).collect();
        SchedulerView {
            paused: self.scheduler.paused.clone(),
            tenants: visible_pauses
                .map(|(tenant, pause)| (tenant.clone(), pause.clone()))
                .collect(),
            changes: visible.cloned().collect(),
            open_limit: self.config.max_open_tasks as u64,
            daemons_online: slots.len() as u64,
            free_slots: slots.iter().sum(),
            ..SchedulerView::default()
        }
    }

    /// For tests and simulations: whether the maintained counts match the tasks.
    pub fn counts_are_true(&self) -> bool {
        let mut recount = OpenTaskLimits::default();
        for live in self.tasks.values() {
            // Without an active suspension the `inherited` count is neither updated nor shown,
            // so the old value is compared with itself.
            let inherited = match self.scheduler.active_suspension() {
                Some(_) => self.scheduler.suspension_of(live.id()).is_some(),
                None => self.open_limits.is_inherited(live.id()),
            };
            recount.update_task(&live.spec, live.record(), inherited);
        }
        self.open_limits.equals_recount(&recount)
    }
}
