//! Lease renewal by heartbeats, lease extensions for planned restarts, and stall credit. Only a
//! renewal keeps a lease alive; its time counts from the arrival at the relay.

use std::collections::BTreeSet;

use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::core_state::{Core, CoreTurn};
use crate::fleet::frame_check::matches_token;
use crate::ids::{AttemptId, DaemonId, SessionId};
use crate::io::effects::{
    CloseReason, CommitDependency, CoreMetric, DaemonMessage, Delivery, LeaseRenewal,
};
use crate::io::rejection::Rejection;
use crate::io::session_input::{HeartbeatMessage, LeaseToken};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::time::MonotonicTime;

/// Heartbeats that may omit a confirmed attempt before it counts as missing on the daemon.
const MAX_MISSED_HEARTBEATS: u8 = 2;

impl Core {
    pub(crate) fn handle_heartbeat(
        &mut self,
        session: SessionId,
        heartbeat: HeartbeatMessage,
        turn: &mut CoreTurn<'_>,
    ) {
        let heartbeat_ms = self.config.heartbeat_ms;
        let Some(daemon) = self.roster.heartbeat(
            session,
            heartbeat.draining,
            heartbeat_ms,
            turn.now.monotonic,
        ) else {
            turn.effects
                .metrics
                .push(CoreMetric::FrameRejected(Rejection::UnknownSession));
            return;
        };
        self.roster
            .note_fitness(daemon, heartbeat.unfit, turn.now.monotonic);
        self.roster.note_load(daemon, heartbeat.load);
        if !self
            .roster
            .is_receiving(session, heartbeat.received_ack_seq, turn.now.monotonic)
        {
            return self.close_session(session, CloseReason::NotReceiving, turn);
        }
        let named: BTreeSet<AttemptId> = heartbeat
            .renewals
            .iter()
            .map(|(attempt, _)| *attempt)
            .collect();
        let results = self.renew_leases(daemon, heartbeat.renewals, None, turn);
        self.count_missed_attempts(daemon, &named, turn);
        let heartbeat_ms = self.heartbeat_interval_ms(daemon);
        let message = DaemonMessage::HeartbeatAck {
            seq: heartbeat.seq,
            heartbeat_ms,
            results,
        };
        // A revocation may be sent only when the end of the attempt is durable.
        let revokes = matches!(&message, DaemonMessage::HeartbeatAck { results, .. } if results.iter().any(is_revoked));
        // A revoking answer waits for the commit, so its delivery time is unknown and the
        // daemon's confirmation of it cannot be expected within two heartbeats.
        let seq = (!revokes).then_some(heartbeat.seq);
        self.roster
            .note_answer_sent(session, seq, heartbeat_ms, turn.now.monotonic);
        turn.send_to_session(
            if revokes {
                CommitDependency::Everything
            } else {
                CommitDependency::Nothing
            },
            session,
            message,
        );
    }

    /// Closes a session that does not work. The daemon gets no new work on it; its attempts
    /// continue under their leases.
    pub(crate) fn close_session(
        &mut self,
        session: SessionId,
        reason: CloseReason,
        turn: &mut CoreTurn<'_>,
    ) {
        self.roster.close_session(session, turn.now.monotonic);
        turn.push_delivery(
            CommitDependency::Nothing,
            Delivery::CloseSession { session, reason },
        );
    }

    /// Extends leases for a daemon that restarts on purpose. The extension is stored before it
    /// is acknowledged.
    pub(crate) fn extend_leases(
        &mut self,
        session: SessionId,
        request: u64,
        attempts: Vec<(AttemptId, LeaseToken)>,
        granted_ms: u64,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(daemon) = self.roster.daemon_of(session) else {
            return;
        };
        let granted_ms = granted_ms.min(self.config.max_extension_ms);
        let results = self.renew_leases(daemon, attempts, Some(granted_ms), turn);
        turn.send_to_session(
            CommitDependency::Everything,
            session,
            DaemonMessage::ExtensionAck { request, results },
        );
    }

