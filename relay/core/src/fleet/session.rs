//! Daemon sessions: Hello and the settlement of every attempt that the daemon or the relay
//! lists.
//!
//! Listed and leased: the attempt continues. Listed and ended: its final frames are adopted, or
//! it is killed. Leased and not listed: it is lost. A changed boot id proves that all earlier
//! processes of the machine are gone.

use std::collections::BTreeSet;

use crate::attempt::fences::FenceGuard;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::{TimerFact, TimerSet};
use crate::core_state::CoreOwners;
use crate::fleet::daemon_removal::make_room_for_daemon;
use crate::fleet::frame_check::{FrameOrigin, check_owner};
use crate::fleet::heartbeat::heartbeat_interval_ms;
use crate::fleet::roster::SessionSuccession;
use crate::fleet::settlement::{kill_unknown, settle_ended_attempt};
use crate::ids::{AttemptId, DaemonId, SessionId, TaskId};
use crate::io::effects::{
    AttemptSettlement, CloseReason, CommitDependency, CoreMetric, DaemonMessage, Delivery,
    SettlementVerdict,
};
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttempt, ActiveAttemptState, DaemonHello};
use crate::io::stored_lookup::{FinishedTask, StoredTasks, TaskLookup};
use crate::record::{AttemptState, InputState};
use crate::task::cancel_and_answer::answer_message;
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::turn::CoreTurn;

pub(crate) fn open_session(
    core: &mut CoreOwners<'_>,
    session: SessionId,
    mut hello: DaemonHello,
    turn: &mut CoreTurn<'_>,
) {
    let daemon = hello.daemon;
    if core.fleet.roster().is_overtaken(daemon, session) && !mutant!(OvertakenHelloHeard) {
        // Read late, after the Hello of a newer stream: it would take a boot of the past for a new
        // one.
        let code = Rejection::Superseded;
        turn.effects.metrics.push(CoreMetric::FrameRejected(code));
        return push_close_session(session, CloseReason::Replaced, turn);
    }
    if !make_room_for_daemon(core.fleet, core.schedule, daemon, hello.token, turn) {
        return push_close_session(session, CloseReason::TooManyDaemons, turn);
    }
    let active = std::mem::take(&mut hello.active);
    let heard = core
        .fleet
        .roster()
        .get(daemon)
        .and_then(|known| known.presence.last_received_at());
    let greeting = core.fleet.roster_mut().apply_hello(
        session,
        &hello,
        turn.config.heartbeat_ms,
        turn.now.monotonic,
    );
    match greeting.succession {
        SessionSuccession::First => {}
        SessionSuccession::Replaced(old) => push_close_session(old, CloseReason::Replaced, turn),
        SessionSuccession::Superseded(old) => {
            push_close_session(old, CloseReason::Superseded, turn)
        }
    }
    core.fleet.store_daemon(&hello, turn);
    let superseded = matches!(greeting.succession, SessionSuccession::Superseded(_));
    let alive_ms = 2 * turn.config.heartbeat_ms;
    if superseded && heard.is_some_and(|at| turn.now.monotonic.since(at) < alive_ms) {
        // A machine whose frames arrived just now has not booted since: it was cloned, or its data
        // was.
        core.schedule.replace_boot_id(daemon, &hello.boot_id);
    }
    if !mutant!(BootIdIgnored) {
        lose_rebooted_attempts(core, &hello, &active, turn);
    }
    let mut going_on = Vec::new();
    let settlements = active.into_iter().map(|active| {
        let (attempt, task) = (active.frame_ref.attempt, active.frame_ref.task);
        let verdict = settle_attempt(core, session, &hello, active, turn);
        match verdict {
            SettlementVerdict::Keep { .. } => going_on.push(task),
            SettlementVerdict::Adopt { .. } => {
                core.fleet.roster_mut().await_final_frames(daemon, attempt)
            }
            SettlementVerdict::Kill { .. } => {}
        }
        AttemptSettlement { attempt, verdict }
    });
    let settlements: Vec<AttemptSettlement> = settlements.collect();
    if !mutant!(MissingFromHelloKept) {
        lose_missing_attempts(core, daemon, &settlements, turn);
    }
    let heartbeat_ms = heartbeat_interval_ms(core, daemon, turn);
    core.fleet
        .roster_mut()
        .note_answer_sent(session, None, heartbeat_ms, turn.now.monotonic);
    turn.send_to_session(
        CommitDependency::Everything.unless_broken(mutant!(WelcomeBeforePersist)),
        session,
        DaemonMessage::Welcome {
            heartbeat_ms,
            settlements,
        },
    );
    core.fleet.send_drain_state(&hello, session, turn);
    for task in going_on {
        resend_pending_messages(core, task, session, turn);
    }
}

/// The verdict on an attempt that does not belong to this daemon. Not even its receipt is
/// requested.
fn lose_missing_attempts(
    core: &mut CoreOwners<'_>,
    daemon: DaemonId,
    settlements: &[AttemptSettlement],
    turn: &mut CoreTurn<'_>,
) {
    let goes_on =
        |settled: &&AttemptSettlement| !matches!(settled.verdict, SettlementVerdict::Kill { .. });
    let settled = settlements.iter().filter(goes_on);
    let kept: BTreeSet<AttemptId> = settled.map(|settled| settled.attempt).collect();
    let held = core
        .fleet
        .roster()
        .get(daemon)
        .map(|daemon| &daemon.held_attempts);
    let missing: Vec<AttemptId> = held
        .map(|held| held.difference(&kept).copied().collect())
        .unwrap_or_default();
    for attempt in missing {
        core.apply_to_attempt(attempt, MachineEvent::MissingOnDaemon, turn);
    }
}

