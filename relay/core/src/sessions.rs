//! A daemon's stream: Hello and the settlement of every attempt that either side knows of.
//!
//! Listed and leased: it goes on. Listed and over: its end is still wanted, or it is killed. Leased and not listed:
//! it is lost. A changed boot id proves that everything of before is dead.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::attempt::Event;
use crate::core::{Core, Turn};
use crate::effects::{After, CloseReason, Count, Downstream, Send, Settlement, Verdict, Write};
use crate::fences::Guard;
use crate::finished::Looked;
use crate::frame::{From, check_owner};
use crate::id::{AttemptId, DaemonId, SessionId, TaskId};
use crate::input::{ActiveAttempt, ActiveState, Finished, Hello};
use crate::live::Live;
use crate::placement;
use crate::record::{DaemonRecord, Holder, InputState, State};
use crate::reject::Rejection;
use crate::roster::Opened;
use crate::time::Moment;
use crate::timers::{Fact, TimerKey, TimerSet};

impl Core {
    pub(crate) fn session_opened(
        &mut self,
        session: SessionId,
        mut hello: Hello,
        turn: &mut Turn<'_>,
    ) {
        let daemon = hello.daemon;
        if self.roster.is_overtaken(daemon, session) && !mutant!(OvertakenHelloHeard) {
            // Read late, after the Hello of a newer stream: it would take a boot of the past for a new one.
            let code = Rejection::Superseded;
            turn.fx.counts.push(Count::FrameRejected(code));
            return close(session, CloseReason::Replaced, turn);
        }
        if !self.room_for_daemon(daemon, hello.token, turn) {
            return close(session, CloseReason::TooManyDaemons, turn);
        }
        let active = std::mem::take(&mut hello.active);
        let heard = self
            .roster
            .get(daemon)
            .and_then(|known| known.presence.last_heard());
        let greeting = self
            .roster
            .hello(session, &hello, self.config.heartbeat_ms, turn.now.at);
        match greeting.opened {
            Opened::First => {}
            Opened::Replaced(old) => close(old, CloseReason::Replaced, turn),
            Opened::Superseded(old) => close(old, CloseReason::Superseded, turn),
        }
        self.remember_daemon(&hello, turn);
        let superseded = matches!(greeting.opened, Opened::Superseded(_));
        let alive_ms = 2 * self.config.heartbeat_ms;
        if superseded && heard.is_some_and(|at| turn.now.at.since(at) < alive_ms) {
            // A machine that was heard just now has not booted since: it was cloned, or its data was.
            self.fences.doubt(daemon, &hello.boot_id);
        }
        if !mutant!(BootIdIgnored) {
            self.machine_booted(&hello, &active, turn);
        }
        let mut going_on = Vec::new();
        let settlements = active.into_iter().map(|active| {
            let (attempt, task) = (active.re.attempt, active.re.task);
            let verdict = self.settle(session, &hello, active, turn);
            match verdict {
                Verdict::Keep { .. } => going_on.push(task),
                Verdict::Adopt { .. } => self.roster.adopt(daemon, attempt),
                Verdict::Kill { .. } => {}
            }
            Settlement { attempt, verdict }
        });
        let settlements: Vec<Settlement> = settlements.collect();
        if !mutant!(MissingFromHelloKept) {
            self.end_missing(daemon, &settlements, turn);
        }
        let heartbeat_ms = self.heartbeat_of(daemon);
        self.roster
            .answered(session, None, heartbeat_ms, turn.now.at);
        turn.tell(
            After::Everything.unless(mutant!(WelcomeBeforePersist)),
            session,
            Downstream::Welcome {
                heartbeat_ms,
                settlements,
            },
        );
        self.tell_mark(&hello, session, turn);
        for task in going_on {
            self.say_again(task, session, turn);
        }
    }

    /// Whatever it holds and does not go on with is lost: not listed, or listed without the right to it.
    fn end_missing(&mut self, daemon: DaemonId, settlements: &[Settlement], turn: &mut Turn<'_>) {
        let goes_on = |settled: &&Settlement| !matches!(settled.verdict, Verdict::Kill { .. });
        let settled = settlements.iter().filter(goes_on);
        let kept: BTreeSet<AttemptId> = settled.map(|settled| settled.attempt).collect();
        let held = self.roster.get(daemon).map(|daemon| &daemon.held);
        let missing: Vec<AttemptId> = held
            .map(|held| held.difference(&kept).copied().collect())
            .unwrap_or_default();
        for attempt in missing {
            self.apply_to_attempt(attempt, Event::Missing, turn);
        }
    }

    pub(crate) fn session_closed(&mut self, session: SessionId, turn: &mut Turn<'_>) {
        if let Some(daemon) = self.roster.closed(session, turn.now.at) {
            self.was_seen(daemon, turn.now);
        }
    }

