//! Handles each message of the relay in a simulated daemon.

use std::sync::Arc;
use std::time::Duration;

use baton_core::goal::completion_contract::UnmetRequirement;
use baton_core::ids::{AttemptId, InputId};
use baton_core::io::effects::{
    AttemptDispatch, AttemptSettlement, DaemonMessage, SettlementVerdict,
};
use baton_core::io::rejection::Rejection;
use baton_core::io::session_input::{CanceledBody, FrameBody, FrameRef, LeaseToken};
use baton_core::record::{InputDecision, LifecyclePhase, RejectCode};

use baton_daemon_core::heartbeat_tracker::HeartbeatTracker;
use baton_daemon_core::outbox::AckedPosition;

use crate::daemon::agent_process::{AgentPlan, confirmed_termination};
use crate::daemon::lease_grant::CountedLeaseGrant;
use crate::daemon::sim_attempt::{AttemptOffer, KillReason, SimAttempt, SimOutbox, monotonic_time};
use crate::simulation::{ScheduledEvent, Simulation};
use crate::stream::DownstreamItem;

/// A frame that the relay rejected.
struct FrameRefusal {
    attempt: AttemptId,
    control_seq: u64,
    code: Rejection,
    expected: Option<u64>,
    unmet: Vec<UnmetRequirement>,
}

impl Simulation {
    pub(crate) fn deliver_to_daemon(&mut self, conn: usize, item: DownstreamItem) {
        let index = self.streams[conn].daemon;
        if !self.streams[conn].daemon_open || self.daemons[index].stream != Some(conn) {
            return;
        }
        match item {
            DownstreamItem::Message(message) => {
                self.add_trace(|| {
                    format!(
                        "d{index} <- {}",
                        crate::report::trace_text::truncate_text(&format!("{message:?}"))
                    )
                });
                self.handle_relay_message(index, conn, message);
            }
            DownstreamItem::OutputAck { attempt, offset } => {
                let acked = AckedPosition {
                    control_seq: 0,
                    output_offset: offset,
                };
                self.handle_frame_ack(index, attempt, acked);
            }
            DownstreamItem::Offsets(offsets) => self.daemons[index].relay_output_offsets = offsets,
            DownstreamItem::End => {
                self.streams[conn].daemon_open = false;
                self.handle_lost_stream(index);
            }
        }
    }

    fn handle_relay_message(&mut self, index: usize, conn: usize, message: DaemonMessage) {
        self.record_daemon_message(index, &message);
        match message {
            DaemonMessage::Welcome {
                heartbeat_ms,
                settlements,
            } => {
                self.handle_welcome(index, conn, heartbeat_ms, settlements);
            }
            DaemonMessage::HeartbeatAck {
                seq,
                heartbeat_ms,
                results,
            } => {
                self.handle_heartbeat_ack(index, seq, heartbeat_ms, results);
            }
            DaemonMessage::ExtensionAck { request, results } => {
                self.handle_lease_extension_ack(index, request, results)
            }
            DaemonMessage::Ack {
                attempt,
                control_seq,
            } => {
                let acked = AckedPosition {
                    control_seq,
                    output_offset: 0,
                };
                self.handle_frame_ack(index, attempt, acked);
            }
            DaemonMessage::Dispatch(dispatch) => self.handle_dispatch(index, conn, *dispatch),
            DaemonMessage::LeaseConfirmed { to, granted_ms, .. } => {
                self.handle_lease_confirmed(index, to.attempt, granted_ms);
            }
            DaemonMessage::Cancel { to, grace_ms, .. } => {
                self.handle_cancel(index, to.attempt, grace_ms)
            }
            DaemonMessage::Answer {
                to,
                input,
                decision,
                ..
            } => {
                self.handle_answer(index, to.attempt, input, decision);
            }
            DaemonMessage::Abandon { attempt, .. } => self.abandon_attempt(index, attempt),
            DaemonMessage::FrameRejected {
                attempt,
                control_seq,
                code,
                expected,
                unmet,
            } => {
                let refusal = FrameRefusal {
                    attempt,
                    control_seq,
                    code,
                    expected,
                    unmet,
                };
                self.handle_frame_refusal(index, &refusal);
            }
            DaemonMessage::Drain { withdrawn } => self.daemons[index].draining = !withdrawn,
        }
    }

    fn handle_answer(
        &mut self,
        index: usize,
        attempt: AttemptId,
        input: InputId,
        decision: InputDecision,
    ) {
        let given = *self.daemons[index]
            .input_answers
            .entry(input)
            .or_insert(decision);
        assert_eq!(given, decision, "S8: {input} was answered twice");
        let held = self.daemons[index].attempts.get_mut(&attempt);
        if let Some(held) =
            held.filter(|h| h.open_input == Some(input) && !h.ended && h.processes_alive)
        {
            held.open_input = None;
            self.send_frame(index, attempt, FrameBody::InputReceived { input });
        }
    }

