//! Time as the relay must keep it: agents that fall silent, attempts that run too long, and leases over its own stalls.

use baton_core::effects::Write;
use baton_core::id::AttemptId;
use baton_core::input::Input;
use baton_core::record::{AttemptRecord, FailureCode, State, TaskRecord};

use crate::world::World;

/// What the relay adds to a deadline of the profile, and what its loop may be late by.
const SLACK_MS: u64 = 2_000;
const LATE_MS: u64 = 1_000;

impl World {
    /// Notes when each attempt was last heard, renewed and confirmed.
    pub(crate) fn note_signs(&mut self, input: &Input) {
        let stall = self.relay.stall;
        match input {
            Input::Frame(frame) => {
                self.heard_at.insert(frame.re.attempt, self.now);
            }
            Input::Activity(activity) => {
                self.heard_at.insert(activity.re.attempt, self.now);
            }
            Input::Heartbeat { heartbeat, .. } => {
                for (attempt, _) in &heartbeat.renewals {
                    self.renewed_in.insert(*attempt, stall);
                }
            }
            _ => {}
        }
    }

    /// A lease begins to be counted, and with it the whole attempt.
    pub(crate) fn note_confirmed(&mut self, write: &Write) {
        let Write::PutLive(record) = write else {
            return;
        };
        let Some(newest) = record.newest() else {
            return;
        };
        let was = self.relay.store.view.attempt(record.task, newest.id);
        let waits = |was: &AttemptRecord| matches!(was.state, State::Offered | State::Queued);
        let begins = was.is_none_or(waits);
        if begins && newest.state == State::Accepted {
            let uptime = self.relay.uptime_ms(self.now);
            self.confirmed_at.insert(newest.id, uptime);
            self.renewed_in.insert(newest.id, self.relay.stall);
        }
    }

    /// Asked at heartbeats: a hung agent under a healthy daemon must time out all the same, and nothing runs for ever.
    pub(crate) fn judge_deadlines(&self, beats: &[AttemptId]) {
        for attempt in beats {
            let records = self.relay.store.view.live.values();
            let mut found = records.filter_map(|task| Some((task, task.newest()?)));
            let Some((task, newest)) = found.find(|(_, newest)| newest.id == *attempt) else {
                continue;
            };
            let spec = &self.relay.store.view.specs[&task.task];
            let idle = spec.effective_profile.stream_idle_ms;
            self.judge_silence(newest, idle);
            self.judge_total(newest, spec.total_ms);
        }
    }

    fn judge_silence(&self, attempt: &AttemptRecord, idle_ms: Option<u64>) {
        let (Some(idle_ms), State::Streaming) = (idle_ms, &attempt.state) else {
            return;
        };
        let heard = self.heard_at.get(&attempt.id).copied().unwrap_or(self.now);
        let since = heard.max(self.relay.awake_since());
        assert!(
            self.now - since <= idle_ms + SLACK_MS + LATE_MS,
            "stream_idle: {} is silent since {heard} and still streams",
            attempt.id
        );
    }

    /// An agent sends no heartbeats, but it renews.
    pub(crate) fn judge_agent_total(&self, task: &TaskRecord, attempt: AttemptId) {
        let spec = self.relay.store.view.specs.get(&task.task);
        if let (Some(spec), Some(attempt)) = (spec, task.attempt(attempt)) {
            self.judge_total(attempt, spec.total_ms);
        }
    }

    fn judge_total(&self, attempt: &AttemptRecord, total_ms: Option<u64>) {
        let runs = attempt.state.is_leased() && !matches!(attempt.state, State::CleaningUp { .. });
        let (Some(total_ms), Some(confirmed), true) =
            (total_ms, self.confirmed_at.get(&attempt.id), runs)
        else {
            return;
        };
        let age = self.relay.uptime_ms(self.now).saturating_sub(*confirmed);
        let awake = self.now - self.relay.awake_since() > LATE_MS;
        assert!(
            !awake || age <= total_ms + LATE_MS,
            "L3: {} runs for {age} of {total_ms} ms",
            attempt.id
        );
    }

    /// L4: a relay that was away credits the daemons that were not, once for each renewal.
    pub(crate) fn judge_credit(&self, attempt: &AttemptRecord) {
        let expired = attempt
            .state
            .end()
            .is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired));
        let first = self.renewed_in.get(&attempt.id) == Some(&(self.relay.stall.wrapping_sub(1)));
        let Some(holder) = attempt.daemon().filter(|_| expired && first) else {
            return;
        };
        let connected = self.relay.connected_at_back.contains(&holder.daemon);
        assert!(
            !(self.relay.is_back && connected),
            "L4: the relay was away and gave up {}",
            attempt.id
        );
    }
}
