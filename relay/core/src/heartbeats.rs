//! Renewals: the only thing that keeps a lease alive, counted from their arrival. Also holds and stall credit.

use std::collections::BTreeSet;

use crate::attempt::Event;
use crate::core::{Core, Turn};
use crate::effects::{After, CloseReason, Count, Downstream, Renewal, Send};
use crate::frame::proves;
use crate::id::{AttemptId, DaemonId, SessionId};
use crate::input::{Heartbeat, LeaseToken};
use crate::live::{Live, wall_of};
use crate::reject::Rejection;
use crate::time::Moment;
use crate::timers::{Fact, TimerKey};

/// Heartbeats in which a confirmed attempt may be missing before it counts as missing from Hello.
const MISSED_MAX: u8 = 2;

impl Core {
    pub(crate) fn heartbeat(
        &mut self,
        session: SessionId,
        heartbeat: Heartbeat,
        turn: &mut Turn<'_>,
    ) {
        let every = self.config.heartbeat_ms;
        let Some(daemon) = self
            .roster
            .heartbeat(session, heartbeat.draining, every, turn.now.at)
        else {
            turn.fx
                .counts
                .push(Count::FrameRejected(Rejection::UnknownSession));
            return;
        };
        self.roster
            .note_fitness(daemon, heartbeat.unfit, turn.now.at);
        self.roster.note_load(daemon, heartbeat.load);
        if !self.roster.hears(session, heartbeat.heard_seq, turn.now.at) {
            return self.hang_up(session, CloseReason::Deaf, turn);
        }
        let named: BTreeSet<AttemptId> = heartbeat
            .renewals
            .iter()
            .map(|(attempt, _)| *attempt)
            .collect();
        let results = self.renew_all(daemon, heartbeat.renewals, None, turn);
        self.count_missing(daemon, &named, turn);
        let heartbeat_ms = self.heartbeat_of(daemon);
        let message = Downstream::HeartbeatAck {
            seq: heartbeat.seq,
            heartbeat_ms,
            results,
        };
        // A revocation must not be known before the end that it speaks of is durable.
        let revokes = matches!(&message, Downstream::HeartbeatAck { results, .. } if results.iter().any(is_revoked));
        // That answer waits for the disk, so nobody can say when it should have been heard.
        let seq = (!revokes).then_some(heartbeat.seq);
        self.roster
            .answered(session, seq, heartbeat_ms, turn.now.at);
        turn.tell(
            if revokes {
                After::Everything
            } else {
                After::Nothing
            },
            session,
            message,
        );
    }

    /// Its stream is of no use: it gets no work from here on, and its attempts go on under their leases.
    pub(crate) fn hang_up(&mut self, session: SessionId, reason: CloseReason, turn: &mut Turn<'_>) {
        self.roster.closed(session, turn.now.at);
        turn.send(After::Nothing, Send::CloseSession { session, reason });
    }

    /// A daemon that restarts on purpose asks for more time; the grant is stored before it is told.
    pub(crate) fn hold(
        &mut self,
        session: SessionId,
        request: u64,
        attempts: Vec<(AttemptId, LeaseToken)>,
        granted_ms: u64,
        turn: &mut Turn<'_>,
    ) {
        let Some(daemon) = self.roster.daemon_of(session) else {
            return;
        };
        let granted_ms = granted_ms.min(self.config.max_hold_ms);
        let results = self.renew_all(daemon, attempts, Some(granted_ms), turn);
        turn.tell(
            After::Everything,
            session,
            Downstream::HoldAck { request, results },
        );
    }

