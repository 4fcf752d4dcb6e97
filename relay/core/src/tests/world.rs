//! A small world around the core: a clock that is moved by hand, a store that keeps what was written, and shorthand
//! for what clients and daemons say. It checks after each turn what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::config::Config;
use crate::effects::{Downstream, Effects, Reply, Send, Settlement, Verdict, Write};
use crate::id::{
    AttemptId, DaemonId, InputId, InstanceId, RequestId, SessionId, TaskId, TenantId, TenantScope,
    TokenId,
};
use crate::input::{
    ActiveAttempt, ActiveState, Actor, CanceledBody, Completed, Errored, Finished, Frame,
    FrameBody, FrameRef, Heartbeat, Hello, Input, LeaseToken, Prior, Submit, Termination,
};
use crate::record::{
    AttemptRecord, AttemptState, DaemonRecord, Exit, FailureCode, FenceRecord, IdempotencyRecord,
    Phase, SchedulerRecord, State, TaskRecord, TaskState,
};
use crate::reject::Rejection;
use crate::samples;
use crate::spec::TaskSpec;
use crate::time::{Mint, Moment, Now, Wall};
use crate::{Core, Recovered};

/// Ids and secrets that rise by one: every run of a test is the same.
#[derive(Default)]
pub(super) struct Counter(u128);

impl Mint for Counter {
    fn id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0 << 64 | self.0)
    }

    fn secret(&mut self) -> [u8; 32] {
        self.0 += 1;
        let mut secret = [7; 32];
        secret[..16].copy_from_slice(&self.0.to_be_bytes());
        secret
    }

    fn millionth(&mut self) -> u32 {
        500_000
    }
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) specs: BTreeMap<TaskId, Arc<TaskSpec>>,
    pub(super) live: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(super) done: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(super) fences: BTreeMap<AttemptId, FenceRecord>,
    daemons: BTreeMap<DaemonId, Arc<DaemonRecord>>,
    keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    scheduler: SchedulerRecord,
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) now: Now,
    pub(super) mint: Counter,
    pub(super) store: Store,
    /// Everything sent since the last look.
    pub(super) sent: Vec<Send>,
    pub(super) writes: usize,
    config: Config,
    requests: u64,
    tokens: BTreeMap<AttemptId, LeaseToken>,
    dispatched: Vec<Work>,
}

/// An attempt as its daemon knows it.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) re: FrameRef,
    pub(super) session: SessionId,
    pub(super) token: LeaseToken,
    pub(super) seq: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) daemon: DaemonId,
    pub(super) session: SessionId,
    pub(super) instance: InstanceId,
    pub(super) boot: &'static str,
    pub(super) slots: u32,
}

pub(super) const TTL: u64 = 30_000;
pub(super) const GRACE: u64 = 5_000;
pub(super) const SLACK: u64 = 2_000;

impl World {
    pub(super) fn new() -> Self {
        Self::with(samples::config())
    }

    pub(super) fn with(config: Config) -> Self {
        let now = Now {
            at: Moment(1_000_000),
            wall: Wall(1_700_000_000_000),
        };
        let mut mint = Counter::default();
        let (core, _) = Core::recover(Recovered::default(), config.clone(), now, &mut mint);
        Self {
            core,
            now,
            mint,
            store: Store::default(),
            sent: Vec::new(),
            writes: 0,
            config,
            requests: 0,
            tokens: BTreeMap::new(),
            dispatched: Vec::new(),
        }
    }

    /// kill -9 and a new start from what was written; monotonic time starts anew.
    pub(super) fn restart(&mut self) {
        let store = &self.store;
        let recovered = Recovered {
            tasks: store
                .live
                .iter()
                .map(|(id, record)| (store.specs[id].clone(), record.clone()))
                .collect(),
            daemons: store.daemons.values().cloned().collect(),
            scheduler: store.scheduler.clone(),
            fences: store.fences.values().cloned().collect(),
            idempotency: store
                .keys
                .iter()
                .map(|((t, k), r)| (t.clone(), k.clone(), r.clone()))
                .collect(),
        };
        self.now.at = Moment(50);
        self.now.wall.0 += 3_600_000;
        let (core, effects) =
            Core::recover(recovered, self.config.clone(), self.now, &mut self.mint);
        self.core = core;
        self.absorb(effects);
    }

    pub(super) fn say(&mut self, input: Input) {
        let effects = self.core.handle(input, self.now, &mut self.mint);
        self.absorb(effects);
        self.check();
    }

