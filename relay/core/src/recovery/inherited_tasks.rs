//! Inherited tasks: from an import, or from data whose newest changes or fences are lost.
//!
//! A lease that was granted after the last saved change may still be in use, on machines that
//! this relay has no record of. Every task found at boot is therefore fenced for the longest
//! possible grant, or until an operator confirms that the old fleet is down. Tasks submitted
//! later are not suspended.

use std::sync::Arc;

use crate::attempt::fences::Fence;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerFact;
use crate::core_state::{Core, CoreTurn};
use crate::ids::TaskId;
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::RecordChange;
use crate::io::stored_lookup::StoredRecords;
use crate::record::SuspensionRelease;
use crate::schedule::conversation::ConversationKey;
use crate::schedule::placement;
use crate::task::live_task::LiveTask;
use crate::time::{ClockReading, MonotonicTime};

/// Ends the suspension after an import or an accepted loss: an operator confirms that no daemon
/// of the old fleet runs anything, which the relay cannot check. Inherited tasks may then be
/// leased; the reply counts the open tasks that were suspended.
#[derive(Debug)]
pub struct ReleaseInherited {
    pub by: RequestActor,
    pub reason: Arc<str>,
}

impl Command for ReleaseInherited {
    type Reply = u64;

    fn run(
        self,
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let released = SuspensionRelease {
            by: self.by.name,
            reason: self.reason,
            at: turn.now.wall,
        };
        let tasks = core.end_inherited_suspension(Some(released), turn);
        Ok(CommandReply::after_everything(tasks))
    }
}

impl Core {
    /// Starts, continues or ends the suspension at boot, before the tasks are restored. `tasks`
    /// are the open ones.
    pub(crate) fn suspend_inherited(
        &mut self,
        suspension_ms: u64,
        tasks: &[TaskId],
        turn: &mut CoreTurn<'_>,
    ) {
        let before = self.scheduler.clone();
        let uptime_ms = self.earlier_uptime_ms;
        if suspension_ms > 0 {
            let newest = TaskId(turn.id_source.new_id());
            let upto = tasks.iter().copied().fold(newest, TaskId::max);
            let since = turn.now.wall;
            self.scheduler
                .begin_suspension(upto, since, uptime_ms, suspension_ms);
        } else if self.is_suspension_over(uptime_ms) {
            self.scheduler.end_suspension(uptime_ms, None);
        }
        self.scheduler
            .prune_suspensions(tasks.iter().copied().min());
        if self.scheduler != before {
            turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
        }
    }

    fn is_suspension_over(&self, uptime_ms: u64) -> bool {
        let suspension = self.scheduler.active_suspension();
        suspension.is_some_and(|suspension| suspension.until_uptime_ms <= uptime_ms)
    }

    /// Fences an inherited task and its conversation while the suspension lasts.
    pub(crate) fn fence_inherited(&mut self, live: &LiveTask, now: ClockReading) {
        if mutant!(InheritedNotHeld) {
            return;
        }
        if let Some(suspension) = self.scheduler.suspension_of(live.id()) {
            let left_ms = suspension
                .until_uptime_ms
                .saturating_sub(self.uptime_ms(now));
            let conversation = ConversationKey::from_spec(&live.spec);
            let fence = Fence::inherited(live.id(), conversation, now.monotonic + left_ms);
            self.fences.insert_fence(fence);
        }
    }

    /// Replaces a queued attempt by one with a new id. The attempt may have been leased in the
    /// lost data, and its holder still uses the id. An id is leased only once.
    pub(crate) fn replace_queued_attempt(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        let (requested, timers) = (
            live.newest_attempt().requested_by_person,
            live.timers.clone(),
        );
        let context = self.attempt_context(live, turn.now, None);
        live.apply_event(MachineEvent::Withdraw, &context);
        self.queue_attempt(live, requested, turn);
        // The time already spent in the queue still counts.
        live.timers = timers;
    }

    pub(crate) fn end_due_suspension(&mut self, turn: &mut CoreTurn<'_>) {
        if self.is_suspension_over(self.uptime_ms(turn.now)) {
            self.end_inherited_suspension(None, turn);
        }
    }

    /// Ends the suspension and returns how many open tasks it covered; changes nothing without
    /// one.
    fn end_inherited_suspension(
        &mut self,
        released: Option<SuspensionRelease>,
        turn: &mut CoreTurn<'_>,
    ) -> u64 {
        let uptime_ms = self.uptime_ms(turn.now);
        if !self.scheduler.end_suspension(uptime_ms, released) {
            return 0;
        }
        self.store_scheduler(turn);
        let fences = self.fences.take_inherited();
        let open = |fence: &&Fence| self.tasks.contains_key(&fence.task);
        let tasks = fences.iter().filter(open).count() as u64;
        for fence in &fences {
            placement::release_fenced(&mut self.queue, fence);
            self.resume_queue_timer(fence.task, turn.now.monotonic);
        }
        tasks
    }

    /// Resumes the queue timer of a suspended task, unless something else stops it.
    fn resume_queue_timer(&mut self, task: TaskId, now: MonotonicTime) {
        if let Some(live) = self.tasks.get(&task)
            && !self.is_queue_timer_paused(live)
        {
            self.update_task_queue_timer(task, &TimerFact::Unpaused, now);
        }
    }
}