    fn handle_frame_refusal(&mut self, index: usize, refusal: &FrameRefusal) {
        let FrameRefusal {
            attempt,
            control_seq,
            code,
            expected,
            ref unmet,
        } = *refusal;
        if self.is_replayed_frame(index, attempt, control_seq) {
            return;
        }
        if code == Rejection::Gap && self.restart_control_seq(index, attempt, expected) {
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
            return self.handle_refused_completion(index, attempt, control_seq, unmet);
        }
        self.drop_refused_attempt(index, attempt, control_seq);
    }

    fn handle_welcome(
        &mut self,
        index: usize,
        conn: usize,
        heartbeat_ms: u64,
        settlements: Vec<AttemptSettlement>,
    ) {
        let daemon = &mut self.daemons[index];
        daemon.welcomed = true;
        daemon.heartbeats = HeartbeatTracker::new(
            Duration::from_millis(heartbeat_ms),
            monotonic_time(self.now),
        );
        for held in daemon.attempts.values_mut() {
            held.outbox.resend_unacked();
        }
        for AttemptSettlement { attempt, verdict } in settlements {
            match verdict {
                SettlementVerdict::Keep { acked, granted_ms } => {
                    self.counts.settled_keep += 1;
                    self.counts.settled_unrenewed += u64::from(granted_ms.is_none());
                    self.keep_attempt(index, attempt, acked, granted_ms);
                }
                SettlementVerdict::Adopt { acked } => {
                    self.counts.settled_adopt += 1;
                    self.settle_attempt(index, attempt, acked);
                }
                SettlementVerdict::Kill { acked, .. } => {
                    self.counts.settled_kill += 1;
                    if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
                        held.receipt_unwanted |= acked.is_none();
                    }
                    self.abandon_attempt(index, attempt);
                }
            }
        }
        self.schedule(
            self.now,
            ScheduledEvent::DaemonHeartbeat {
                daemon: index,
                conn,
            },
        );
    }

    /// The relay's positions of an attempt on a new stream: everything after them is sent
    /// again.
    fn settle_attempt(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let daemon = &mut self.daemons[index];
        let offset = daemon
            .relay_output_offsets
            .iter()
            .find(|(known, _)| *known == attempt);
        let output_offset = offset.map_or(0, |(_, offset)| *offset);
        let Some(held) = daemon.attempts.get_mut(&attempt) else {
            return;
        };
        held.apply_settlement(AckedPosition {
            control_seq,
            output_offset,
        });
        if held.is_finished() {
            return self.remove_acked_attempt(index, attempt);
        }
        self.forward_transcript(index, attempt);
    }

    fn keep_attempt(
        &mut self,
        index: usize,
        attempt: AttemptId,
        acked: u64,
        granted_ms: Option<u64>,
    ) {
        self.settle_attempt(index, attempt, acked);
        if let Some(granted_ms) = granted_ms {
            let sent = self.daemons[index].hello_sent_at;
            self.apply_grant(
                index,
                attempt,
                CountedLeaseGrant::from_send_time(sent, granted_ms),
            );
            self.start_process(index, attempt);
        }
    }

    fn handle_frame_ack(&mut self, index: usize, attempt: AttemptId, acked: AckedPosition) {
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        held.record_ack(acked);
        if held.is_finished() {
            self.remove_acked_attempt(index, attempt);
        }
    }

    /// S4: the relay has acknowledged all frames of an attempt, so it has its end.
    fn remove_acked_attempt(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.remove(&attempt) else {
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

    /// Its frames were dropped when the relay revoked it: the receipt takes their number.
    fn restart_control_seq(
        &mut self,
        index: usize,
        attempt: AttemptId,
        expected: Option<u64>,
    ) -> bool {
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.fenced) else {
            return false;
        };
        if let Some(expected) = expected.filter(|_| held.ended && !held.processes_alive) {
            held.discard_unacked();
            held.outbox.restart_at(expected);
            self.report_termination(index, attempt);
        }
        true
    }

    /// The rejected frame is used up, and stored until it is acknowledged. If it was the last
    /// one, nothing is left to send.
    fn drop_refused_attempt(&mut self, index: usize, attempt: AttemptId, control_seq: u64) {
        let held = self.daemons[index].attempts.get(&attempt);
        if held.is_some_and(|held| {
            held.ended && !held.processes_alive && held.outbox.last_control_seq() == control_seq
        }) {
            self.daemons[index].attempts.remove(&attempt);
        }
    }

    fn handle_dispatch(&mut self, index: usize, conn: usize, dispatch: AttemptDispatch) {
        let attempt = dispatch.to.attempt;
        assert!(
            self.dispatched.insert(attempt),
            "S2: {attempt} was dispatched twice"
        );
        let plan = AgentPlan::choose_plan(self, &dispatch.spec);
        if plan == AgentPlan::Ignore {
            return;
        }
        let re = FrameRef {
            task: dispatch.to.task,
            attempt,
            number: dispatch.to.number,
            incarnation: self.streams[conn].incarnation,
        };
        let (limit, kept) = (self.options.outbox_limit, self.options.disk_outbox);
        let cleanup = self.rng.pick(&[300, 400, 2_000]).unwrap_or(400);
        let held = SimAttempt::new(AttemptOffer {
            re,
            token: LeaseToken(dispatch.token.0),
            spec: Arc::clone(&dispatch.spec),
            plan,
            at: self.now,
            cleanup_term: Duration::from_millis(cleanup),
            outbox: if kept {
                SimOutbox::new(limit)
            } else {
                SimOutbox::in_memory(limit)
            },
        });
        self.daemons[index].attempts.insert(attempt, held);
        if self.daemons[index].disk_full_until > self.now {
            self.counts.machine_refusals += 1;
            return self.reject_dispatch(index, attempt, RejectCode::DiskFull);
        }
        if self.is_workspace_busy(index, attempt) {
            self.counts.place_refusals += 1;
            return self.reject_dispatch(index, attempt, RejectCode::WorkspaceBusy);
        }
        if plan == AgentPlan::Reject {
            return self.reject_dispatch(index, attempt, RejectCode::parse("bad_cwd"));
        }
        self.send_frame(index, attempt, FrameBody::Accepted);
        self.schedule(
            self.now + dispatch.accept_ms,
            ScheduledEvent::ConfirmationTimeout {
                daemon: index,
                attempt,
            },
        );
    }

    /// Another attempt of the daemon uses the only shared workspace of the simulation.
    fn is_workspace_busy(&self, index: usize, attempt: AttemptId) -> bool {
        let held = &self.daemons[index].attempts;
        let shares = |held: &SimAttempt| held.spec.workspace.is_some() && !held.ended;
        let wants = held.get(&attempt).is_some_and(shares);
        wants
            && held
                .iter()
                .any(|(id, other)| *id != attempt && shares(other))
    }

    pub(crate) fn reject_dispatch(&mut self, index: usize, attempt: AttemptId, code: RejectCode) {
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.ended = true;
        }
        self.send_frame(
            index,
            attempt,
            FrameBody::Rejected {
                code,
                message: None,
            },
        );
    }

    pub(crate) fn handle_confirmation_timeout(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].attempts.get(&attempt);
        if held.is_some_and(|held| !held.confirmed && !held.ended) {
            self.reject_dispatch(index, attempt, RejectCode::parse("not_confirmed"));
        }
    }

    fn handle_lease_confirmed(&mut self, index: usize, attempt: AttemptId, granted_ms: u64) {
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        let grant = CountedLeaseGrant::from_send_time(held.accepted_at, granted_ms);
        self.apply_grant(index, attempt, grant);
        self.start_process(index, attempt);
    }

    fn handle_cancel(&mut self, index: usize, attempt: AttemptId, grace_ms: u64) {
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        if held.ended || held.kill_reason.is_some() || !held.reachable {
            return;
        }
        if held.processes_alive {
            self.send_frame(
                index,
                attempt,
                FrameBody::Phase {
                    phase: LifecyclePhase::CleanupStarted,
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
            return self.kill_attempt(index, attempt, KillReason::Canceled, takes, grace_ms);
        }
        let body = CanceledBody {
            termination: confirmed_termination(),
            ended_in_lease: true,
            ..CanceledBody::default()
        };
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.ended = true;
        }
        self.send_frame(index, attempt, FrameBody::Canceled(body));
    }

    /// The attempt has no effect any more: its processes are ended, and then it is removed.
    pub(crate) fn abandon_attempt(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        if held.processes_alive {
            held.fenced = true;
            held.discard_unacked();
            let grace = u64::try_from(held.cleanup_term.as_millis()).unwrap_or(0);
            let takes = self.rng.below(6_000);
            return self.kill_attempt(index, attempt, KillReason::Abandoned, takes, grace);
        }
        // A result in flight may still be adopted; anything else is dropped.
        if !held.ended || held.receipt_unwanted {
            self.daemons[index].attempts.remove(&attempt);
        } else {
            held.retain_last_frame();
            self.forward_transcript(index, attempt);
        }
    }
}
