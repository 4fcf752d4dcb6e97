//! Attempts that wait: how one is made, put in line and taken out again.

use crate::attempt::timers::{TimerFact, TimerSet};
use crate::ids::{AttemptId, TaskId};
use crate::record::{AttemptRecord, EndState, TimelineEventKind};
use crate::schedule::Schedule;
use crate::schedule::conversation::ConversationKey;
use crate::schedule::queue::{EligibleHolders, QueuedTask};
use crate::schedule::requirements::TaskRequirements;
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::task::submit::span_id;
use crate::turn::CoreTurn;

impl Schedule {
    pub(crate) fn queue_attempt(
        &mut self,
        live: &mut LiveTask,
        asked: bool,
        turn: &mut CoreTurn<'_>,
    ) {
        let id = AttemptId(turn.id_source.new_id());
        self.queue_attempt_as(id, live, asked, turn);
    }

    /// Attempt N+1, queued. The one place that makes attempts; the id is new, which is what fences
    /// the old one.
    pub(crate) fn queue_attempt_as(
        &mut self,
        id: AttemptId,
        live: &mut LiveTask,
        asked: bool,
        turn: &mut CoreTurn<'_>,
    ) {
        let previous = live
            .record()
            .newest_attempt()
            .map(|newest| (newest.id, newest.number));
        let reused = previous.filter(|_| mutant!(AttemptIdReused));
        let id = reused.map_or(id, |(earlier, _)| earlier);
        let number = previous.map_or(1, |(_, number)| number + 1);
        let mut attempt =
            AttemptRecord::queued(id, number, span_id(turn.id_source.new_id()), turn.now.wall);
        attempt.previous = previous.map(|(id, _)| id);
        attempt.requested_by_person = asked;
        attempt.fresh_conversation = live
            .record()
            .newest_attempt()
            .is_some_and(needs_fresh_conversation);
        let record = live.record_mut();
        if let Some(last) = record.attempts.last_mut() {
            last.successor = Some(id);
            // A person's instructions apply until other ones replace them.
            attempt.resume = last.resume.take();
            size_limits::trim_earlier_attempt(last);
        }
        record.attempts.push(attempt);
        record.retry = None;
        record.attention = None;
        live.retry_at = None;
        live.ackable_seq = 0;
        live.timers = TimerSet::default();
        let limits = LiveTask::timer_limits(&live.spec, turn.config);
        live.timers
            .on_fact(&TimerFact::Queued, turn.now.monotonic, &limits);
        if self.is_queue_timer_paused(live) {
            live.timers
                .on_fact(&TimerFact::Paused, turn.now.monotonic, &limits);
        }
        live.add_event(TimelineEventKind::Queued, None);
        self.enqueue_task(live);
    }

    /// Puts the newest, queued attempt in line, unless its task or tenant is paused.
    pub(crate) fn enqueue_task(&mut self, live: &LiveTask) {
        if live.record().paused.is_some() && !mutant!(PauseIgnored) {
            return;
        }
        if self.pauses.pause_of_tenant(&live.spec.tenant).is_some() && !mutant!(TenantPauseIgnored)
        {
            return;
        }
        let earlier = live.record().attempts.iter().rev().skip(1);
        let prefer = earlier
            .filter_map(|attempt| attempt.daemon_holder())
            .map(|holder| holder.daemon)
            .next();
        self.queue.push(QueuedTask {
            task: live.id(),
            requirements: TaskRequirements::from_spec(&live.spec),
            priority: live.spec.priority,
            conversation: ConversationKey::from_spec(&live.spec),
            preferred_daemon: prefer,
            eligible_holders: EligibleHolders::from_spec(&live.spec),
        });
    }

    pub(crate) fn dequeue(&mut self, task: TaskId) {
        self.queue.remove(task);
    }
}

/// What was given back without a try is still to be begun anew.
fn needs_fresh_conversation(last: &AttemptRecord) -> bool {
    let end = last.state.end();
    last.fresh_conversation && end.is_some_and(|end| end.state == EndState::Released)
}
