//! Whether a task may be leased at this moment: pauses, fences, its conversation, and room on the
//! disk.

use crate::fleet::roster::DaemonRoster;
use crate::ids::TaskId;
use crate::io::command::AgentPrincipal;
use crate::io::rejection::Rejection;
use crate::record::AttemptState;
use crate::schedule::conversation::ConversationKey;
use crate::schedule::requirements::TaskRequirements;
use crate::schedule::{Schedule, placement};
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::task::spec::TaskSpec;
use crate::time::MonotonicTime;

impl Schedule {
    pub(crate) fn could_place(&self, roster: &DaemonRoster, spec: &TaskSpec) -> bool {
        self.effective_pause(&spec.tenant).is_none()
            && !self.dispatch_suspended
            && placement::could_any_take(&TaskRequirements::from_spec(spec), roster)
    }

    /// A new task has no attempt that could run, but its conversation may have one.
    pub(crate) fn check_start(
        &self,
        task: TaskId,
        spec: &TaskSpec,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        let key = ConversationKey::from_spec(spec);
        let waits = key.as_ref().is_some_and(|key| self.queue.has_turns(key));
        let fenced = self.fences.check_lease(task, key.as_ref(), now).is_err();
        let paused = self.effective_pause(&spec.tenant).is_some();
        if self.is_leasing_suspended() || paused || waits || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    pub(crate) fn first_claimable(
        &self,
        tasks: &LiveTasks,
        agent: &AgentPrincipal,
        now: MonotonicTime,
    ) -> Option<TaskId> {
        if self.is_leasing_suspended() {
            return None;
        }
        let mut waiting = self.queue.claimable(&agent.tenant, &agent.scope);
        waiting.find(|task| {
            let live = tasks.get(*task);
            live.is_some_and(|live| self.check_claim(live, now).is_ok())
        })
    }

    pub(crate) fn check_claim(&self, live: &LiveTask, now: MonotonicTime) -> Result<(), Rejection> {
        if live.record().cancel.is_some() {
            return Err(Rejection::BeingCanceled);
        }
        if live.is_newest_leased() {
            return Err(Rejection::AlreadyTaken);
        }
        let waits = live.newest_attempt().state == AttemptState::Queued
            && live.record().attention.is_none();
        if !waits {
            return Err(Rejection::NotClaimable);
        }
        self.check_leasable(live, now)
    }

    /// Whether it may be leased at this moment, by any caller: the same check that placement makes
    /// before an offer.
    pub(crate) fn check_leasable(
        &self,
        live: &LiveTask,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        let key = ConversationKey::from_spec(&live.spec);
        let stands = self.is_leasing_suspended() || self.is_paused(live);
        let behind = self.queue.is_behind_conversation(live.id());
        let fence = self.fences.check_lease(live.id(), key.as_ref(), now);
        let fenced = fence.is_err() && !mutant!(FencesNotAsked);
        if stands || behind || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    /// Nothing is leased for now.
    pub(crate) fn is_leasing_suspended(&self) -> bool {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        paused || self.dispatch_suspended
    }
}