    fn absorb(&mut self, effects: Effects) {
        self.writes += effects.writes.len();
        for write in effects.writes {
            self.store.apply(write);
        }
        for outgoing in effects.sends {
            if let Send::ToSession {
                session,
                message: Downstream::Dispatch(dispatch),
            } = &outgoing.send
            {
                let re = FrameRef {
                    task: dispatch.to.task,
                    attempt: dispatch.to.attempt,
                    number: dispatch.to.number,
                    incarnation: self.config.incarnation,
                };
                self.tokens.insert(re.attempt, dispatch.token.clone());
                self.dispatched.push(Work {
                    re,
                    session: *session,
                    token: dispatch.token.clone(),
                    seq: 0,
                });
            }
            self.sent.push(outgoing.send);
        }
    }

    /// What must hold after each turn: at most one leased attempt per task and conversation, and numbers that rise.
    fn check(&self) {
        let mut talks = BTreeSet::new();
        for (id, record) in &self.store.live {
            let leased = record
                .attempts
                .iter()
                .filter(|a| a.state.is_leased())
                .count();
            assert!(leased <= 1, "{leased} leased attempts in {id}");
            let open = record
                .attempts
                .iter()
                .rev()
                .skip(1)
                .all(|a| a.state.end().is_some());
            assert!(open, "an old attempt of {id} is open");
            assert!(!record.state.is_terminal(), "{id} is live and over");
            let talk = self.store.specs[id].conversation_id.clone();
            if let Some(talk) = talk.filter(|_| leased == 1) {
                assert!(
                    talks.insert(talk.clone()),
                    "two leased attempts in conversation {talk}"
                );
            }
        }
        for record in self.store.live.values().chain(self.store.done.values()) {
            let first = record.timeline.dropped + 1;
            let numbers: Vec<u64> = record
                .timeline
                .events
                .iter()
                .map(|event| event.revision)
                .collect();
            assert!(
                numbers.iter().copied().eq(first..=record.revision),
                "a gap in {numbers:?}"
            );
        }
    }

