//! A worker machine that follows the protocol and nothing else: it counts its lease from the send of its last
//! acknowledged renewal, kills at that limit, keeps frames until they are acknowledged, and replays them.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::super::world::{World, canceled, completed, errored, gone};
use super::Dice;
use crate::effects::{Downstream, Renewal, Verdict};
use crate::id::{AttemptId, DaemonId, InstanceId, SessionId, TenantScope, TokenId};
use crate::input::{
    ActiveAttempt, ActiveState, Frame, FrameBody, FrameRef, Heartbeat, Hello, Input, LeaseToken,
    Termination,
};
use crate::record::{FailureCode, Phase, RejectCode};
use crate::reject::Rejection;
use crate::time::{Moment, Now};

pub(super) enum Packet {
    Up {
        worker: usize,
        input: Input,
    },
    Down {
        worker: usize,
        session: SessionId,
        message: Downstream,
    },
}

impl Packet {
    pub(super) fn worker(&self) -> usize {
        match self {
            Packet::Up { worker, .. } | Packet::Down { worker, .. } => *worker,
        }
    }

    pub(super) fn lane(&self) -> (usize, bool) {
        (self.worker(), matches!(self, Packet::Up { .. }))
    }
}

pub(super) struct Worker {
    id: u128,
    pub(super) session: Option<SessionId>,
    instance: u128,
    boot: u64,
    jobs: BTreeMap<AttemptId, Job>,
    /// When each heartbeat, and the last Hello, was sent.
    beats: BTreeMap<u64, Moment>,
    hello_sent: Moment,
}

struct Job {
    re: FrameRef,
    token: LeaseToken,
    ttl_ms: u64,
    alive: bool,
    over: bool,
    accepted_at: Moment,
    limit: Moment,
    seq: u64,
    outbox: BTreeMap<u64, FrameBody>,
}

impl Worker {
    pub(super) fn new(id: u128) -> Self {
        Self {
            id,
            session: None,
            instance: id << 32,
            boot: 1,
            jobs: BTreeMap::new(),
            beats: BTreeMap::new(),
            hello_sent: Moment(0),
        }
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = FrameRef> {
        self.jobs.values().filter(|job| job.alive).map(|job| job.re)
    }

    pub(super) fn next_limit(&self) -> Option<Moment> {
        self.jobs
            .values()
            .filter(|job| job.alive)
            .map(|job| job.limit)
            .min()
    }

    /// The self-fence: whatever is not renewed is dead by its limit.
    pub(super) fn kill_at_limits(&mut self, now: Moment) {
        self.jobs.retain(|_, job| !job.alive || job.limit > now);
    }

    /// Its process ends and starts again without its jobs; or the whole machine does.
    pub(super) fn restart(&mut self, reboot: bool) {
        self.instance += 1;
        self.boot += u64::from(reboot);
        self.jobs.clear();
    }

    pub(super) fn hello(&mut self, world: &World) -> Hello {
        self.hello_sent = world.now.at;
        let active = self.jobs.values().map(|job| ActiveAttempt {
            re: job.re,
            proof: Some(job.token.clone()),
            state: if job.over {
                ActiveState::Finished
            } else {
                ActiveState::Running
            },
            control_seq: job.seq,
            output_end: 0,
            finished: world.store.finished(job.re.task),
        });
        Hello {
            daemon: DaemonId(Uuid::from_u128(self.id)),
            scope: TenantScope::All,
            token: TokenId(Uuid::from_u128(9)),
            instance: InstanceId(Uuid::from_u128(self.instance)),
            boot_id: self.boot.to_string().as_str().into(),
            name: "w".into(),
            version: "1".into(),
            slots: 3,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            draining: false,
            active: active.collect(),
        }
    }

    pub(super) fn beat(&mut self, now: Now) -> Vec<Input> {
        let Some(session) = self.session else {
            return Vec::new();
        };
        let seq = now.at.0;
        self.beats.insert(seq, now.at);
        let running = self.jobs.values().filter(|job| !job.over);
        let renewals = running
            .map(|job| (job.re.attempt, job.token.clone()))
            .collect();
        let heartbeat = Heartbeat {
            seq,
            renewals,
            free_slots: 0,
            draining: false,
        };
        vec![Input::Heartbeat { session, heartbeat }]
    }

    /// Something happens in one of its jobs.
    pub(super) fn work(&mut self, world: &World, dice: &mut Dice) -> Vec<Input> {
        let running: Vec<AttemptId> = self
            .jobs
            .values()
            .filter(|job| job.alive)
            .map(|job| job.re.attempt)
            .collect();
        let Some(attempt) = running.get(usize::try_from(dice.below(8)).expect("small")) else {
            return Vec::new();
        };
        let body = match dice.below(6) {
            0 => FrameBody::Phase {
                phase: Phase::PromptWritten,
                message: None,
            },
            1 => FrameBody::Phase {
                phase: Phase::FirstVisibleEventSeen,
                message: None,
            },
            2 => FrameBody::ToolStarted {
                id: dice.below(3).to_string().as_str().into(),
                name: "t".into(),
            },
            3 => errored(
                FailureCode::AgentExit,
                i32::try_from(dice.below(2)).expect("small"),
            ),
            _ => completed(),
        };
        self.emit(*attempt, body, world.now)
    }

    pub(super) fn finish_all(&mut self, world: &World) -> Vec<Input> {
        let running: Vec<AttemptId> = self
            .jobs
            .values()
            .filter(|job| job.alive)
            .map(|job| job.re.attempt)
            .collect();
        running
            .into_iter()
            .flat_map(|attempt| self.emit(attempt, completed(), world.now))
            .collect()
    }

    /// Appends to the outbox, then sends if it can.
    fn emit(&mut self, attempt: AttemptId, body: FrameBody, now: Now) -> Vec<Input> {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return Vec::new();
        };
        job.seq += 1;
        if matches!(
            body,
            FrameBody::Completed(_) | FrameBody::Errored(_) | FrameBody::Canceled(_)
        ) {
            (job.alive, job.over) = (false, true);
        }
        job.outbox.insert(job.seq, body);
        let seq = job.seq;
        self.replay(attempt, seq, now)
    }