/// The shell has read the finished tasks before; only a task that ended since then is read here.
pub(crate) fn look_up_ended_tasks(
    tasks: &LiveTasks,
    hello: &mut DaemonHello,
    store: &dyn StoredTasks,
) {
    for active in &mut hello.active {
        let open = matches!(active.lookup, TaskLookup::Open);
        if open && !tasks.is_live(active.frame_ref.task) {
            let found = store.finished_in_scope(&hello.scope, active.frame_ref.task);
            active.lookup = TaskLookup::from_finished(found);
        }
    }
}

pub(crate) fn delivery_failed(
    core: &mut CoreOwners<'_>,
    session: SessionId,
    attempt: AttemptId,
    turn: &mut CoreTurn<'_>,
) {
    let holder = core.fleet.roster().holder_of(attempt);
    let current = core.fleet.roster().daemon_of(session);
    // The stream may be over by now; another daemon's word is not its holder's.
    if holder.is_some() && (current.is_none() || current == holder) {
        core.apply_to_attempt(attempt, MachineEvent::DeliveryFailed, turn);
    }
}

/// Whatever was leased to this machine under another boot is dead; a result that it had on disk
/// still counts.
fn lose_rebooted_attempts(
    core: &mut CoreOwners<'_>,
    hello: &DaemonHello,
    active: &[ActiveAttempt],
    turn: &mut CoreTurn<'_>,
) {
    let incarnation = turn.config.incarnation;
    let finished = |attempt: AttemptId| {
        active.iter().any(|a| {
            let heard = a.frame_ref.attempt == attempt && a.frame_ref.incarnation == incarnation;
            heard && a.state == ActiveAttemptState::Finished
        })
    };
    for fence in core
        .schedule
        .remove_rebooted_fences(hello.daemon, &hello.boot_id)
    {
        match fence.guard {
            FenceGuard::Until(_) => core.schedule.remove_fallen_fence(&fence, turn),
            FenceGuard::Leased if finished(fence.attempt) => core.schedule.put_back_fence(fence),
            FenceGuard::Leased => {
                core.apply_to_attempt(fence.attempt, MachineEvent::Rebooted, turn);
                core.schedule.release_fenced(&fence);
            }
        }
    }
}

fn settle_attempt(
    core: &mut CoreOwners<'_>,
    session: SessionId,
    hello: &DaemonHello,
    active: ActiveAttempt,
    turn: &mut CoreTurn<'_>,
) -> SettlementVerdict {
    let re = active.frame_ref;
    if re.incarnation != turn.config.incarnation && !mutant!(IncarnationIgnored) {
        return kill_unknown(Rejection::StaleIncarnation);
    }
    let from = FrameOrigin {
        session,
        daemon: hello.daemon,
        frame_ref: re,
        control_seq: 0,
    };
    if let Some(mut live) = core.tasks.take_any(re.task) {
        let verdict = match check_owner(&live, from, active.proof.as_ref(), turn) {
            Ok(()) => core
                .attempt()
                .settle_live_attempt(&mut live, hello, &active, turn),
            Err(code) => kill_unknown(code),
        };
        core.put_back_task(live, turn);
        return verdict;
    }
    match active.lookup.clone() {
        TaskLookup::Finished(FinishedTask { record, spec }) => {
            let live = LiveTask::new(spec, record, TimerSet::default());
            match check_owner(&live, from, active.proof.as_ref(), turn) {
                Ok(()) => settle_ended_attempt(&live, &active),
                Err(code) => kill_unknown(code),
            }
        }
        TaskLookup::Open | TaskLookup::Missing => kill_unknown(Rejection::UnknownAttempt),
    }
}

/// What the daemon may have missed: that it should stop, and answers that it has not confirmed.
fn resend_pending_messages(
    core: &mut CoreOwners<'_>,
    task: TaskId,
    session: SessionId,
    turn: &mut CoreTurn<'_>,
) {
    let Some(mut live) = core.tasks.take_any(task) else {
        return;
    };
    if matches!(
        live.newest_attempt().state,
        AttemptState::CleaningUp { pending: Some(_) }
    ) {
        let limits = LiveTask::timer_limits(&live.spec, turn.config);
        live.timers
            .on_fact(&TimerFact::CancelSent, turn.now.monotonic, &limits);
        core.attempt().send_cancel(&live, turn);
    }
    for input in &live.newest_attempt().inputs {
        if let InputState::Answered(answer) = &input.state {
            let message = answer_message(&live, input, answer);
            turn.send_to_session(CommitDependency::Task(task), session, message);
        }
    }
    core.put_back_task(live, turn);
}

fn push_close_session(session: SessionId, reason: CloseReason, turn: &mut CoreTurn<'_>) {
    turn.push_delivery(
        CommitDependency::Nothing,
        Delivery::CloseSession { session, reason },
    );
}
