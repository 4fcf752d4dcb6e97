//! What clients and daemons say, in shorthand, and what they hear.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::bodies::{actor, digest};
use super::{Machine, Work, World};
use crate::effects::{Downstream, Renewal, Reply, Send, Settlement, TaskView, Verdict};
use crate::finished::Looked;
use crate::force::{Operate, Verb};
use crate::id::{
    AttemptId, DaemonId, InputId, InstanceId, RequestId, SessionId, TaskId, TenantScope, TokenId,
};
use crate::input::{
    ActiveAttempt, ActiveState, Actor, Frame, FrameBody, Heartbeat, Hello, Input, Prior, Submit,
};
use crate::record::{
    AttemptRecord, AttemptState, Decision, FailureCode, Phase, State, TaskRecord, TaskState,
};
use crate::reject::Rejection;
use crate::samples;
use crate::spec::TaskSpec;
use crate::time::Mint;

impl World {
    pub(super) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(in crate::tests) fn submit(&mut self, spec: TaskSpec) -> TaskId {
        self.try_submit(spec).expect("admitted").0
    }

    pub(in crate::tests) fn try_submit(
        &mut self,
        spec: TaskSpec,
    ) -> Result<(TaskId, bool), Rejection> {
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
            prior: Ok(prior),
        }));
        match self.reply(request)? {
            Reply::Submitted { record, created } => Ok((record.task, created)),
            other => panic!("not the reply to a submit: {other:?}"),
        }
    }

    pub(in crate::tests) fn reply(&mut self, wanted: RequestId) -> Result<Reply, Rejection> {
        let place = self
            .sent
            .iter()
            .position(|send| matches!(send, Send::Reply { request, .. } if *request == wanted));
        match self.sent.remove(place.expect("each request has a reply")) {
            Send::Reply { outcome, .. } => outcome,
            other => panic!("not a reply: {other:?}"),
        }
    }

    pub(in crate::tests) fn cancel(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
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

    pub(in crate::tests) fn retry(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        // Many people, so that nobody asks too often.
        let by = Actor {
            token: TokenId(Uuid::from_u128(1_000 + u128::from(self.requests))),
            ..actor()
        };
        match self.operate_as(by, task, "once more", Verb::Retry { allow_unsafe: true })? {
            Reply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn operate(
        &mut self,
        task: TaskId,
        verb: Verb,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let reply = self.operate_as(actor(), task, "a reason", verb)?;
        match reply {
            Reply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn operate_as(
        &mut self,
        by: Actor,
        task: TaskId,
        reason: &str,
        verb: Verb,
    ) -> Result<Reply, Rejection> {
        let finished = self.store.finished(task);
        let (tenant, reason) = (samples::tenant("acme"), reason.into());
        self.ask(|request| {
            Input::Operate(Box::new(Operate {
                request,
                tenant,
                task,
                by,
                reason,
                verb,
                finished,
            }))
        })
    }

    pub(in crate::tests) fn answer(
        &mut self,
        task: TaskId,
        input: InputId,
        approved: bool,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let request = self.request();
        let (tenant, by, payload) = (samples::tenant("acme"), actor(), Arc::from([]));
        let decision = if approved {
            Decision::Allowed
        } else {
            Decision::Denied
        };
        let finished = self.store.finished(task);
        self.say(Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            decision,
            payload,
            finished,
        });
        self.task_reply(request)
    }

    pub(in crate::tests) fn ask(
        &mut self,
        make: impl FnOnce(RequestId) -> Input,
    ) -> Result<Reply, Rejection> {
        let request = self.request();
        let input = make(request);
        self.say(input);
        self.reply(request)
    }

    pub(in crate::tests) fn inspect(&mut self, task: TaskId) -> Result<Box<TaskView>, Rejection> {
        let tenant = samples::tenant("acme");
        match self.ask(|request| Input::Inspect {
            request,
            tenant,
            task,
        })? {
            Reply::Inspected(view) => Ok(view),
            other => panic!("not a view: {other:?}"),
        }
    }

    pub(super) fn task_reply(&mut self, request: RequestId) -> Result<Arc<TaskRecord>, Rejection> {
        match self.reply(request)? {
            Reply::Task(record) | Reply::Finished(record) | Reply::Progressed { record, .. } => {
                Ok(record)
            }
            other => panic!("not a task: {other:?}"),
        }
    }

    /// A daemon with four slots that can run anything of these tests.
    pub(in crate::tests) fn machine(&mut self, n: u128) -> Machine {
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

    pub(in crate::tests) fn connect(
        &mut self,
        machine: &Machine,
        active: Vec<ActiveAttempt>,
    ) -> Vec<Settlement> {
        self.connect_with(machine, active, |_| {})
    }

    pub(in crate::tests) fn connect_with(
        &mut self,
        machine: &Machine,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut Hello),
    ) -> Vec<Settlement> {
        self.open(machine, active, change);
        let welcome = self.sent.iter().rev().find_map(|send| match send {
            Send::ToSession {
                session,
                message: Downstream::Welcome { settlements, .. },
            } if *session == machine.session => Some(settlements.clone()),
            _ => None,
        });
        self.greet(machine);
        welcome.expect("each Hello has a Welcome")
    }

    /// Its first heartbeat, as soon as it has read Welcome; what is answered is not of interest.
    pub(in crate::tests) fn greet(&mut self, machine: &Machine) {
        let known = self.core.roster.get(machine.daemon);
        let heartbeat = Heartbeat {
            seq: 0,
            heard_seq: None,
            renewals: Vec::new(),
            free_slots: machine.slots,
            draining: known.is_some_and(|daemon| daemon.draining),
            unfit: false,
            load: None,
        };
        self.say(Input::Heartbeat {
            session: machine.session,
            heartbeat,
        });
        let answers = |send: &Send| {
            matches!(
                send,
                Send::ToSession {
                    message: Downstream::HeartbeatAck { seq: 0, .. },
                    ..
                }
            )
        };
        self.sent.retain(|send| !answers(send));
    }

    /// Says Hello, whatever comes of it.
    pub(in crate::tests) fn open(
        &mut self,
        machine: &Machine,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut Hello),
    ) {
        let mut opened = self.hello(machine, active);
        if let Input::SessionOpened { hello, .. } = &mut opened {
            change(hello);
        }
        self.say(opened);
    }

    /// What it says first on its stream.
    pub(in crate::tests) fn hello(&self, machine: &Machine, active: Vec<ActiveAttempt>) -> Input {
        let hello = Hello {
            daemon: machine.daemon,
            scope: TenantScope::All,
            token: TokenId(Uuid::from_u128(9)),
            instance: machine.instance,
            boot_id: machine.boot.into(),
            name: format!("daemon-{}", machine.daemon.0.as_u128()).into(),
            version: "1".into(),
            platform: crate::record::Platform::default(),
            slots: machine.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            workspaces: Vec::new(),
            draining: false,
            active,
        };
        Input::SessionOpened {
            session: machine.session,
            hello: Box::new(hello),
        }
    }

    /// For a stream that is opened by hand.
    pub(in crate::tests) fn fresh_session(&mut self) -> SessionId {
        SessionId(self.mint.id())
    }

    /// The same machine on a new stream, listing these.
    pub(in crate::tests) fn reconnect(
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

    pub(in crate::tests) fn active(&self, work: &Work, state: ActiveState) -> ActiveAttempt {
        ActiveAttempt {
            re: work.re,
            proof: Some(work.token.clone()),
            state,
            control_seq: work.seq,
            output_end: 0,
            looked: Looked::ended(self.store.finished(work.re.task)),
        }
    }

    pub(in crate::tests) fn disconnect(&mut self, machine: &Machine) {
        self.say(Input::SessionClosed {
            session: machine.session,
        });
    }

    pub(in crate::tests) fn beat(&mut self, machine: &Machine, works: &[&Work]) {
        let renewals = works
            .iter()
            .map(|work| (work.re.attempt, work.token.clone()))
            .collect();
        let heartbeat = Heartbeat {
            seq: 1,
            heard_seq: None,
            renewals,
            free_slots: 0,
            draining: false,
            unfit: false,
            load: None,
        };
        self.say(Input::Heartbeat {
            session: machine.session,
            heartbeat,
        });
    }

    /// Asks for a hold; what was said to it.
    pub(in crate::tests) fn hold(
        &mut self,
        machine: &Machine,
        works: &[&Work],
        granted_ms: u64,
    ) -> Vec<(AttemptId, Renewal)> {
        let attempts = works
            .iter()
            .map(|work| (work.re.attempt, work.token.clone()));
        self.say(Input::Hold {
            session: machine.session,
            request: 1,
            attempts: attempts.collect(),
            granted_ms,
        });
        let told = self
            .told(machine)
            .into_iter()
            .find_map(|message| match message {
                Downstream::HoldAck { results, .. } => Some(results),
                _ => None,
            });
        told.expect("each request has an answer")
    }

    /// The dispatches that went out since the last look.
    pub(in crate::tests) fn dispatches(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.dispatched)
    }

    pub(in crate::tests) fn dispatch(&mut self) -> Work {
        let mut all = self.dispatches();
        assert_eq!(all.len(), 1, "one dispatch expected");
        all.remove(0)
    }

    /// The next frame of an attempt.
    pub(in crate::tests) fn frame(&mut self, work: &mut Work, body: FrameBody) {
        work.seq += 1;
        self.replay(work, work.seq, body);
    }

    pub(in crate::tests) fn replay(&mut self, work: &Work, control_seq: u64, body: FrameBody) {
        let finished = self.store.finished(work.re.task);
        let (session, re) = (work.session, work.re);
        let frame = Frame {
            session,
            re,
            control_seq,
            observed: self.now.wall,
            proof: None,
            body,
            workspace: None,
            finished,
            known: self.store.known(work.re.task),
        };
        self.say(Input::Frame(Box::new(frame)));
    }

    pub(in crate::tests) fn phase(&mut self, work: &mut Work, phase: Phase) {
        self.frame(
            work,
            FrameBody::Phase {
                phase,
                message: None,
                deadline: None,
            },
        );
    }

    /// Dispatched, accepted, confirmed and started.
    pub(in crate::tests) fn started(&mut self) -> Work {
        let mut work = self.dispatch();
        self.frame(&mut work, FrameBody::Accepted);
        self.frame(&mut work, FrameBody::Started);
        work
    }

    pub(in crate::tests) fn task(&self, task: TaskId) -> Arc<TaskRecord> {
        let record = self
            .store
            .live
            .get(&task)
            .or_else(|| self.store.done.get(&task));
        record.expect("a known task").clone()
    }

    pub(in crate::tests) fn state(&self, task: TaskId) -> TaskState {
        self.task(task).state
    }

    pub(in crate::tests) fn newest(&self, task: TaskId) -> AttemptRecord {
        self.task(task).newest().expect("an attempt").clone()
    }

    pub(in crate::tests) fn attempt_state(&self, task: TaskId) -> AttemptState {
        self.newest(task).state.name()
    }

    pub(in crate::tests) fn end_code(&self, task: TaskId, number: usize) -> Option<FailureCode> {
        match &self.task(task).attempts[number - 1].state {
            State::Ended(end) => end.failure_code.clone(),
            other => panic!("attempt {number} has not ended: {other:?}"),
        }
    }

    /// Messages to a daemon since the last look, but for acks and publications.
    pub(in crate::tests) fn told(&mut self, machine: &Machine) -> Vec<Downstream> {
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

    pub(in crate::tests) fn rejections(&mut self, machine: &Machine) -> Vec<Rejection> {
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
