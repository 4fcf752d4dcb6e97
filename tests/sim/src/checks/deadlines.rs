//! Deadlines that the relay must enforce: silent agents, attempts that run too long, and leases
//! across its own stalls.

use baton_core::ids::AttemptId;
use baton_core::io::command::CoreInput;
use baton_core::io::effects::RecordChange;
use baton_core::io::session_input::SessionInput;
use baton_core::record::{AttemptRecord, AttemptState, FailureCode, TaskRecord};

use crate::simulation::Simulation;

/// The relay's addition to a deadline of the profile, and the longest delay of its loop.
const DEADLINE_SLACK_MS: u64 = 2_000;
const MAX_LOOP_DELAY_MS: u64 = 1_000;

impl Simulation {
    /// Records when each attempt was last active, renewed and confirmed.
    pub(crate) fn record_activity(&mut self, input: &CoreInput) {
        let stall = self.relay.stall_count;
        let CoreInput::Session(input) = input else {
            return;
        };
        match input {
            SessionInput::Frame(frame) => {
                self.last_activity_at
                    .insert(frame.frame_ref.attempt, self.now);
            }
            SessionInput::Activity(activity) => {
                self.last_activity_at
                    .insert(activity.frame_ref.attempt, self.now);
            }
            SessionInput::Heartbeat { heartbeat, .. } => {
                for (attempt, _) in &heartbeat.renewals {
                    self.renewed_in_stall.insert(*attempt, stall);
                }
            }
            _ => {}
        }
    }

    /// Records the confirmation, from which the lease and the whole attempt are counted.
    pub(crate) fn record_confirmation(&mut self, write: &RecordChange) {
        let RecordChange::PutLive(record) = write else {
            return;
        };
        let Some(newest) = record.newest_attempt() else {
            return;
        };
        let was = self.relay.store.view.attempt(record.task, newest.id);
        let waits =
            |was: &AttemptRecord| matches!(was.state, AttemptState::Offered | AttemptState::Queued);
        let begins = was.is_none_or(waits);
        if begins && newest.state == AttemptState::Accepted {
            let uptime = self.relay.uptime_ms(self.now);
            self.confirmed_at.insert(newest.id, uptime);
            self.renewed_in_stall
                .insert(newest.id, self.relay.stall_count);
        }
    }

    /// Checked at heartbeats: a hung agent under a healthy daemon must time out, and nothing
    /// runs forever.
    pub(crate) fn check_deadlines(&self, beats: &[AttemptId]) {
        for attempt in beats {
            let records = self.relay.store.view.live.values();
            let mut found = records.filter_map(|task| Some((task, task.newest_attempt()?)));
            let Some((task, newest)) = found.find(|(_, newest)| newest.id == *attempt) else {
                continue;
            };
            let spec = &self.relay.store.view.specs[&task.task];
            let idle = spec.effective_profile.stream_idle_ms;
            self.check_stream_idle(newest, idle);
            self.check_total_time(newest, spec.total_ms);
        }
    }

    fn check_stream_idle(&self, attempt: &AttemptRecord, idle_ms: Option<u64>) {
        let (Some(idle_ms), AttemptState::Streaming) = (idle_ms, &attempt.state) else {
            return;
        };
        let heard = self
            .last_activity_at
            .get(&attempt.id)
            .copied()
            .unwrap_or(self.now);
        let since = heard.max(self.relay.awake_since());
        assert!(
            self.now - since <= idle_ms + DEADLINE_SLACK_MS + MAX_LOOP_DELAY_MS,
            "stream_idle: {} is silent since {heard} and still streams",
            attempt.id
        );
    }

    /// An agent sends no heartbeats, but it renews.
    pub(crate) fn check_agent_total_time(&self, task: &TaskRecord, attempt: AttemptId) {
        let spec = self.relay.store.view.specs.get(&task.task);
        if let (Some(spec), Some(attempt)) = (spec, task.attempt(attempt)) {
            self.check_total_time(attempt, spec.total_ms);
        }
    }

    fn check_total_time(&self, attempt: &AttemptRecord, total_ms: Option<u64>) {
        let runs =
            attempt.state.is_leased() && !matches!(attempt.state, AttemptState::CleaningUp { .. });
        let (Some(total_ms), Some(confirmed), true) =
            (total_ms, self.confirmed_at.get(&attempt.id), runs)
        else {
            return;
        };
        let age = self.relay.uptime_ms(self.now).saturating_sub(*confirmed);
        let awake = self.now - self.relay.awake_since() > MAX_LOOP_DELAY_MS;
        assert!(
            !awake || age <= total_ms + MAX_LOOP_DELAY_MS,
            "L3: {} runs for {age} of {total_ms} ms",
            attempt.id
        );
    }

    /// L4: a relay that stalled credits the stall to working daemons, once for each renewal.
    pub(crate) fn check_stall_credit(&self, attempt: &AttemptRecord) {
        let expired = attempt
            .state
            .end()
            .is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired));
        let first = self.renewed_in_stall.get(&attempt.id)
            == Some(&(self.relay.stall_count.wrapping_sub(1)));
        let Some(holder) = attempt.daemon_holder().filter(|_| expired && first) else {
            return;
        };
        let connected = self.relay.connected_after_stall.contains(&holder.daemon);
        assert!(
            !(self.relay.is_first_turn_after_stall && connected),
            "L4: the relay was away and gave up {}",
            attempt.id
        );
    }
}
