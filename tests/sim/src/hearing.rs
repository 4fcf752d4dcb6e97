//! What a simulated daemon does with each message of the relay.

use std::sync::Arc;
use std::time::Duration;

use baton_core::contract::Unmet;
use baton_core::effects::{Dispatch, Downstream, Settlement, Verdict};
use baton_core::id::AttemptId;
use baton_core::input::{CanceledBody, FrameBody, FrameRef, LeaseToken};
use baton_core::record::{Phase, RejectCode};
use baton_core::reject::Rejection;

use baton_daemon_core::heartbeats::Heartbeats;
use baton_daemon_core::outbox::Acked;

use crate::agent::{Plan, gone};
use crate::grants::Grant;
use crate::held::{Held, Kill, Offer, Sayings, moment};
use crate::links::Down;
use crate::world::{Event, World};

/// A frame that the relay would not have.
struct Refusal {
    attempt: AttemptId,
    control_seq: u64,
    code: Rejection,
    expected: Option<u64>,
    unmet: Vec<Unmet>,
}

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
            Down::OutputAck { attempt, offset } => {
                let acked = Acked {
                    control_seq: 0,
                    output_offset: offset,
                };
                self.acknowledged(index, attempt, acked);
            }
            Down::Offsets(offsets) => self.daemons[index].offsets = offsets,
            Down::End => {
                self.conns[conn].daemon_open = false;
                self.lost_conn(index);
            }
        }
    }

    fn obey(&mut self, index: usize, conn: usize, message: Downstream) {
        self.saw_message(index, &message);
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
            } => {
                let acked = Acked {
                    control_seq,
                    output_offset: 0,
                };
                self.acknowledged(index, attempt, acked);
            }
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
                expected,
                unmet,
            } => {
                let refusal = Refusal {
                    attempt,
                    control_seq,
                    code,
                    expected,
                    unmet,
                };
                self.on_refusal(index, &refusal);
            }
            Downstream::Drain { withdrawn } => self.daemons[index].draining = !withdrawn,
        }
    }

    fn on_refusal(&mut self, index: usize, refusal: &Refusal) {
        let Refusal {
            attempt,
            control_seq,
            code,
            expected,
            ref unmet,
        } = *refusal;
        if self.is_ghost(index, attempt, control_seq) {
            return;
        }
        if code == Rejection::Gap && self.starts_again(index, attempt, expected) {
            return;
        }
        assert!(
            code != Rejection::Gap,
            "S4: frame {control_seq} of {attempt} follows nothing that the relay has"
        );
        assert!(
            code != Rejection::OutputGap,
            "S10: output before the last word of {attempt} is missing"
        );
        if code == Rejection::ContractUnmet {
            return self.completion_refused(index, attempt, control_seq, unmet);
        }
        self.refused(index, attempt, control_seq);
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
        daemon.beats = Heartbeats::new(Duration::from_millis(heartbeat_ms), moment(self.now));
        for held in daemon.held.values_mut() {
            held.outbox.rewind();
        }
        for Settlement { attempt, verdict } in settlements {
            match verdict {
                Verdict::Keep { acked, granted_ms } => {
                    self.counts.settled_keep += 1;
                    self.counts.settled_unrenewed += u64::from(granted_ms.is_none());
                    self.kept(index, attempt, acked, granted_ms);
                }
                Verdict::Adopt { acked } => {
                    self.counts.settled_adopt += 1;
                    self.settled(index, attempt, acked);
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
            self.now,
            Event::Beat {
                daemon: index,
                conn,
            },
        );
    }

    /// The relay's knowledge of an attempt on a new stream: everything beyond it goes out again.
    fn settled(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let daemon = &mut self.daemons[index];
        let offset = daemon.offsets.iter().find(|(known, _)| *known == attempt);
        let output_offset = offset.map_or(0, |(_, offset)| *offset);
        let Some(held) = daemon.held.get_mut(&attempt) else {
            return;
        };
        held.settled(Acked {
            control_seq,
            output_offset,
        });
        if held.is_over() {
            return self.told(index, attempt);
        }
        self.fold(index, attempt);
    }

    fn kept(&mut self, index: usize, attempt: AttemptId, acked: u64, granted_ms: Option<u64>) {
        self.settled(index, attempt, acked);
        if let Some(granted_ms) = granted_ms {
            let sent = self.daemons[index].hello_at;
            self.granted(index, attempt, Grant::since(sent, granted_ms));
            self.start(index, attempt);
        }
    }

    fn acknowledged(&mut self, index: usize, attempt: AttemptId, acked: Acked) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.acked(acked);
        if held.is_over() {
            self.told(index, attempt);
        }
    }

    /// S4: the relay has all of an attempt's words in its keeping, so it knows that the attempt is over.
    fn told(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.remove(&attempt) else {
            return;
        };
        let known = self.relay.store.view.attempt(held.re.task, attempt);
        let same = held.re.incarnation == self.relay.incarnation() && self.relay.core.is_some();
        let leased = known.is_some_and(|known| known.state.is_leased());
        assert!(
            !(same && leased),
            "S4: the last word of {attempt} is acknowledged, and it is leased all the same"
        );
    }

    /// Its frames were dropped when the relay took it away: the receipt takes their place.
    fn starts_again(&mut self, index: usize, attempt: AttemptId, expected: Option<u64>) -> bool {
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.fenced) else {
            return false;
        };
        if let Some(expected) = expected.filter(|_| held.ended && !held.alive) {
            held.drop_words();
            held.outbox.restart_at(expected);
            self.report_death(index, attempt);
        }
        true
    }

    /// Used up, and kept until it is acknowledged; but where it was the last word there is nothing left to say.
    fn refused(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let held = self.daemons[index].held.get(&attempt);
        if held.is_some_and(|held| {
            held.ended && !held.alive && held.outbox.last_control_seq() == control_seq
        }) {
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
        let (limit, kept) = (self.options.outbox_limit, self.options.disk_outbox);
        let cleanup = self.rng.pick(&[300, 400, 2_000]).unwrap_or(400);
        let held = Held::new(Offer {
            re,
            token: LeaseToken(dispatch.token.0),
            spec: Arc::clone(&dispatch.spec),
            plan,
            at: self.now,
            cleanup_term: Duration::from_millis(cleanup),
            outbox: if kept {
                Sayings::new(limit)
            } else {
                Sayings::in_memory(limit)
            },
        });
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
        let grant = Grant::since(held.accepted_at, granted_ms);
        self.granted(index, attempt, grant);
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
                    deadline: None,
                },
            );
            let slow = self.rng.chance(30);
            let takes = if slow {
                self.rng.between(grace_ms, grace_ms * 4)
            } else {
                self.rng.below(grace_ms)
            };
            return self.kill(index, attempt, Kill::Canceled, takes, grace_ms);
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
    pub(crate) fn give_up(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if held.alive {
            held.fenced = true;
            held.drop_words();
            let grace = u64::try_from(held.cleanup_term.as_millis()).unwrap_or(0);
            let takes = self.rng.below(6_000);
            return self.kill(index, attempt, Kill::GivenUp, takes, grace);
        }
        // A result that is on its way may still be adopted; anything else is forgotten.
        if !held.ended || held.unwanted {
            self.daemons[index].held.remove(&attempt);
        } else {
            held.keep_last_word();
            self.fold(index, attempt);
        }
    }
}
