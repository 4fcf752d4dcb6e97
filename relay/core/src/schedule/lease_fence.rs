//! The schedule's half of the successor rule: which fence stands for an attempt, and what may be
//! placed when it falls.

use std::sync::Arc;

use crate::attempt::fences::{Fence, FenceGuard};
use crate::ids::{AttemptId, DaemonId, TaskId};
use crate::io::effects::RecordChange;
use crate::record::{FenceRecord, LeaseHolder, PossibleRunner};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::{Schedule, placement};
use crate::task::live_task::LiveTask;
use crate::time::MonotonicTime;
use crate::turn::CoreTurn;

impl Schedule {
    /// From the offer on nothing else of this task or conversation is leased.
    pub(crate) fn raise_lease_fence(&mut self, live: &LiveTask, holder: &LeaseHolder) {
        let conversation =
            ConversationKey::from_spec(&live.spec).filter(|_| !mutant!(ConversationUnfenced));
        if let Some(key) = &conversation {
            self.queue.mark_conversation_busy(key);
            if let LeaseHolder::Daemon(holder) = holder {
                self.affinity.remember(key, holder.daemon);
            }
        }
        self.fences.insert_fence(Fence {
            attempt: live.newest_attempt().id,
            task: live.id(),
            conversation,
            runner: Some(PossibleRunner::from_holder(holder)),
            guard: FenceGuard::Leased,
        });
    }

    /// Ended without proof of death: its task and conversation wait until its last limit plus
    /// grace.
    pub(crate) fn raise_fence(
        &mut self,
        live: &LiveTask,
        until: MonotonicTime,
        turn: &mut CoreTurn<'_>,
    ) {
        let attempt = live.newest_attempt();
        let (Some(holder), Some(lease)) = (&attempt.holder, &attempt.lease) else {
            return;
        };
        turn.push_change(RecordChange::PutFence(FenceRecord {
            attempt: attempt.id,
            tenant: live.spec.tenant.clone(),
            task: live.id(),
            conversation: live.spec.conversation_id.as_deref().map(Arc::from),
            runner: PossibleRunner::from_holder(holder),
            full_ms: lease
                .granted_ms
                .saturating_add(turn.config.grace_ms_for(lease.ttl_ms)),
        }));
        if let Some(fence) = self.fences.fence_until(attempt.id, until) {
            // What waited for the lease now waits for the fence.
            placement::release_fenced(&mut self.queue, fence);
        }
    }

    /// Proof of death, or the end of its time: what waited for it may be placed.
    pub(crate) fn lift_fence(&mut self, attempt: AttemptId, turn: &mut CoreTurn<'_>) {
        if let Some(fence) = self.fences.remove_fence(attempt) {
            self.remove_fallen_fence(&fence, turn);
        }
    }

    pub(crate) fn remove_fallen_fence(&mut self, fence: &Fence, turn: &mut CoreTurn<'_>) {
        if matches!(fence.guard, FenceGuard::Until(_)) {
            turn.push_change(RecordChange::DropFence(fence.attempt));
        }
        placement::release_fenced(&mut self.queue, fence);
    }

    pub(crate) fn remove_expired_fences(&mut self, turn: &mut CoreTurn<'_>) {
        while let Some(fence) = self.fences.take_expired(turn.now.monotonic) {
            self.remove_fallen_fence(&fence, turn);
        }
    }

    /// The machine runs under this boot id: returns what fell, leased attempts too.
    pub(crate) fn remove_rebooted_fences(&mut self, daemon: DaemonId, boot_id: &str) -> Vec<Fence> {
        self.fences.remove_rebooted(daemon, boot_id)
    }

    /// Two machines share an identity: neither boot proves anything about what stands now.
    pub(crate) fn replace_boot_id(&mut self, daemon: DaemonId, boot_id: &Arc<str>) {
        self.fences.replace_boot_id(daemon, boot_id);
    }

    pub(crate) fn put_back_fence(&mut self, fence: Fence) {
        self.fences.insert_fence(fence);
    }

    /// What waited for this fence is looked at again.
    pub(crate) fn release_fenced(&mut self, fence: &Fence) {
        placement::release_fenced(&mut self.queue, fence);
    }

    pub(crate) fn restore_fence(&mut self, record: &FenceRecord, now: MonotonicTime) {
        self.fences.restore(record, now);
    }

    /// Where and under which boot the attempt may run.
    pub(crate) fn possible_runner(&self, attempt: AttemptId) -> Option<&PossibleRunner> {
        self.fences.get(attempt)?.runner.as_ref()
    }

    /// Whether any attempt of this task runs or may run.
    pub(crate) fn has_fence_of_task(&self, task: TaskId) -> bool {
        self.fences.has_task(task)
    }

    /// Whether anything runs or may run on this daemon's machine.
    pub(crate) fn has_fence_of_daemon(&self, daemon: DaemonId) -> bool {
        self.fences.has_daemon(daemon)
    }

    /// Whether nothing of this task can run any more.
    pub(crate) fn is_unfenced(&self, task: TaskId, now: MonotonicTime) -> bool {
        self.fences.check_lease(task, None, now).is_ok()
    }
}
