//! What a simulated daemon does with each message of the relay.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_core::effects::{Dispatch, Downstream, Renewal, Settlement, Verdict};
use baton_core::id::AttemptId;
use baton_core::input::{CanceledBody, FrameBody, FrameRef, LeaseToken};
use baton_core::record::{Phase, RejectCode};
use baton_core::reject::Rejection;

use crate::agent::{Plan, gone};
use crate::daemon::{Held, Kill};
use crate::links::Down;
use crate::world::{Event, World};

impl World {
    pub(crate) fn daemon_hears(&mut self, conn: usize, item: Down) {
        let index = self.conns[conn].daemon;
        if !self.conns[conn].daemon_open || self.daemons[index].conn != Some(conn) {
            return;
        }
        match item {
            Down::Message(message) => {
                self.note(|| {
                    format!(
                        "d{index} <- {}",
                        crate::shown::short(&format!("{message:?}"))
                    )
                });
                self.obey(index, conn, message);
            }
            Down::End => {
                self.conns[conn].daemon_open = false;
                self.lost_conn(index);
            }
        }
    }

    fn obey(&mut self, index: usize, conn: usize, message: Downstream) {
        match message {
            Downstream::Welcome {
                heartbeat_ms,
                settlements,
            } => {
                self.welcomed(index, conn, heartbeat_ms, settlements);
            }
            Downstream::HeartbeatAck {
                seq,
                heartbeat_ms,
                results,
            } => {
                self.beat_answered(index, seq, heartbeat_ms, results);
            }
            Downstream::HoldAck { request, results } => self.hold_answered(index, request, results),
            Downstream::Ack {
                attempt,
                control_seq,
            } => self.acknowledged(index, attempt, control_seq),
            Downstream::Dispatch(dispatch) => self.dispatched(index, conn, *dispatch),
            Downstream::LeaseConfirmed { to, granted_ms, .. } => {
                self.lease_confirmed(index, to.attempt, granted_ms);
            }
            Downstream::Cancel { to, grace_ms, .. } => self.canceled(index, to.attempt, grace_ms),
            Downstream::Answer {
                to,
                input,
                decision,
                ..
            } => {
                let given = *self.daemons[index].answers.entry(input).or_insert(decision);
                assert_eq!(given, decision, "S8: {input} was answered twice");
                let held = self.daemons[index].held.get_mut(&to.attempt);
                if let Some(held) = held.filter(|h| h.asked == Some(input) && !h.ended && h.alive) {
                    held.asked = None;
                    self.say(index, to.attempt, FrameBody::InputReceived { input });
                }
            }
            Downstream::Abandon { attempt, .. } => self.give_up(index, attempt),
            Downstream::FrameRejected {
                attempt,
                control_seq,
                code,
                ..
            } => {
                if self.is_ghost(index, attempt, control_seq) {
                    return;
                }
                assert!(
                    code != Rejection::Gap,
                    "S4: frame {control_seq} of {attempt} follows nothing that the relay has"
                );
                self.refused(index, attempt, control_seq);
            }
            Downstream::Drain { withdrawn } => self.daemons[index].draining = !withdrawn,
        }
    }