    fn replay(&self, attempt: AttemptId, from: u64, now: Now) -> Vec<Input> {
        let (Some(session), Some(job)) = (self.session, self.jobs.get(&attempt)) else {
            return Vec::new();
        };
        let frame = |(seq, body): (&u64, &FrameBody)| {
            let (re, control_seq, body) = (job.re, *seq, body.clone());
            let frame = Frame {
                session,
                re,
                control_seq,
                observed: now.wall,
                proof: None,
                body,
                finished: None,
            };
            Input::Frame(Box::new(frame))
        };
        job.outbox.range(from..).map(frame).collect()
    }

    /// A message arrives. `quiet` means that it does what it is told without playing up.
    pub(super) fn hear(
        &mut self,
        message: Downstream,
        now: Now,
        quiet: bool,
        dice: &mut Dice,
    ) -> Vec<Input> {
        match message {
            Downstream::Dispatch(dispatch) => {
                let re = FrameRef {
                    task: dispatch.to.task,
                    attempt: dispatch.to.attempt,
                    number: dispatch.to.number,
                    incarnation: crate::samples::config().incarnation,
                };
                let refuse = !quiet && dice.one_in(10);
                self.jobs.insert(
                    re.attempt,
                    job(re, dispatch.token, dispatch.granted_ms, now.at),
                );
                if refuse {
                    let body = FrameBody::Rejected {
                        code: RejectCode::AtCapacity,
                        message: None,
                    };
                    let sent = self.emit(re.attempt, body, now);
                    self.jobs.remove(&re.attempt);
                    return sent;
                }
                self.emit(re.attempt, FrameBody::Accepted, now)
            }
            Downstream::LeaseConfirmed { to, granted_ms, .. } => {
                self.start(to.attempt, granted_ms, now)
            }
            Downstream::Cancel { to, .. } if quiet || !dice.one_in(4) => {
                match self.jobs.get(&to.attempt) {
                    Some(job) if !job.over => self.emit(to.attempt, canceled(), now),
                    Some(_) | None => Vec::new(),
                }
            }
            Downstream::HeartbeatAck { seq, results, .. } => {
                let sent = self.beats.remove(&seq).unwrap_or(Moment(0));
                for (attempt, renewal) in results {
                    self.renewed(attempt, &renewal, sent);
                }
                Vec::new()
            }
            Downstream::Welcome { settlements, .. } => {
                let settle =
                    |s: crate::effects::Settlement| self.settle(s.attempt, &s.verdict, now, dice);
                settlements.into_iter().flat_map(settle).collect()
            }
            Downstream::Ack {
                attempt,
                control_seq,
            } => {
                self.acked(attempt, control_seq);
                Vec::new()
            }
            Downstream::Abandon { attempt, .. } => self.kill(attempt, now, dice),
            Downstream::FrameRejected {
                attempt,
                code: Rejection::Gap,
                expected,
                ..
            } => self.replay(attempt, expected.unwrap_or(1), now),
            Downstream::Cancel { .. }
            | Downstream::FrameRejected { .. }
            | Downstream::HoldAck { .. }
            | Downstream::Answer { .. }
            | Downstream::Drain { .. } => Vec::new(),
        }
    }

