//! Tasks that the relay inherited: from an import, or from data whose newest changes or fences are lost.
//!
//! What was granted after the last change that it knows may still run, on machines that it may never have heard of. So
//! whatever it found at boot is fenced for the longest grant there is, or until an operator says that the old fleet is
//! down. What is submitted afterwards is not held.

use std::sync::Arc;

use crate::attempt::Event;
use crate::conversation::ConversationKey;
use crate::core::{Core, Turn};
use crate::effects::{After, Reply, Write};
use crate::fences::Fence;
use crate::id::{RequestId, TaskId};
use crate::input::Actor;
use crate::live::Live;
use crate::placement;
use crate::record::Release;
use crate::time::{Moment, Now};
use crate::timers::Fact;

impl Core {
    /// At boot, before the tasks are restored. `tasks` are the open ones.
    pub(crate) fn hold_inherited(&mut self, hold_ms: u64, tasks: &[TaskId], turn: &mut Turn<'_>) {
        let before = self.scheduler.clone();
        let uptime_ms = self.earlier_ms;
        if hold_ms > 0 {
            let minted = TaskId(turn.mint.id());
            let upto = tasks.iter().copied().fold(minted, TaskId::max);
            let since = turn.now.wall;
            self.scheduler.begin_hold(upto, since, uptime_ms, hold_ms);
        } else if self.hold_is_over(uptime_ms) {
            self.scheduler.end_hold(uptime_ms, None);
        }
        self.scheduler.forget_holds(tasks.iter().copied().min());
        if self.scheduler != before {
            turn.write(Write::PutScheduler(self.scheduler.clone()));
        }
    }

    fn hold_is_over(&self, uptime_ms: u64) -> bool {
        let hold = self.scheduler.hold();
        hold.is_some_and(|hold| hold.until_ms <= uptime_ms)
    }

    /// Nothing of an inherited task or its conversation is leased while the hold stands.
    pub(crate) fn fence_inherited(&mut self, live: &Live, now: Now) {
        if mutant!(InheritedNotHeld) {
            return;
        }
        if let Some(hold) = self.scheduler.hold_of(live.id()) {
            let left_ms = hold.until_ms.saturating_sub(self.uptime_ms(now));
            let conversation = ConversationKey::of(&live.spec);
            let fence = Fence::inherited(live.id(), conversation, now.at + left_ms);
            self.fences.raise(fence);
        }
    }

    /// An attempt that waits in this data may have been leased in those that are lost, and its holder still knows it. An
    /// id is leased once: the task goes on under another.
    pub(crate) fn replace_queued(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        let (asked, waited) = (live.newest().asked, live.timers.clone());
        let scene = self.scene(live, turn.now, None);
        live.apply(Event::Withdraw, &scene);
        self.add_attempt(live, asked, turn);
        // It has waited as long as it has.
        live.timers = waited;
    }

    pub(crate) fn end_hold_in_time(&mut self, turn: &mut Turn<'_>) {
        if self.hold_is_over(self.uptime_ms(turn.now)) {
            self.let_inherited_go(None, turn);
        }
    }

    /// An operator's word that no daemon of before runs anything: they know, and the relay cannot.
    pub(crate) fn release_inherited(
        &mut self,
        request: RequestId,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        let released = Release {
            by: by.name,
            reason,
            at: turn.now.wall,
        };
        let tasks = self.let_inherited_go(Some(released), turn);
        turn.reply(request, After::Everything, Reply::Released { tasks });
    }

    /// Ends the hold and returns how many tasks it held; without one it changes nothing.
    fn let_inherited_go(&mut self, released: Option<Release>, turn: &mut Turn<'_>) -> u64 {
        let uptime_ms = self.uptime_ms(turn.now);
        if !self.scheduler.end_hold(uptime_ms, released) {
            return 0;
        }
        self.store_scheduler(turn);
        let fences = self.fences.take_inherited();
        let open = |fence: &&Fence| self.tasks.contains_key(&fence.task);
        let tasks = fences.iter().filter(open).count() as u64;
        for fence in &fences {
            placement::fence_fell(&mut self.queue, fence);
            self.queue_goes_on(fence.task, turn.now.at);
        }
        tasks
    }

    /// The queue timer of a task that was held runs again, unless something else stops it.
    fn queue_goes_on(&mut self, task: TaskId, now: Moment) {
        if let Some(live) = self.tasks.get(&task)
            && !self.queue_stands_still(live)
        {
            self.tell_task(task, &Fact::Unpaused, now);
        }
    }
}