    fn renew_leases(
        &mut self,
        daemon: DaemonId,
        attempts: Vec<(AttemptId, LeaseToken)>,
        extension_ms: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> Vec<(AttemptId, LeaseRenewal)> {
        let renew = |(attempt, token): (AttemptId, LeaseToken)| {
            let renewal = match self.renew_lease(daemon, attempt, &token, extension_ms, turn) {
                Ok(granted_ms) => {
                    let expires_at = wall_time_at(turn.now.monotonic + granted_ms, turn.now);
                    LeaseRenewal::Renewed {
                        granted_ms,
                        expires_at,
                    }
                }
                Err(code) => LeaseRenewal::Revoked { code },
            };
            (attempt, renewal)
        };
        attempts.into_iter().map(renew).collect()
    }

    fn renew_lease(
        &mut self,
        daemon: DaemonId,
        attempt: AttemptId,
        token: &LeaseToken,
        extension_ms: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> Result<u64, Rejection> {
        let now = turn.now.monotonic;
        if self.roster.holder_of(attempt) != Some(daemon) {
            return Err(Rejection::UnknownAttempt);
        }
        let task = self
            .leased_attempts
            .get(&attempt)
            .ok_or(Rejection::UnknownAttempt)?;
        let live = self.tasks.get_mut(task).ok_or(Rejection::UnknownAttempt)?;
        if !matches_token(live.newest_attempt(), token) {
            return Err(Rejection::BadProof);
        }
        if live.lease_ends_at().is_none_or(|ends| ends <= now) {
            self.apply_to_attempt(attempt, MachineEvent::TimerExpired(TimerKey::Lease), turn);
            return Err(Rejection::LeaseExpired);
        }
        let granted_ms = extension_ms.unwrap_or(live.spec.lease_ttl_ms);
        live.renew_lease(now + granted_ms, &self.config, now);
        if mutant!(HeartbeatFeedsIdle) {
            let limits = LiveTask::timer_limits(&live.spec, &self.config);
            live.timers
                .on_fact(&TimerFact::Output { tool: None }, now, &limits);
        }
        if extension_ms.is_some() && !mutant!(HoldNotStored) {
            self.store_extension(attempt, granted_ms, turn);
        }
        Ok(granted_ms)
    }

    /// Stores the largest granted time. Boot and the successor rule use it, so it must be
    /// durable before the daemon relies on it.
    fn store_extension(&mut self, attempt: AttemptId, granted_ms: u64, turn: &mut CoreTurn<'_>) {
        let Some(task) = self.leased_attempts.get(&attempt) else {
            return;
        };
        let Some(mut live) = self.tasks.remove(task) else {
            return;
        };
        if let Some(lease) = &mut live.newest_attempt_mut().lease {
            lease.granted_ms = lease.granted_ms.max(granted_ms);
        }
        self.put_back_task(live, turn);
    }

    fn count_missed_attempts(
        &mut self,
        daemon: DaemonId,
        named: &BTreeSet<AttemptId>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(held) = self.roster.get(daemon).map(|daemon| &daemon.held_attempts) else {
            return;
        };
        let unnamed: Vec<AttemptId> = held.difference(named).copied().collect();
        for attempt in unnamed {
            let live = self
                .leased_attempts
                .get(&attempt)
                .and_then(|task| self.tasks.get_mut(task));
            if live.is_some_and(|live| {
                count_missed_heartbeat(live, turn.now.monotonic, self.config.heartbeat_ms)
            }) {
                self.apply_to_attempt(attempt, MachineEvent::MissingOnDaemon, turn);
            }
        }
    }

    /// Extends leases after the relay's loop stalled: daemons may have sent renewals in time
    /// that the relay could not process.
    pub(crate) fn credit_stall(&mut self, turn: &mut CoreTurn<'_>) {
        let away_ms = turn.now.monotonic.since(self.last_turn_at);
        if away_ms <= self.config.stall_ms
            || self.leased_attempts.is_empty()
            || mutant!(StallCreditMissing)
        {
            return;
        }
        turn.effects
            .metrics
            .push(CoreMetric::StallCredit { away_ms });
        let connected = self
            .roster
            .iter()
            .filter_map(|d| Some((d.id, d.presence.session()?)));
        let connected: Vec<(DaemonId, SessionId)> = connected.collect();
        for (daemon, session) in connected {
            self.roster.reset_silence(session, turn.now.monotonic);
            let wanted_ms = 2 * self.heartbeat_interval_ms(daemon);
            let held = self
                .roster
                .get(daemon)
                .map(|daemon| daemon.held_attempts.clone())
                .unwrap_or_default();
            for attempt in held {
                if let Some(live) = self
                    .leased_attempts
                    .get(&attempt)
                    .and_then(|task| self.tasks.get_mut(task))
                {
                    credit_lease(live, wanted_ms, &self.config, turn.now.monotonic);
                }
            }
        }
        if !mutant!(AgentsNotCredited) {
            self.credit_agents(turn.now.monotonic);
        }
    }

    /// Credits agents that hold leases. Their calls waited in the same queue during the stall.
    fn credit_agents(&mut self, now: MonotonicTime) {
        for task in self.leased_attempts.values() {
            if let Some(live) = self.tasks.get_mut(task)
                && live.newest_attempt().agent_holder().is_some()
            {
                let wanted_ms = 2 * agent_renewal_ms(live.spec.lease_ttl_ms);
                credit_lease(live, wanted_ms, &self.config, now);
            }
        }
    }
}

/// The renewal interval for an agent that holds a lease.
pub(crate) fn agent_renewal_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 3
}

/// Counts a heartbeat that omits a confirmed attempt; true if it was one too many. A heartbeat
/// that was already under way when the confirmation was sent does not count.
fn count_missed_heartbeat(live: &mut LiveTask, now: MonotonicTime, heartbeat_ms: u64) -> bool {
    if live
        .confirmed_at
        .is_none_or(|at| now.since(at) < heartbeat_ms)
    {
        return false;
    }
    live.missed_heartbeats = live.missed_heartbeats.saturating_add(1);
    live.missed_heartbeats >= MAX_MISSED_HEARTBEATS
}

/// Makes the lease last at least `wanted_ms` from now. The credit between two renewals is at
/// most one TTL, so a dead daemon's lease still expires while the relay keeps stalling.
fn credit_lease(
    live: &mut LiveTask,
    wanted_ms: u64,
    config: &crate::config::Config,
    now: MonotonicTime,
) {
    let Some(ends) = live.lease_ends_at() else {
        return;
    };
    let left_ms = live.spec.lease_ttl_ms.saturating_sub(live.stall_credit_ms);
    let until = now + wanted_ms.min(left_ms);
    if until <= ends {
        return;
    }
    live.stall_credit_ms += until.since(ends.max(now));
    let limits = LiveTask::timer_limits(&live.spec, config);
    live.timers.on_fact(
        &TimerFact::Renewed {
            until: until - limits.grace_ms,
        },
        now,
        &limits,
    );
}

fn is_revoked((_, renewal): &(AttemptId, LeaseRenewal)) -> bool {
    matches!(renewal, LeaseRenewal::Revoked { .. })
}
