//! Why a task is not being run at this moment, for people.

use crate::attempt::fences::{Fence, FenceGuard};
use crate::ids::TaskId;
use crate::io::effects::{PauseLevel, WaitReason};
use crate::record::{AttemptState, PauseMark};
use crate::schedule::Schedule;
use crate::schedule::conversation::ConversationKey;
use crate::task::live_task::LiveTask;
use crate::time::MonotonicTime;

impl Schedule {
    /// The turn whose end it waits for.
    pub(crate) fn blocking_turn(&self, live: &LiveTask, now: MonotonicTime) -> Option<TaskId> {
        let key = ConversationKey::from_spec(&live.spec);
        let waits = live.newest_attempt().state == AttemptState::Queued;
        let fence = self.fences.check_lease(live.id(), key.as_ref(), now).err();
        let other = fence.map(|fence| fence.task);
        other.filter(|task| waits && *task != live.id())
    }

    /// The narrowest pause that it waits for.
    pub(crate) fn blocking_pause(&self, live: &LiveTask) -> Option<(PauseLevel, PauseMark)> {
        let tenant = self.pauses.pause_of_tenant(&live.spec.tenant);
        let own = live
            .record()
            .paused
            .as_ref()
            .map(|own| (PauseLevel::Task, own));
        let wider = tenant.map(|pause| (PauseLevel::Tenant, pause));
        let all = self.scheduler.paused.as_ref();
        let found = own
            .or(wider)
            .or(all.map(|all| (PauseLevel::Scheduler, all)));
        found.map(|(paused, pause)| (paused, pause.clone()))
    }

    /// What it waits for, and until when at most where time alone ends that.
    pub(crate) fn wait_reason(
        &self,
        live: &LiveTask,
        now: MonotonicTime,
    ) -> Option<(WaitReason, Option<MonotonicTime>)> {
        if live.record().attention.is_some()
            || live.newest_attempt().state == AttemptState::WaitingInput
        {
            return Some((WaitReason::Person, None));
        }
        if let Some(retry_at) = live.retry_at {
            return Some((WaitReason::Backoff, Some(retry_at)));
        }
        if live.newest_attempt().state != AttemptState::Queued {
            return None;
        }
        if self.is_paused(live) {
            return Some((WaitReason::Pause, None));
        }
        if self.dispatch_suspended {
            return Some((WaitReason::DiskSpace, None));
        }
        let key = ConversationKey::from_spec(&live.spec);
        match self.fences.check_lease(live.id(), key.as_ref(), now) {
            Err(fence) => Some(fence_wait(fence)),
            Ok(()) if live.spec.agent_held => Some((WaitReason::Agent, None)),
            Ok(()) => Some((WaitReason::Daemon, None)),
        }
    }
}

fn fence_wait(fence: &Fence) -> (WaitReason, Option<MonotonicTime>) {
    match fence.guard {
        FenceGuard::Leased => (WaitReason::Conversation, None),
        FenceGuard::Until(at) if fence.is_inherited() => (WaitReason::Inheritance, Some(at)),
        FenceGuard::Until(at) => (WaitReason::Fence, Some(at)),
    }
}