    /// What an operator said while it was away, and what it still believes though it was taken back.
    fn tell_mark(&self, hello: &Hello, session: SessionId, turn: &mut Turn<'_>) {
        let record = self.daemons.get(hello.daemon);
        let drained = record.is_some_and(|record| record.drained.is_some());
        if drained || hello.draining {
            let withdrawn = !drained;
            turn.tell(After::Everything, session, Downstream::Drain { withdrawn });
        }
    }

    /// Applies an event to a leased attempt, wherever it is.
    pub(crate) fn apply_to_attempt(
        &mut self,
        attempt: AttemptId,
        event: Event,
        turn: &mut Turn<'_>,
    ) {
        let Some(task) = self.attempts.get(&attempt).copied() else {
            return;
        };
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        if live.newest().id == attempt {
            self.apply(&mut live, event, None, turn);
        }
        self.keep(live, turn);
    }

    pub(crate) fn delivery_failed(
        &mut self,
        session: SessionId,
        attempt: AttemptId,
        turn: &mut Turn<'_>,
    ) {
        let holder = self.roster.holder_of(attempt);
        let current = self.roster.daemon_of(session);
        // The stream may be over by now; another daemon's word is not its holder's.
        if holder.is_some() && (current.is_none() || current == holder) {
            self.apply_to_attempt(attempt, Event::DeliveryFailed, turn);
        }
    }

    /// The shortest lease that it holds sets the pace.
    pub(crate) fn heartbeat_of(&self, daemon: DaemonId) -> u64 {
        let held = self
            .roster
            .get(daemon)
            .into_iter()
            .flat_map(|daemon| &daemon.held);
        let tasks = held.filter_map(|attempt| self.tasks.get(self.attempts.get(attempt)?));
        let shortest = tasks.map(|live| live.spec.lease_ttl_ms).min();
        shortest.map_or(self.config.heartbeat_ms, |ttl| {
            self.config.heartbeat_for(ttl)
        })
    }

    fn remember_daemon(&mut self, hello: &Hello, turn: &mut Turn<'_>) {
        let known = self.daemons.get(hello.daemon);
        let record = Arc::new(DaemonRecord {
            daemon: hello.daemon,
            scope: hello.scope.clone(),
            token: hello.token,
            name: hello.name.clone(),
            version: hello.version.clone(),
            platform: hello.platform.clone(),
            boot_id: hello.boot_id.clone(),
            slots: hello.slots,
            labels: hello.labels.clone(),
            capabilities: hello.capabilities.clone(),
            agents: hello.agents.clone(),
            workspaces: hello.workspaces.clone(),
            drained: known.and_then(|known| known.drained.clone()),
            first_seen: known.map_or(turn.now.wall, |known| known.first_seen),
            last_seen: turn.now.wall,
        });
        self.daemons.insert(Arc::clone(&record));
        turn.write(Write::PutDaemon(record));
    }

    /// Whatever was leased to this machine under another boot is dead; a result that it had on disk still counts.
    fn machine_booted(&mut self, hello: &Hello, active: &[ActiveAttempt], turn: &mut Turn<'_>) {
        let incarnation = self.config.incarnation;
        let finished = |attempt: AttemptId| {
            active.iter().any(|a| {
                let heard = a.re.attempt == attempt && a.re.incarnation == incarnation;
                heard && a.state == ActiveState::Finished
            })
        };
        for fence in self.fences.booted(hello.daemon, &hello.boot_id) {
            match fence.guard {
                Guard::Until(_) => self.fence_fell(&fence, turn),
                Guard::Leased if finished(fence.attempt) => self.fences.raise(fence),
                Guard::Leased => {
                    self.apply_to_attempt(fence.attempt, Event::Rebooted, turn);
                    placement::fence_fell(&mut self.queue, &fence);
                }
            }
        }
    }

    fn settle(
        &mut self,
        session: SessionId,
        hello: &Hello,
        active: ActiveAttempt,
        turn: &mut Turn<'_>,
    ) -> Verdict {
        let re = active.re;
        if re.incarnation != self.config.incarnation && !mutant!(IncarnationIgnored) {
            return kill_unknown(Rejection::StaleIncarnation);
        }
        let from = From {
            session,
            daemon: hello.daemon,
            re,
            control_seq: 0,
        };
        if let Some(mut live) = self.tasks.remove(&re.task) {
            let verdict = match check_owner(&live, from, active.proof.as_ref(), turn) {
                Ok(()) => self.settle_live(&mut live, hello, &active, turn),
                Err(code) => kill_unknown(code),
            };
            self.keep(live, turn);
            return verdict;
        }
        match active.looked.clone() {
            Looked::Finished(Finished { record, spec }) => {
                let live = Live::new(spec, record, TimerSet::default());
                match check_owner(&live, from, active.proof.as_ref(), turn) {
                    Ok(()) => settle_ended(&live, &active),
                    Err(code) => kill_unknown(code),
                }
            }
            Looked::Open | Looked::Missing => kill_unknown(Rejection::UnknownAttempt),
        }
    }

