//! Lease renewal by heartbeats, lease extensions for planned restarts, and stall credit. Only a
//! renewal keeps a lease alive; its time counts from the arrival at the relay.

use std::collections::BTreeSet;

use crate::attempt::lease_index::LeaseIndex;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::core_state::CoreOwners;
use crate::fleet::frame_check::matches_token;
use crate::ids::{AttemptId, DaemonId, SessionId};
use crate::io::effects::{CloseReason, CommitDependency, CoreMetric, DaemonMessage, LeaseRenewal};
use crate::io::rejection::Rejection;
use crate::io::session_input::{HeartbeatMessage, LeaseExtension, LeaseToken};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::live_tasks::LiveTasks;
use crate::time::MonotonicTime;
use crate::turn::CoreTurn;

/// Heartbeats that may omit a confirmed attempt before it counts as missing on the daemon.
const MAX_MISSED_HEARTBEATS: u8 = 2;

pub(crate) fn handle_heartbeat(
    core: &mut CoreOwners<'_>,
    session: SessionId,
    heartbeat: HeartbeatMessage,
    turn: &mut CoreTurn<'_>,
) {
    let (every, now) = (turn.config.heartbeat_ms, turn.now.monotonic);
    let roster = core.fleet.roster_mut();
    let Some(daemon) = roster.heartbeat(session, heartbeat.draining, every, now) else {
        turn.effects
            .metrics
            .push(CoreMetric::FrameRejected(Rejection::UnknownSession));
        return;
    };
    roster.note_fitness(daemon, heartbeat.unfit, now);
    roster.note_load(daemon, heartbeat.load);
    if !roster.is_receiving(session, heartbeat.received_ack_seq, now) {
        return core
            .fleet
            .close_session(session, CloseReason::NotReceiving, turn);
    }
    let named: BTreeSet<AttemptId> = heartbeat
        .renewals
        .iter()
        .map(|(attempt, _)| *attempt)
        .collect();
    let results = renew_leases(core, daemon, heartbeat.renewals, None, turn);
    count_missed_attempts(core, daemon, &named, turn);
    let heartbeat_ms = heartbeat_interval_ms(core, daemon, turn);
    // A revocation must not be known before the end that it reports is durable.
    let revokes = results.iter().any(is_revoked);
    let message = DaemonMessage::HeartbeatAck {
        seq: heartbeat.seq,
        heartbeat_ms,
        results,
    };
    // That answer waits for the disk, so it is unknown when it should have arrived.
    let seq = (!revokes).then_some(heartbeat.seq);
    core.fleet
        .roster_mut()
        .note_answer_sent(session, seq, heartbeat_ms, now);
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

/// The shortest lease that it holds sets the pace.
pub(crate) fn heartbeat_interval_ms(
    core: &CoreOwners<'_>,
    daemon: DaemonId,
    turn: &CoreTurn<'_>,
) -> u64 {
    let known = core.fleet.roster().get(daemon);
    let held = known.into_iter().flat_map(|daemon| &daemon.held_attempts);
    let tasks = held.filter_map(|attempt| core.tasks.get(core.leases.task_of(*attempt)?));
    let shortest = tasks.map(|live| live.spec.lease_ttl_ms).min();
    shortest.map_or(turn.config.heartbeat_ms, |ttl| {
        turn.config.heartbeat_ms_for(ttl)
    })
}

/// A daemon that restarts on purpose asks for more time; the grant is stored before it is sent.
pub(crate) fn extend_leases(
    core: &mut CoreOwners<'_>,
    extension: LeaseExtension,
    turn: &mut CoreTurn<'_>,
) {
    let LeaseExtension {
        session,
        request,
        attempts,
        granted_ms,
    } = extension;
    let Some(daemon) = core.fleet.roster().daemon_of(session) else {
        return;
    };
    let granted_ms = granted_ms.min(turn.config.max_extension_ms);
    let results = renew_leases(core, daemon, attempts, Some(granted_ms), turn);
    turn.send_to_session(
        CommitDependency::Everything,
        session,
        DaemonMessage::ExtensionAck { request, results },
    );
}

fn renew_leases(
    core: &mut CoreOwners<'_>,
    daemon: DaemonId,
    attempts: Vec<(AttemptId, LeaseToken)>,
    extension_ms: Option<u64>,
    turn: &mut CoreTurn<'_>,
) -> Vec<(AttemptId, LeaseRenewal)> {
    let renew = |(attempt, token): (AttemptId, LeaseToken)| {
        let renewal = match renew_lease(core, daemon, (attempt, &token), extension_ms, turn) {
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
    core: &mut CoreOwners<'_>,
    daemon: DaemonId,
    (attempt, token): (AttemptId, &LeaseToken),
    extension_ms: Option<u64>,
    turn: &mut CoreTurn<'_>,
) -> Result<u64, Rejection> {
    let now = turn.now.monotonic;
    if core.fleet.roster().holder_of(attempt) != Some(daemon) {
        return Err(Rejection::UnknownAttempt);
    }
    let task = core.leases.task_of(attempt);
    let live = task.and_then(|task| core.tasks.get_mut(task));
    let live = live.ok_or(Rejection::UnknownAttempt)?;
    if !matches_token(live.newest_attempt(), token) {
        return Err(Rejection::BadProof);
    }
    if live.lease_ends_at().is_none_or(|ends| ends <= now) {
        core.apply_to_attempt(attempt, MachineEvent::TimerExpired(TimerKey::Lease), turn);
        return Err(Rejection::LeaseExpired);
    }
    let granted_ms = extension_ms.unwrap_or(live.spec.lease_ttl_ms);
    live.renew_lease(now + granted_ms, turn.config, now);
    if mutant!(HeartbeatFeedsIdle) {
        let limits = LiveTask::timer_limits(&live.spec, turn.config);
        live.timers
            .on_fact(&TimerFact::Output { tool: None }, now, &limits);
    }
    if extension_ms.is_some() && !mutant!(HoldNotStored) {
        store_extension(core, attempt, granted_ms, turn);
    }
    Ok(granted_ms)
}

/// Boot and the successor rule count with the largest grant, so it must be durable before it is
/// used.
fn store_extension(
    core: &mut CoreOwners<'_>,
    attempt: AttemptId,
    granted_ms: u64,
    turn: &mut CoreTurn<'_>,
) {
    let task = core.leases.task_of(attempt);
    let Some(mut live) = task.and_then(|task| core.tasks.take_any(task)) else {
        return;
    };
    if let Some(lease) = &mut live.newest_attempt_mut().lease {
        lease.granted_ms = lease.granted_ms.max(granted_ms);
    }
    core.put_back_task(live, turn);
}

fn count_missed_attempts(
    core: &mut CoreOwners<'_>,
    daemon: DaemonId,
    named: &BTreeSet<AttemptId>,
    turn: &mut CoreTurn<'_>,
) {
    let Some(known) = core.fleet.roster().get(daemon) else {
        return;
    };
    let unnamed: Vec<AttemptId> = known.held_attempts.difference(named).copied().collect();
    for attempt in unnamed {
        let task = core.leases.task_of(attempt);
        let live = task.and_then(|task| core.tasks.get_mut(task));
        if live.is_some_and(|live| {
            count_missed_heartbeat(live, turn.now.monotonic, turn.config.heartbeat_ms)
        }) {
            core.apply_to_attempt(attempt, MachineEvent::MissingOnDaemon, turn);
        }
    }
}

/// Credits agents that hold leases. Their calls waited in the same queue during the stall.
pub(crate) fn credit_stall(
    core: &mut CoreOwners<'_>,
    last_turn_at: MonotonicTime,
    turn: &mut CoreTurn<'_>,
) {
    let now = turn.now.monotonic;
    let away_ms = now.since(last_turn_at);
    if away_ms <= turn.config.stall_ms || core.leases.is_empty() || mutant!(StallCreditMissing) {
        return;
    }
    turn.effects
        .metrics
        .push(CoreMetric::StallCredit { away_ms });
    let known = core.fleet.roster().iter();
    let connected = known.filter_map(|d| Some((d.id, d.presence.session()?)));
    let connected: Vec<(DaemonId, SessionId)> = connected.collect();
    for (daemon, session) in connected {
        core.fleet.roster_mut().reset_silence(session, now);
        let wanted_ms = 2 * heartbeat_interval_ms(core, daemon, turn);
        let known = core.fleet.roster().get(daemon);
        for attempt in known.into_iter().flat_map(|known| &known.held_attempts) {
            let task = core.leases.task_of(*attempt);
            if let Some(live) = task.and_then(|task| core.tasks.get_mut(task)) {
                credit_lease(live, wanted_ms, turn.config, now);
            }
        }
    }
    if !mutant!(AgentsNotCredited) {
        credit_agents(core.tasks, core.leases, turn);
    }
}

/// Agents have no stream that could be seen; their calls waited in the same line.
fn credit_agents(tasks: &mut LiveTasks, leases: &LeaseIndex, turn: &CoreTurn<'_>) {
    for task in leases.tasks() {
        if let Some(live) = tasks.get_mut(task)
            && live.newest_attempt().agent_holder().is_some()
        {
            let wanted_ms = 2 * agent_renewal_ms(live.spec.lease_ttl_ms);
            credit_lease(live, wanted_ms, turn.config, turn.now.monotonic);
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