    /// Moves the clock, ticking whenever the core asks for it: a healthy loop.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.at + ms;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.jump(due.since(self.now.at).max(1));
            self.say(Input::Tick);
            if self.now.at >= end {
                return;
            }
        }
        self.jump(end.since(self.now.at));
        self.say(Input::Tick);
    }

    /// Moves the clock while daemons keep renewing what they hold.
    pub(super) fn pass_renewing(&mut self, ms: u64, machine: &Machine, works: &[&Work]) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(4_000);
            self.pass(step);
            self.beat(machine, works);
            left -= step;
        }
    }

    /// Moves the clock behind the core's back.
    pub(super) fn jump(&mut self, ms: u64) {
        self.now.at = self.now.at + ms;
        self.now.wall.0 += ms;
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(super) fn submit(&mut self, spec: TaskSpec) -> TaskId {
        self.try_submit(spec).expect("admitted").0
    }

    pub(super) fn try_submit(&mut self, spec: TaskSpec) -> Result<(TaskId, bool), Rejection> {
        let (request, task) = (self.request(), TaskId(self.mint.id()));
        let digest = digest(&spec);
        let key = spec
            .idempotency_key
            .clone()
            .map(|key| (spec.tenant.clone(), key));
        let prior = key
            .and_then(|key| self.store.keys.get(&key))
            .map(|known| Prior {
                task: known.task,
                digest: known.digest,
                finished: self.store.done.get(&known.task).cloned(),
            });
        self.say(Input::Submit(Submit {
            request,
            task,
            spec: Arc::new(spec),
            digest,
            prior,
        }));
        match self.reply(request)? {
            Reply::Submitted { record, created } => Ok((record.task, created)),
            other => panic!("not the reply to a submit: {other:?}"),
        }
    }

    pub(super) fn reply(&mut self, wanted: RequestId) -> Result<Reply, Rejection> {
        let place = self
            .sent
            .iter()
            .position(|send| matches!(send, Send::Reply { request, .. } if *request == wanted));
        match self.sent.remove(place.expect("each request has a reply")) {
            Send::Reply { outcome, .. } => outcome,
            other => panic!("not a reply: {other:?}"),
        }
    }

    fn finished(&self, task: TaskId) -> Option<Finished> {
        let record = self.store.done.get(&task)?.clone();
        Some(Finished {
            record,
            spec: self.store.specs[&task].clone(),
        })
    }

    pub(super) fn cancel(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.finished(task));
        let (tenant, by) = (samples::tenant("acme"), actor());
        self.say(Input::Cancel {
            request,
            tenant,
            task,
            by,
            reason: None,
            finished,
        });
        self.task_reply(request)
    }

    pub(super) fn retry(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.finished(task));
        let (tenant, by) = (samples::tenant("acme"), actor());
        self.say(Input::Retry {
            request,
            tenant,
            task,
            by,
            reason: None,
            finished,
        });
        self.task_reply(request)
    }

    pub(super) fn answer(
        &mut self,
        task: TaskId,
        input: InputId,
        approved: bool,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let request = self.request();
        let (tenant, by, payload) = (samples::tenant("acme"), actor(), Arc::from([]));
        self.say(Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            approved: Some(approved),
            payload,
        });
        self.task_reply(request)
    }

    pub(super) fn ask(
        &mut self,
        make: impl FnOnce(RequestId) -> Input,
    ) -> Result<Reply, Rejection> {
        let request = self.request();
        let input = make(request);
        self.say(input);
        self.reply(request)
    }

    fn task_reply(&mut self, request: RequestId) -> Result<Arc<TaskRecord>, Rejection> {
        match self.reply(request)? {
            Reply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    /// A daemon with four slots that can run anything of these tests.
    pub(super) fn machine(&mut self, n: u128) -> Machine {
        let machine = Machine {
            daemon: DaemonId(Uuid::from_u128(n)),
            session: SessionId(self.mint.id()),
            instance: InstanceId(Uuid::from_u128(n << 8)),
            boot: "boot-1",
            slots: 4,
        };
        self.connect(&machine, Vec::new());
        machine
    }

    pub(super) fn connect(
        &mut self,
        machine: &Machine,
        active: Vec<ActiveAttempt>,
    ) -> Vec<Settlement> {
        self.connect_with(machine, active, |_| {})
    }

    pub(super) fn connect_with(
        &mut self,
        machine: &Machine,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut Hello),
    ) -> Vec<Settlement> {
        let mut hello = Hello {
            daemon: machine.daemon,
            scope: TenantScope::All,
            token: TokenId(Uuid::from_u128(9)),
            instance: machine.instance,
            boot_id: machine.boot.into(),
            name: format!("daemon-{}", machine.daemon.0.as_u128()).into(),
            version: "1".into(),
            slots: machine.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            draining: false,
            active,
        };
        change(&mut hello);
        self.say(Input::SessionOpened {
            session: machine.session,
            hello: Box::new(hello),
        });
        let welcome = self.sent.iter().rev().find_map(|send| match send {
            Send::ToSession {
                session,
                message: Downstream::Welcome { settlements, .. },
            } if *session == machine.session => Some(settlements.clone()),
            _ => None,
        });
        welcome.expect("each Hello has a Welcome")
    }

    /// The same machine on a new stream, listing these.
    pub(super) fn reconnect(
        &mut self,
        machine: &mut Machine,
        active: &[(&Work, ActiveState)],
    ) -> Vec<Verdict> {
        machine.session = SessionId(self.mint.id());
        let active = active
            .iter()
            .map(|(work, state)| self.active(work, *state))
            .collect();
        self.connect(machine, active)
            .into_iter()
            .map(|settlement| settlement.verdict)
            .collect()
    }

    pub(super) fn active(&self, work: &Work, state: ActiveState) -> ActiveAttempt {
        ActiveAttempt {
            re: work.re,
            proof: Some(work.token.clone()),
            state,
            control_seq: work.seq,
            output_end: 0,
            finished: self.finished(work.re.task),
        }
    }

    pub(super) fn disconnect(&mut self, machine: &Machine) {
        self.say(Input::SessionClosed {
            session: machine.session,
        });
    }

    pub(super) fn beat(&mut self, machine: &Machine, works: &[&Work]) {
        let renewals = works
            .iter()
            .map(|work| (work.re.attempt, work.token.clone()))
            .collect();
        let heartbeat = Heartbeat {
            seq: 1,
            renewals,
            free_slots: 0,
            draining: false,
        };
        self.say(Input::Heartbeat {
            session: machine.session,
            heartbeat,
        });
    }

    /// The dispatches that went out since the last look.
    pub(super) fn dispatches(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.dispatched)
    }

    pub(super) fn dispatch(&mut self) -> Work {
        let mut all = self.dispatches();
        assert_eq!(all.len(), 1, "one dispatch expected");
        all.remove(0)
    }

    /// The next frame of an attempt.
    pub(super) fn frame(&mut self, work: &mut Work, body: FrameBody) {
        work.seq += 1;
        self.replay(work, work.seq, body);
    }

    pub(super) fn replay(&mut self, work: &Work, control_seq: u64, body: FrameBody) {
        let finished = self.finished(work.re.task);
        let (session, re) = (work.session, work.re);
        let frame = Frame {
            session,
            re,
            control_seq,
            observed: self.now.wall,
            proof: None,
            body,
            finished,
        };
        self.say(Input::Frame(Box::new(frame)));
    }

    pub(super) fn phase(&mut self, work: &mut Work, phase: Phase) {
        self.frame(
            work,
            FrameBody::Phase {
                phase,
                message: None,
            },
        );
    }

    /// Dispatched, accepted, confirmed and started.
    pub(super) fn started(&mut self) -> Work {
        let mut work = self.dispatch();
        self.frame(&mut work, FrameBody::Accepted);
        self.frame(&mut work, FrameBody::Started);
        work
    }

    pub(super) fn task(&self, task: TaskId) -> Arc<TaskRecord> {
        let record = self
            .store
            .live
            .get(&task)
            .or_else(|| self.store.done.get(&task));
        record.expect("a known task").clone()
    }

    pub(super) fn state(&self, task: TaskId) -> TaskState {
        self.task(task).state
    }

    pub(super) fn newest(&self, task: TaskId) -> AttemptRecord {
        self.task(task).newest().expect("an attempt").clone()
    }

    pub(super) fn attempt_state(&self, task: TaskId) -> AttemptState {
        self.newest(task).state.name()
    }

    pub(super) fn end_code(&self, task: TaskId, number: usize) -> Option<FailureCode> {
        match &self.task(task).attempts[number - 1].state {
            State::Ended(end) => end.failure_code.clone(),
            other => panic!("attempt {number} has not ended: {other:?}"),
        }
    }

    /// Messages to a daemon since the last look, but for acks and publications.
    pub(super) fn told(&mut self, machine: &Machine) -> Vec<Downstream> {
        let (own, rest): (Vec<Send>, Vec<Send>) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|send| matches!(send, Send::ToSession { session, .. } if *session == machine.session));
        self.sent = rest;
        let messages = own.into_iter().filter_map(|send| match send {
            Send::ToSession { message, .. } => Some(message),
            _ => None,
        });
        messages.collect()
    }

    pub(super) fn rejections(&mut self, machine: &Machine) -> Vec<Rejection> {
        let codes = self
            .told(machine)
            .into_iter()
            .filter_map(|message| match message {
                Downstream::FrameRejected { code, .. } => Some(code),
                _ => None,
            });
        codes.collect()
    }
}

