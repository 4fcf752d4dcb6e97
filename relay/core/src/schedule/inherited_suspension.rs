//! The suspension of inherited tasks, as the schedule keeps it: when it begins and ends, and the
//! fences that stand for it.

use crate::attempt::fences::Fence;
use crate::ids::TaskId;
use crate::io::effects::RecordChange;
use crate::record::SuspensionRelease;
use crate::schedule::conversation::ConversationKey;
use crate::schedule::{Schedule, placement};
use crate::task::live_task::LiveTask;
use crate::turn::CoreTurn;

impl Schedule {
    /// At boot, before the tasks are restored. `tasks` are the open ones.
    pub(crate) fn suspend_inherited(
        &mut self,
        hold_ms: u64,
        tasks: &[TaskId],
        turn: &mut CoreTurn<'_>,
    ) {
        let before = self.scheduler.clone();
        let uptime_ms = turn.uptime_ms;
        if hold_ms > 0 {
            let minted = TaskId(turn.id_source.new_id());
            let upto = tasks.iter().copied().fold(minted, TaskId::max);
            let since = turn.now.wall;
            self.scheduler
                .begin_suspension(upto, since, uptime_ms, hold_ms);
        } else if self.is_suspension_over(uptime_ms) {
            self.scheduler.end_suspension(uptime_ms, None);
        }
        self.scheduler
            .prune_suspensions(tasks.iter().copied().min());
        if self.scheduler != before {
            turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
        }
    }

    pub(crate) fn is_suspension_over(&self, uptime_ms: u64) -> bool {
        let hold = self.scheduler.active_suspension();
        hold.is_some_and(|hold| hold.until_uptime_ms <= uptime_ms)
    }

    /// Nothing of an inherited task or its conversation is leased while the hold stands.
    pub(crate) fn fence_inherited(&mut self, live: &LiveTask, turn: &CoreTurn<'_>) {
        if mutant!(InheritedNotHeld) {
            return;
        }
        if let Some(hold) = self.scheduler.suspension_of(live.id()) {
            let left_ms = hold.until_uptime_ms.saturating_sub(turn.uptime_ms);
            let conversation = ConversationKey::from_spec(&live.spec);
            let fence = Fence::inherited(live.id(), conversation, turn.now.monotonic + left_ms);
            self.fences.insert_fence(fence);
        }
    }

    /// Whether the task is inherited and may not be leased yet.
    pub(crate) fn is_suspended(&self, task: TaskId) -> bool {
        self.scheduler.suspension_of(task).is_some()
    }

    pub(crate) fn has_active_suspension(&self) -> bool {
        self.scheduler.active_suspension().is_some()
    }

    /// Ends the suspension and returns the fences that stood for it; none where there was no
    /// suspension.
    pub(crate) fn end_suspension(
        &mut self,
        released: Option<SuspensionRelease>,
        turn: &mut CoreTurn<'_>,
    ) -> Vec<Fence> {
        if !self.scheduler.end_suspension(turn.uptime_ms, released) {
            return Vec::new();
        }
        self.store_scheduler(turn);
        let fences = self.fences.take_inherited();
        for fence in &fences {
            placement::release_fenced(&mut self.queue, fence);
        }
        fences
    }
}