    fn welcomed(
        &mut self,
        index: usize,
        conn: usize,
        heartbeat_ms: u64,
        settlements: Vec<Settlement>,
    ) {
        let daemon = &mut self.daemons[index];
        daemon.welcomed = true;
        daemon.beat_ms = heartbeat_ms;
        for Settlement { attempt, verdict } in settlements {
            match verdict {
                Verdict::Keep { acked, granted_ms } => {
                    self.counts.settled_keep += 1;
                    self.counts.settled_unrenewed += u64::from(granted_ms.is_none());
                    self.kept(index, attempt, acked, granted_ms);
                }
                Verdict::Adopt { acked } => {
                    self.counts.settled_adopt += 1;
                    self.acknowledged(index, attempt, acked);
                    self.flush(index, attempt);
                }
                Verdict::Kill { acked, .. } => {
                    self.counts.settled_kill += 1;
                    if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
                        held.unwanted |= acked.is_none();
                    }
                    self.give_up(index, attempt);
                }
            }
        }
        self.at(
            self.now + heartbeat_ms,
            Event::Beat {
                daemon: index,
                conn,
            },
        );
    }

    fn kept(&mut self, index: usize, attempt: AttemptId, acked: u64, granted_ms: Option<u64>) {
        self.acknowledged(index, attempt, acked);
        if let Some(granted) = granted_ms {
            let from = self.daemons[index].hello_at;
            self.renewed(index, attempt, from + granted);
            self.start(index, attempt);
        }
        self.flush(index, attempt);
    }

    fn beat_answered(
        &mut self,
        index: usize,
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, Renewal)>,
    ) {
        let daemon = &mut self.daemons[index];
        daemon.beat_ms = heartbeat_ms;
        let sent = daemon
            .beats
            .iter()
            .find(|(known, _)| *known == seq)
            .map(|(_, at)| *at);
        daemon.beats.retain(|(known, _)| *known > seq);
        let Some(sent) = sent else {
            return;
        };
        for (attempt, renewal) in results {
            match renewal {
                Renewal::Renewed { granted_ms, .. } => {
                    self.renewed(index, attempt, sent + granted_ms)
                }
                Renewal::Revoked { .. } => self.give_up(index, attempt),
            }
        }
    }

    /// The hold is durable: now it may restart, and its processes go on alone.
    fn hold_answered(&mut self, index: usize, request: u64, results: Vec<(AttemptId, Renewal)>) {
        let Some(hold) = self.daemons[index]
            .hold
            .filter(|hold| hold.request == request)
        else {
            return;
        };
        self.counts.holds_granted += 1;
        for (attempt, renewal) in results {
            match renewal {
                Renewal::Renewed { granted_ms, .. } => {
                    self.renewed(index, attempt, hold.at + granted_ms)
                }
                Renewal::Revoked { .. } => self.give_up(index, attempt),
            }
        }
        self.crash_daemon(index, false);
    }

    /// The local limit moves, never back.
    fn renewed(&mut self, index: usize, attempt: AttemptId, limit: u64) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if held.ended || limit <= held.limit {
            return;
        }
        held.limit = limit;
        self.at(
            limit,
            Event::Limit {
                daemon: index,
                attempt,
            },
        );
    }

    fn acknowledged(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.acked(control_seq);
        if held.is_over() {
            self.daemons[index].held.remove(&attempt);
        }
    }

    /// Used up, and kept until it is acknowledged; but where it was the last word there is nothing left to say.
    fn refused(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let held = self.daemons[index].held.get(&attempt);
        if held.is_some_and(|held| held.ended && !held.alive && held.seq == control_seq) {
            self.daemons[index].held.remove(&attempt);
        }
    }

    fn dispatched(&mut self, index: usize, conn: usize, dispatch: Dispatch) {
        let attempt = dispatch.to.attempt;
        assert!(
            self.dispatched.insert(attempt),
            "S2: {attempt} was dispatched twice"
        );
        let plan = Plan::of(self, &dispatch.spec);
        if plan == Plan::Ignore {
            return;
        }
        let re = FrameRef {
            task: dispatch.to.task,
            attempt,
            number: dispatch.to.number,
            incarnation: self.conns[conn].incarnation,
        };
        let held = Held {
            re,
            token: LeaseToken(dispatch.token.0),
            spec: Arc::clone(&dispatch.spec),
            plan,
            stage: 0,
            alive: false,
            confirmed: false,
            accepted_at: self.now,
            limit: 0,
            killing: None,
            ended: false,
            reachable: true,
            restored: false,
            unwanted: false,
            tool: None,
            asked: None,
            output: 0,
            outbox: VecDeque::new(),
            sent: 0,
            seq: 0,
        };
        self.daemons[index].held.insert(attempt, held);
        if self.daemons[index].full_until > self.now {
            self.counts.machine_refusals += 1;
            return self.reject(index, attempt, RejectCode::DiskFull);
        }
        if self.is_place_taken(index, attempt) {
            self.counts.place_refusals += 1;
            return self.reject(index, attempt, RejectCode::WorkspaceBusy);
        }
        if plan == Plan::Reject {
            return self.reject(index, attempt, RejectCode::parse("bad_cwd"));
        }
        self.say(index, attempt, FrameBody::Accepted);
        self.at(
            self.now + dispatch.accept_ms,
            Event::Unconfirmed {
                daemon: index,
                attempt,
            },
        );
    }

    /// Another attempt of the daemon is in the one shared workspace that there is here.
    fn is_place_taken(&self, index: usize, attempt: AttemptId) -> bool {
        let held = &self.daemons[index].held;
        let shares = |held: &Held| held.spec.workspace.is_some() && !held.ended;
        let wants = held.get(&attempt).is_some_and(shares);
        wants
            && held
                .iter()
                .any(|(id, other)| *id != attempt && shares(other))
    }

    pub(crate) fn reject(&mut self, index: usize, attempt: AttemptId, code: RejectCode) {
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.ended = true;
        }
        self.say(
            index,
            attempt,
            FrameBody::Rejected {
                code,
                message: None,
            },
        );
    }

    pub(crate) fn not_confirmed(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].held.get(&attempt);
        if held.is_some_and(|held| !held.confirmed && !held.ended) {
            self.reject(index, attempt, RejectCode::parse("not_confirmed"));
        }
    }

    fn lease_confirmed(&mut self, index: usize, attempt: AttemptId, granted_ms: u64) {
        let Some(held) = self.daemons[index].held.get(&attempt) else {
            return;
        };
        let from = held.accepted_at;
        self.renewed(index, attempt, from + granted_ms);
        self.start(index, attempt);
    }

    fn canceled(&mut self, index: usize, attempt: AttemptId, grace_ms: u64) {
        let Some(held) = self.daemons[index].held.get(&attempt) else {
            return;
        };
        if held.ended || held.killing.is_some() || !held.reachable {
            return;
        }
        if held.alive {
            self.say(
                index,
                attempt,
                FrameBody::Phase {
                    phase: Phase::CleanupStarted,
                    message: None,
                },
            );
            let slow = self.rng.chance(30);
            let takes = if slow {
                self.rng.between(grace_ms, grace_ms * 4)
            } else {
                self.rng.below(grace_ms)
            };
            return self.kill(index, attempt, Kill::Canceled, takes);
        }
        let body = CanceledBody {
            termination: gone(),
            in_lease: true,
            ..CanceledBody::default()
        };
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.ended = true;
        }
        self.say(index, attempt, FrameBody::Canceled(body));
    }

    /// Nothing of it counts any more: its processes must go, and then it is forgotten.
    fn give_up(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if held.alive {
            let takes = self.rng.below(6_000);
            return self.kill(index, attempt, Kill::GivenUp, takes);
        }
        // A result that is on its way may still be adopted; anything else is forgotten.
        if !held.ended || held.unwanted {
            self.daemons[index].held.remove(&attempt);
        }
    }
}
