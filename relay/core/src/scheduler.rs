//! How much waits and runs, for operators: counts and ages of what the caller may see. Changes nothing.

use crate::core::{Core, Turn};
use crate::effects::{After, Reply, SchedulerView};
use crate::id::{RequestId, TenantScope};
use crate::live::Live;
use crate::record::{State, TaskState};
use crate::time::Wall;

impl Core {
    pub(crate) fn scheduler_status(
        &self,
        request: RequestId,
        scope: &TenantScope,
        turn: &mut Turn<'_>,
    ) {
        let mut view = self.standing(scope);
        for live in self.tasks.values() {
            if scope.covers(&live.spec.tenant) {
                self.count_task(&mut view, live, turn.now.wall);
            }
        }
        turn.reply(request, After::Everything, Reply::Scheduler(Box::new(view)));
    }

    /// What is no task's: pauses and daemons.
    fn standing(&self, scope: &TenantScope) -> SchedulerView {
        let tenants = self.pauses.standing();
        let theirs = tenants.filter(|(tenant, _)| scope.covers(tenant));
        let changes = self.pauses.changes.iter();
        let visible = changes.filter(|change| match &change.scope {
            TenantScope::All => true,
            TenantScope::One(tenant) => scope.covers(tenant),
        });
        let online = self.roster.iter().filter(|daemon| {
            let works_for_them = match scope {
                TenantScope::All => true,
                TenantScope::One(tenant) => daemon.scope.covers(tenant),
            };
            works_for_them && self.roster.session_of(daemon.id).is_some()
        });
        let slots: Vec<u64> = online.map(|d| u64::from(d.free_slots())).collect();
        SchedulerView {
            paused: self.scheduler.paused.clone(),
            tenants: theirs
                .map(|(tenant, pause)| (tenant.clone(), pause.clone()))
                .collect(),
            changes: visible.cloned().collect(),
            open_limit: self.config.max_open as u64,
            daemons_online: slots.len() as u64,
            free_slots: slots.iter().sum(),
            ..SchedulerView::default()
        }
    }

    fn count_task(&self, view: &mut SchedulerView, live: &Live, now: Wall) {
        let (record, newest) = (live.record(), live.newest());
        view.open += 1;
        match record.state {
            TaskState::Pending => view.pending += 1,
            TaskState::Queued => view.queued += 1,
            TaskState::Running => view.running += 1,
            TaskState::NeedsAttention => view.needs_attention += 1,
            // The core holds open tasks only.
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Canceled
            | TaskState::TimedOut
            | TaskState::Lost => {}
        }
        view.paused_tasks += u64::from(record.paused.is_some());
        view.inherited += u64::from(self.scheduler.hold_of(live.id()).is_some());
        let asked = newest.inputs.iter().filter(|i| i.state.is_pending());
        view.pending_inputs += asked.count() as u64;
        if let (State::Queued, Some(since)) = (&newest.state, newest.times.queued) {
            let age_ms = now.0.saturating_sub(since.0);
            view.oldest_queued_ms = view.oldest_queued_ms.max(age_ms);
        }
    }
}
