//! Settlement: the relay's verdict on one attempt that a daemon lists in its Hello.

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::io::effects::SettlementVerdict;
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttempt, ActiveAttemptState, DaemonHello};
use crate::record::{AttemptState, LeaseHolder};
use crate::task::live_task::LiveTask;
use crate::turn::CoreTurn;

impl AttemptOwners<'_> {
    pub(super) fn settle_live_attempt(
        &mut self,
        live: &mut LiveTask,
        hello: &DaemonHello,
        active: &ActiveAttempt,
        turn: &mut CoreTurn<'_>,
    ) -> SettlementVerdict {
        let current = |live: &LiveTask| {
            live.newest_attempt().id == active.frame_ref.attempt && live.is_newest_leased()
        };
        if current(live)
            && live
                .lease_ends_at()
                .is_some_and(|ends| ends <= turn.now.monotonic)
        {
            self.apply_event(
                live,
                MachineEvent::TimerExpired(TimerKey::Lease),
                None,
                turn,
            );
        }
        if !current(live) {
            return settle_ended_attempt(live, active);
        }
        let held_by = live.newest_attempt().daemon_holder();
        if held_by.is_some_and(|holder| holder.instance != hello.instance)
            && let Some(LeaseHolder::Daemon(holder)) = &mut live.newest_attempt_mut().holder
        {
            holder.instance = hello.instance;
        }
        restart_cleanup_timer(live, turn);
        match (active.state, &active.proof) {
            (ActiveAttemptState::Running, Some(_)) => self.continue_attempt(live, turn),
            // Nothing of it runs, so it need not be in a heartbeat while its last words are
            // replayed.
            (ActiveAttemptState::Finished, _) => {
                renew_full_lease(live, turn);
                live.confirmed_at = None;
                SettlementVerdict::Adopt {
                    acked: live.ackable_seq,
                }
            }
            // It is in no heartbeat while its shim does not answer, and without proof nothing is
            // renewed: the lease alone bounds it.
            (ActiveAttemptState::Unreachable, _) | (ActiveAttemptState::Running, None) => {
                live.confirmed_at = None;
                SettlementVerdict::Keep {
                    acked: live.ackable_seq,
                    granted_ms: None,
                }
            }
        }
    }

    fn continue_attempt(
        &mut self,
        live: &mut LiveTask,
        turn: &mut CoreTurn<'_>,
    ) -> SettlementVerdict {
        if live.newest_attempt().state == AttemptState::Offered {
            self.apply_event(live, MachineEvent::KeptBySettlement, None, turn);
        }
        live.confirmed_at = Some(turn.now.monotonic);
        if !mutant!(KeepNotRenewed) {
            renew_full_lease(live, turn);
        }
        let granted_ms = Some(live.spec.lease_ttl_ms);
        SettlementVerdict::Keep {
            acked: live.ackable_seq,
            granted_ms,
        }
    }
}

/// It was ending by itself when the stream broke: what it has to say is replayed, and gets the full
/// time again.
fn restart_cleanup_timer(live: &mut LiveTask, turn: &CoreTurn<'_>) {
    if live.newest_attempt().state == (AttemptState::CleaningUp { pending: None }) {
        let limits = LiveTask::timer_limits(&live.spec, turn.config);
        live.timers.disarm(&TimerKey::CleanupTerm);
        live.timers
            .on_fact(&TimerFact::CancelSent, turn.now.monotonic, &limits);
    }
}

fn renew_full_lease(live: &mut LiveTask, turn: &CoreTurn<'_>) {
    let until = turn.now.monotonic + live.spec.lease_ttl_ms;
    live.renew_lease(until, turn.config, turn.now.monotonic);
}

/// Its end is wanted if it has one to report: adopted, or kept as evidence. What still runs is
/// killed.
pub(super) fn settle_ended_attempt(live: &LiveTask, active: &ActiveAttempt) -> SettlementVerdict {
    let attempt = live.record().attempt(active.frame_ref.attempt);
    let acked = attempt.map_or(0, |attempt| attempt.control_seq);
    let code = if live.record().state.is_terminal() {
        Rejection::TaskTerminal
    } else {
        Rejection::StaleAttempt
    };
    match active.state {
        ActiveAttemptState::Finished => SettlementVerdict::Adopt { acked },
        ActiveAttemptState::Running | ActiveAttemptState::Unreachable => SettlementVerdict::Kill {
            code,
            acked: Some(acked),
        },
    }
}

/// Of what is not this daemon's nothing is wanted, a receipt neither.
pub(super) fn kill_unknown(code: Rejection) -> SettlementVerdict {
    SettlementVerdict::Kill { code, acked: None }
}