    fn settle_live(
        &mut self,
        live: &mut Live,
        hello: &Hello,
        active: &ActiveAttempt,
        turn: &mut Turn<'_>,
    ) -> Verdict {
        let current =
            |live: &Live| live.newest().id == active.re.attempt && live.is_newest_leased();
        if current(live) && live.lease_ends().is_some_and(|ends| ends <= turn.now.at) {
            self.apply(live, Event::Expired(TimerKey::Lease), None, turn);
        }
        if !current(live) {
            return settle_ended(live, active);
        }
        let held_by = live.newest().daemon();
        if held_by.is_some_and(|holder| holder.instance != hello.instance)
            && let Some(Holder::Daemon(holder)) = &mut live.newest_mut().holder
        {
            holder.instance = hello.instance;
        }
        self.await_last_word(live, turn.now.at);
        match (active.state, &active.proof) {
            (ActiveState::Running, Some(_)) => self.go_on(live, turn),
            // Nothing of it runs, so it need not be in a heartbeat while its last words are replayed.
            (ActiveState::Finished, _) => {
                self.renew_from_now(live, turn);
                live.confirmed_at = None;
                Verdict::Adopt {
                    acked: live.written_seq,
                }
            }
            // It is in no heartbeat while its shim does not answer, and without proof nothing is renewed: the lease
            // alone bounds it.
            (ActiveState::Unreachable, _) | (ActiveState::Running, None) => {
                live.confirmed_at = None;
                Verdict::Keep {
                    acked: live.written_seq,
                    granted_ms: None,
                }
            }
        }
    }

    /// It was ending by itself when the stream broke: what it has to say is replayed, and gets the full time again.
    fn await_last_word(&self, live: &mut Live, now: Moment) {
        if live.newest().state == (State::CleaningUp { pending: None }) {
            let limits = Live::limits(&live.spec, &self.config);
            live.timers.disarm(&TimerKey::CleanupTerm);
            live.timers.on_fact(&Fact::CancelSent, now, &limits);
        }
    }

    fn go_on(&mut self, live: &mut Live, turn: &mut Turn<'_>) -> Verdict {
        if live.newest().state == State::Offered {
            self.apply(live, Event::Kept, None, turn);
        }
        live.confirmed_at = Some(turn.now.at);
        if !mutant!(KeepNotRenewed) {
            self.renew_from_now(live, turn);
        }
        let granted_ms = Some(live.spec.lease_ttl_ms);
        Verdict::Keep {
            acked: live.written_seq,
            granted_ms,
        }
    }

    fn renew_from_now(&self, live: &mut Live, turn: &Turn<'_>) {
        let until = turn.now.at + live.spec.lease_ttl_ms;
        live.renew(until, &self.config, turn.now.at);
    }

    /// What the daemon may have missed: that it should stop, and answers that it has not confirmed.
    fn say_again(&mut self, task: TaskId, session: SessionId, turn: &mut Turn<'_>) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        if matches!(live.newest().state, State::CleaningUp { pending: Some(_) }) {
            let limits = Live::limits(&live.spec, &self.config);
            live.timers.on_fact(&Fact::CancelSent, turn.now.at, &limits);
            self.tell_cancel(&live, turn);
        }
        for input in &live.newest().inputs {
            if let InputState::Answered(answer) = &input.state {
                let message = self.answer_message(&live, input, answer);
                turn.tell(After::Task(task), session, message);
            }
        }
        self.keep(live, turn);
    }
}

/// Its end is wanted if it has one to tell: adopted, or kept as evidence. What still runs is killed.
fn settle_ended(live: &Live, active: &ActiveAttempt) -> Verdict {
    let attempt = live.record().attempt(active.re.attempt);
    let acked = attempt.map_or(0, |attempt| attempt.control_seq);
    let code = if live.record().state.is_terminal() {
        Rejection::TaskTerminal
    } else {
        Rejection::StaleAttempt
    };
    match active.state {
        ActiveState::Finished => Verdict::Adopt { acked },
        ActiveState::Running | ActiveState::Unreachable => Verdict::Kill {
            code,
            acked: Some(acked),
        },
    }
}

/// Of what is not this daemon's nothing is wanted, a receipt neither.
fn kill_unknown(code: Rejection) -> Verdict {
    Verdict::Kill { code, acked: None }
}

fn close(session: SessionId, reason: CloseReason, turn: &mut Turn<'_>) {
    turn.send(After::Nothing, Send::CloseSession { session, reason });
}