    fn renew_all(
        &mut self,
        daemon: DaemonId,
        attempts: Vec<(AttemptId, LeaseToken)>,
        hold_ms: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Vec<(AttemptId, Renewal)> {
        let renew = |(attempt, token): (AttemptId, LeaseToken)| {
            let renewal = match self.renew(daemon, attempt, &token, hold_ms, turn) {
                Ok(granted_ms) => {
                    let expires_at = wall_of(turn.now.at + granted_ms, turn.now);
                    Renewal::Renewed {
                        granted_ms,
                        expires_at,
                    }
                }
                Err(code) => Renewal::Revoked { code },
            };
            (attempt, renewal)
        };
        attempts.into_iter().map(renew).collect()
    }

    fn renew(
        &mut self,
        daemon: DaemonId,
        attempt: AttemptId,
        token: &LeaseToken,
        hold_ms: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<u64, Rejection> {
        let now = turn.now.at;
        if self.roster.holder_of(attempt) != Some(daemon) {
            return Err(Rejection::UnknownAttempt);
        }
        let task = self
            .attempts
            .get(&attempt)
            .ok_or(Rejection::UnknownAttempt)?;
        let live = self.tasks.get_mut(task).ok_or(Rejection::UnknownAttempt)?;
        if !proves(live.newest(), token) {
            return Err(Rejection::BadProof);
        }
        if live.lease_ends().is_none_or(|ends| ends <= now) {
            self.apply_to_attempt(attempt, Event::Expired(TimerKey::Lease), turn);
            return Err(Rejection::LeaseExpired);
        }
        let granted_ms = hold_ms.unwrap_or(live.spec.lease_ttl_ms);
        live.renew(now + granted_ms, &self.config, now);
        if mutant!(HeartbeatFeedsIdle) {
            let limits = Live::limits(&live.spec, &self.config);
            live.timers
                .on_fact(&Fact::Output { tool: None }, now, &limits);
        }
        if hold_ms.is_some() && !mutant!(HoldNotStored) {
            self.store_hold(attempt, granted_ms, turn);
        }
        Ok(granted_ms)
    }

    /// Boot and the successor rule count with the largest grant, so it must be durable before it is used.
    fn store_hold(&mut self, attempt: AttemptId, granted_ms: u64, turn: &mut Turn<'_>) {
        let Some(task) = self.attempts.get(&attempt) else {
            return;
        };
        let Some(mut live) = self.tasks.remove(task) else {
            return;
        };
        if let Some(lease) = &mut live.newest_mut().lease {
            lease.granted_ms = lease.granted_ms.max(granted_ms);
        }
        self.keep(live, turn);
    }

    fn count_missing(
        &mut self,
        daemon: DaemonId,
        named: &BTreeSet<AttemptId>,
        turn: &mut Turn<'_>,
    ) {
        let Some(held) = self.roster.get(daemon).map(|daemon| &daemon.held) else {
            return;
        };
        let unnamed: Vec<AttemptId> = held.difference(named).copied().collect();
        for attempt in unnamed {
            let live = self
                .attempts
                .get(&attempt)
                .and_then(|task| self.tasks.get_mut(task));
            if live.is_some_and(|live| misses(live, turn.now.at, self.config.heartbeat_ms)) {
                self.apply_to_attempt(attempt, Event::Missing, turn);
            }
        }
    }

    /// The loop was away: daemons renewed in time, and the relay was not there to hear it.
    pub(crate) fn credit_stall(&mut self, turn: &mut Turn<'_>) {
        let away_ms = turn.now.at.since(self.last);
        if away_ms <= self.config.stall_ms
            || self.attempts.is_empty()
            || mutant!(StallCreditMissing)
        {
            return;
        }
        turn.fx.counts.push(Count::StallCredit { away_ms });
        let connected = self
            .roster
            .iter()
            .filter_map(|d| Some((d.id, d.presence.session()?)));
        let connected: Vec<(DaemonId, SessionId)> = connected.collect();
        for (daemon, session) in connected {
            self.roster.excuse(session, turn.now.at);
            let wanted_ms = 2 * self.heartbeat_of(daemon);
            let held = self
                .roster
                .get(daemon)
                .map(|daemon| daemon.held.clone())
                .unwrap_or_default();
            for attempt in held {
                if let Some(live) = self
                    .attempts
                    .get(&attempt)
                    .and_then(|task| self.tasks.get_mut(task))
                {
                    credit(live, wanted_ms, &self.config, turn.now.at);
                }
            }
        }
        if !mutant!(AgentsNotCredited) {
            self.credit_agents(turn.now.at);
        }
    }

    /// Agents have no stream that could be seen; their calls waited in the same line.
    fn credit_agents(&mut self, now: Moment) {
        for task in self.attempts.values() {
            if let Some(live) = self.tasks.get_mut(task)
                && live.newest().agent().is_some()
            {
                let wanted_ms = 2 * renew_every_ms(live.spec.lease_ttl_ms);
                credit(live, wanted_ms, &self.config, now);
            }
        }
    }
}

/// How often an agent that holds its lease itself is told to renew it.
pub(crate) fn renew_every_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 3
}

/// Whether this heartbeat was the last that may leave a confirmed attempt out. One that was on its way when the
/// confirmation was sent does not count.
fn misses(live: &mut Live, now: Moment, heartbeat_ms: u64) -> bool {
    if live
        .confirmed_at
        .is_none_or(|at| now.since(at) < heartbeat_ms)
    {
        return false;
    }
    live.missed = live.missed.saturating_add(1);
    live.missed >= MISSED_MAX
}

/// The lease lasts at least `wanted_ms` from now. Between two renewals this adds up to one ttl at most: a dead daemon
/// is not kept alive by a relay that keeps stalling.
fn credit(live: &mut Live, wanted_ms: u64, config: &crate::config::Config, now: Moment) {
    let Some(ends) = live.lease_ends() else {
        return;
    };
    let left_ms = live.spec.lease_ttl_ms.saturating_sub(live.credit_ms);
    let until = now + wanted_ms.min(left_ms);
    if until <= ends {
        return;
    }
    live.credit_ms += until.since(ends.max(now));
    let limits = Live::limits(&live.spec, config);
    live.timers.on_fact(
        &Fact::Renewed {
            until: until - limits.grace_ms,
        },
        now,
        &limits,
    );
}

fn is_revoked((_, renewal): &(AttemptId, Renewal)) -> bool {
    matches!(renewal, Renewal::Revoked { .. })
}