impl Store {
    fn apply(&mut self, write: Write) {
        match write {
            Write::PutSpec { task, spec } => {
                assert!(
                    self.specs.insert(task, spec).is_none(),
                    "a spec is written once"
                );
            }
            Write::PutLive(record) => {
                assert!(
                    !self.done.contains_key(&record.task),
                    "a finished task came back without Reopen"
                );
                self.live.insert(record.task, record);
            }
            Write::PutDone(record) => {
                self.live.remove(&record.task);
                self.done.insert(record.task, record);
            }
            Write::Reopen(record) => {
                assert!(
                    self.done.remove(&record.task).is_some(),
                    "only finished tasks are reopened"
                );
                self.live.insert(record.task, record);
            }
            Write::PutIdempotency {
                tenant,
                key,
                record,
            } => {
                self.keys.insert((tenant, key), record);
            }
            Write::PutDaemon(record) => {
                self.daemons.insert(record.daemon, record);
            }
            Write::PutScheduler(record) => self.scheduler = record,
            Write::PutFence(record) => {
                self.fences.insert(record.attempt, record);
            }
            Write::DropFence(attempt) => {
                self.fences.remove(&attempt);
            }
        }
    }
}

fn digest(spec: &TaskSpec) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    Sha256::digest(format!("{spec:?}")).into()
}

pub(super) fn actor() -> Actor {
    Actor {
        name: "alice".into(),
        operator: false,
    }
}

pub(super) fn spec() -> TaskSpec {
    samples::task_spec()
}

/// The processes are gone.
pub(super) fn gone() -> Termination {
    Termination {
        exit: Some(Exit::Code(0)),
        group_empty: true,
        ..Termination::default()
    }
}

pub(super) fn completed() -> FrameBody {
    FrameBody::Completed(Completed {
        result: Some(Arc::from(*b"done")),
        termination: gone(),
        in_lease: true,
        ..Completed::default()
    })
}

pub(super) fn errored(code: FailureCode, exit: i32) -> FrameBody {
    FrameBody::Errored(Errored {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: crate::record::Usage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: Termination {
            exit: Some(Exit::Code(exit)),
            ..gone()
        },
        in_lease: true,
    })
}

pub(super) fn canceled() -> FrameBody {
    FrameBody::Canceled(CanceledBody {
        termination: gone(),
        in_lease: true,
        ..CanceledBody::default()
    })
}