    fn start(&mut self, attempt: AttemptId, granted_ms: u64, now: Now) -> Vec<Input> {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return Vec::new();
        };
        if job.alive || job.over {
            return Vec::new();
        }
        job.limit = job.accepted_at + granted_ms;
        if job.limit <= now.at {
            return Vec::new();
        }
        job.alive = true;
        self.emit(attempt, FrameBody::Started, now)
    }

    fn renewed(&mut self, attempt: AttemptId, renewal: &Renewal, sent: Moment) {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return;
        };
        match renewal {
            Renewal::Renewed { granted_ms, .. } => job.limit = job.limit.max(sent + *granted_ms),
            Renewal::Revoked { .. } => {
                self.jobs.remove(&attempt);
            }
        }
    }

    fn settle(
        &mut self,
        attempt: AttemptId,
        verdict: &Verdict,
        now: Now,
        dice: &mut Dice,
    ) -> Vec<Input> {
        let hello_sent = self.hello_sent;
        match verdict {
            Verdict::Keep { acked, granted_ms } => {
                let Some(job) = self.jobs.get_mut(&attempt) else {
                    return Vec::new();
                };
                let limit = granted_ms.map_or(job.limit, |ms| job.limit.max(hello_sent + ms));
                // Keep confirms an accepted one.
                (job.limit, job.accepted_at) = (limit, job.accepted_at.max(hello_sent));
                let ttl_ms = job.ttl_ms;
                let mut sent = self.replay(attempt, acked + 1, now);
                sent.extend(self.start(attempt, ttl_ms, now));
                sent
            }
            Verdict::Adopt { acked } => self.replay(attempt, acked + 1, now),
            Verdict::Kill { .. } => self.kill(attempt, now, dice),
        }
    }

    /// Dead; it says so with a receipt most of the time.
    fn kill(&mut self, attempt: AttemptId, now: Now, dice: &mut Dice) -> Vec<Input> {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return Vec::new();
        };
        job.alive = false;
        let receipt = FrameBody::Receipt {
            termination: Termination {
                exit: None,
                ..gone()
            },
        };
        let sent = if dice.one_in(3) {
            Vec::new()
        } else {
            self.emit(attempt, receipt, now)
        };
        self.jobs.remove(&attempt);
        sent
    }

    fn acked(&mut self, attempt: AttemptId, control_seq: u64) {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return;
        };
        job.outbox.retain(|seq, _| *seq > control_seq);
        if job.over && job.outbox.is_empty() {
            self.jobs.remove(&attempt);
        }
    }
}

fn job(re: FrameRef, token: LeaseToken, ttl_ms: u64, now: Moment) -> Job {
    Job {
        re,
        token,
        ttl_ms,
        alive: false,
        over: false,
        accepted_at: now,
        limit: now + ttl_ms,
        seq: 0,
        outbox: BTreeMap::new(),
    }
}
