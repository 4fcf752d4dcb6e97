//! Helpers that send commands of clients and daemons and read the replies.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::frames::{actor, digest};
use super::{CoreHarness, DispatchedAttempt, TestDaemon};
use crate::ids::{
    AttemptId, DaemonId, InputId, InstanceId, RequestId, SessionId, TaskId, TenantScope, TokenId,
};
use crate::io::command::{
    ActiveAttempt, ActiveAttemptState, AttemptFrame, CoreCommand, DaemonHello, FrameBody,
    HeartbeatMessage, PriorSubmission, RequestActor, SubmitTask,
};
use crate::io::effects::{
    AttemptSettlement, CoreReply, DaemonMessage, Delivery, LeaseRenewal, SettlementVerdict,
    TaskView,
};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::TaskLookup;
use crate::operator::task_operation::{OperateTask, TaskOperation};
use crate::record::{
    AttemptRecord, AttemptState, AttemptStateKind, FailureCode, InputDecision, LifecyclePhase,
    TaskRecord, TaskState,
};
use crate::samples;
use crate::task::spec::TaskSpec;
use crate::time::IdSource;

impl CoreHarness {
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
        let (request, task) = (self.request(), TaskId(self.ids.new_id()));
        let digest = digest(&spec);
        let key = spec
            .idempotency_key
            .clone()
            .map(|key| (spec.tenant.clone(), key));
        let prior = key
            .and_then(|key| self.store.keys.get(&key))
            .map(|known| PriorSubmission {
                task: known.task,
                digest: known.digest,
                finished: self.store.done.get(&known.task).cloned(),
            });
        self.send_input(CoreCommand::Submit(SubmitTask {
            request,
            task,
            spec: Arc::new(spec),
            digest,
            prior_submission: Ok(prior),
        }));
        match self.reply(request)? {
            CoreReply::Submitted { record, created } => Ok((record.task, created)),
            other => panic!("not the reply to a submit: {other:?}"),
        }
    }

    pub(in crate::tests) fn reply(&mut self, wanted: RequestId) -> Result<CoreReply, Rejection> {
        let place = self
            .deliveries
            .iter()
            .position(|send| matches!(send, Delivery::Reply { request, .. } if *request == wanted));
        match self
            .deliveries
            .remove(place.expect("each request has a reply"))
        {
            Delivery::Reply { outcome, .. } => outcome,
            other => panic!("not a reply: {other:?}"),
        }
    }

    pub(in crate::tests) fn cancel(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
        let (tenant, by) = (samples::tenant("acme"), actor());
        self.send_input(CoreCommand::Cancel {
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
        // A new actor for each retry, so that the rate limit is not reached.
        let by = RequestActor {
            token: TokenId(Uuid::from_u128(1_000 + u128::from(self.requests))),
            ..actor()
        };
        match self.operate_as(
            by,
            task,
            "once more",
            TaskOperation::Retry { allow_unsafe: true },
        )? {
            CoreReply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn operate(
        &mut self,
        task: TaskId,
        verb: TaskOperation,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let reply = self.operate_as(actor(), task, "a reason", verb)?;
        match reply {
            CoreReply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn operate_as(
        &mut self,
        by: RequestActor,
        task: TaskId,
        reason: &str,
        verb: TaskOperation,
    ) -> Result<CoreReply, Rejection> {
        let finished = self.store.finished(task);
        let (tenant, reason) = (samples::tenant("acme"), reason.into());
        self.send_request(|request| {
            CoreCommand::Operate(Box::new(OperateTask {
                request,
                tenant,
                task,
                by,
                reason,
                operation: verb,
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
            InputDecision::Allowed
        } else {
            InputDecision::Denied
        };
        let finished = self.store.finished(task);
        self.send_input(CoreCommand::Answer {
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

    pub(in crate::tests) fn send_request(
        &mut self,
        make: impl FnOnce(RequestId) -> CoreCommand,
    ) -> Result<CoreReply, Rejection> {
        let request = self.request();
        let input = make(request);
        self.send_input(input);
        self.reply(request)
    }

    pub(in crate::tests) fn inspect(&mut self, task: TaskId) -> Result<Box<TaskView>, Rejection> {
        let tenant = samples::tenant("acme");
        match self.send_request(|request| CoreCommand::Inspect {
            request,
            tenant,
            task,
        })? {
            CoreReply::Inspected(view) => Ok(view),
            other => panic!("not a view: {other:?}"),
        }
    }

    pub(super) fn task_reply(&mut self, request: RequestId) -> Result<Arc<TaskRecord>, Rejection> {
        match self.reply(request)? {
            CoreReply::Task(record)
            | CoreReply::Finished(record)
            | CoreReply::Progressed { record, .. } => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    /// Connects a daemon with four slots that can run every task of these tests.
    pub(in crate::tests) fn connect_daemon(&mut self, n: u128) -> TestDaemon {
        let machine = TestDaemon {
            daemon: DaemonId(Uuid::from_u128(n)),
            session: SessionId(self.ids.new_id()),
            instance: InstanceId(Uuid::from_u128(n << 8)),
            boot: "boot-1",
            slots: 4,
        };
        self.connect(&machine, Vec::new());
        machine
    }

    pub(in crate::tests) fn connect(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
    ) -> Vec<AttemptSettlement> {
        self.connect_with(machine, active, |_| {})
    }

    pub(in crate::tests) fn connect_with(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut DaemonHello),
    ) -> Vec<AttemptSettlement> {
        self.open(machine, active, change);
        let welcome = self.deliveries.iter().rev().find_map(|send| match send {
            Delivery::ToSession {
                session,
                message: DaemonMessage::Welcome { settlements, .. },
            } if *session == machine.session => Some(settlements.clone()),
            _ => None,
        });
        self.send_first_heartbeat(machine);
        welcome.expect("each Hello has a Welcome")
    }

    /// Sends the first heartbeat, which shows that the daemon has read Welcome. Its answer is
    /// discarded.
    pub(in crate::tests) fn send_first_heartbeat(&mut self, machine: &TestDaemon) {
        let known = self.core.roster.get(machine.daemon);
        let heartbeat = HeartbeatMessage {
            seq: 0,
            received_ack_seq: None,
            renewals: Vec::new(),
            free_slots: machine.slots,
            draining: known.is_some_and(|daemon| daemon.draining),
            unfit: false,
            load: None,
        };
        self.send_input(CoreCommand::Heartbeat {
            session: machine.session,
            heartbeat,
        });
        let answers = |send: &Delivery| {
            matches!(
                send,
                Delivery::ToSession {
                    message: DaemonMessage::HeartbeatAck { seq: 0, .. },
                    ..
                }
            )
        };
        self.deliveries.retain(|send| !answers(send));
    }

    /// Sends Hello without a check of the answer.
    pub(in crate::tests) fn open(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut DaemonHello),
    ) {
        let mut opened = self.hello(machine, active);
        if let CoreCommand::SessionOpened { hello, .. } = &mut opened {
            change(hello);
        }
        self.send_input(opened);
    }

    /// The Hello of a daemon.
    pub(in crate::tests) fn hello(
        &self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
    ) -> CoreCommand {
        let hello = DaemonHello {
            daemon: machine.daemon,
            scope: TenantScope::All,
            token: TokenId(Uuid::from_u128(9)),
            instance: machine.instance,
            boot_id: machine.boot.into(),
            name: format!("daemon-{}", machine.daemon.0.as_u128()).into(),
            version: "1".into(),
            platform: crate::record::DaemonPlatform::default(),
            slots: machine.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            workspaces: Vec::new(),
            draining: false,
            active,
        };
        CoreCommand::SessionOpened {
            session: machine.session,
            hello: Box::new(hello),
        }
    }

    /// A session id for a test that opens the stream itself.
    pub(in crate::tests) fn new_session(&mut self) -> SessionId {
        SessionId(self.ids.new_id())
    }

    /// Connects the same daemon on a new stream that lists these attempts.
    pub(in crate::tests) fn reconnect(
        &mut self,
        machine: &mut TestDaemon,
        active: &[(&DispatchedAttempt, ActiveAttemptState)],
    ) -> Vec<SettlementVerdict> {
        machine.session = SessionId(self.ids.new_id());
        let active = active
            .iter()
            .map(|(work, state)| self.active(work, *state))
            .collect();
        self.connect(machine, active)
            .into_iter()
            .map(|settlement| settlement.verdict)
            .collect()
    }

    pub(in crate::tests) fn active(
        &self,
        work: &DispatchedAttempt,
        state: ActiveAttemptState,
    ) -> ActiveAttempt {
        ActiveAttempt {
            frame_ref: work.frame_ref,
            proof: Some(work.token.clone()),
            state,
            control_seq: work.seq,
            output_end: 0,
            lookup: TaskLookup::from_finished(self.store.finished(work.frame_ref.task)),
        }
    }

    pub(in crate::tests) fn disconnect(&mut self, machine: &TestDaemon) {
        self.send_input(CoreCommand::SessionClosed {
            session: machine.session,
        });
    }

    pub(in crate::tests) fn beat(&mut self, machine: &TestDaemon, works: &[&DispatchedAttempt]) {
        let renewals = works
            .iter()
            .map(|work| (work.frame_ref.attempt, work.token.clone()))
            .collect();
        let heartbeat = HeartbeatMessage {
            seq: 1,
            received_ack_seq: None,
            renewals,
            free_slots: 0,
            draining: false,
            unfit: false,
            load: None,
        };
        self.send_input(CoreCommand::Heartbeat {
            session: machine.session,
            heartbeat,
        });
    }

    /// Asks for a lease extension and returns the results.
    pub(in crate::tests) fn extend_leases(
        &mut self,
        machine: &TestDaemon,
        works: &[&DispatchedAttempt],
        granted_ms: u64,
    ) -> Vec<(AttemptId, LeaseRenewal)> {
        let attempts = works
            .iter()
            .map(|work| (work.frame_ref.attempt, work.token.clone()));
        self.send_input(CoreCommand::ExtendLeases {
            session: machine.session,
            request: 1,
            attempts: attempts.collect(),
            granted_ms,
        });
        let results = self
            .take_messages(machine)
            .into_iter()
            .find_map(|message| match message {
                DaemonMessage::ExtensionAck { results, .. } => Some(results),
                _ => None,
            });
        results.expect("each request has an answer")
    }

    /// Takes the dispatches since the last call.
    pub(in crate::tests) fn dispatches(&mut self) -> Vec<DispatchedAttempt> {
        std::mem::take(&mut self.dispatched)
    }

    pub(in crate::tests) fn dispatch(&mut self) -> DispatchedAttempt {
        let mut all = self.dispatches();
        assert_eq!(all.len(), 1, "one dispatch expected");
        all.remove(0)
    }

    /// Sends the next frame of an attempt.
    pub(in crate::tests) fn frame(&mut self, work: &mut DispatchedAttempt, body: FrameBody) {
        work.seq += 1;
        self.replay(work, work.seq, body);
    }

    pub(in crate::tests) fn replay(
        &mut self,
        work: &DispatchedAttempt,
        control_seq: u64,
        body: FrameBody,
    ) {
        let finished = self.store.finished(work.frame_ref.task);
        let (session, re) = (work.session, work.frame_ref);
        let frame = AttemptFrame {
            session,
            frame_ref: re,
            control_seq,
            observed: self.now.wall,
            proof: None,
            body,
            workspace: None,
            finished,
            stored_progress: self.store.stored_progress(work.frame_ref.task),
        };
        self.send_input(CoreCommand::Frame(Box::new(frame)));
    }

    pub(in crate::tests) fn phase(&mut self, work: &mut DispatchedAttempt, phase: LifecyclePhase) {
        self.frame(
            work,
            FrameBody::Phase {
                phase,
                message: None,
                deadline: None,
            },
        );
    }

    /// Takes the only dispatch and lets its attempt be accepted, confirmed and started.
    pub(in crate::tests) fn take_started(&mut self) -> DispatchedAttempt {
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
        self.task(task)
            .newest_attempt()
            .expect("an attempt")
            .clone()
    }

    pub(in crate::tests) fn attempt_state(&self, task: TaskId) -> AttemptStateKind {
        self.newest(task).state.kind()
    }

    pub(in crate::tests) fn end_code(&self, task: TaskId, number: usize) -> Option<FailureCode> {
        match &self.task(task).attempts[number - 1].state {
            AttemptState::Ended(end) => end.failure_code.clone(),
            other => panic!("attempt {number} has not ended: {other:?}"),
        }
    }

    /// Takes all messages to a daemon since the last call.
    pub(in crate::tests) fn take_messages(&mut self, machine: &TestDaemon) -> Vec<DaemonMessage> {
        let (own, rest): (Vec<Delivery>, Vec<Delivery>) = std::mem::take(&mut self.deliveries)
            .into_iter()
            .partition(|send| matches!(send, Delivery::ToSession { session, .. } if *session == machine.session));
        self.deliveries = rest;
        let messages = own.into_iter().filter_map(|send| match send {
            Delivery::ToSession { message, .. } => Some(message),
            _ => None,
        });
        messages.collect()
    }

    pub(in crate::tests) fn rejections(&mut self, machine: &TestDaemon) -> Vec<Rejection> {
        let codes = self
            .take_messages(machine)
            .into_iter()
            .filter_map(|message| match message {
                DaemonMessage::FrameRejected { code, .. } => Some(code),
                _ => None,
            });
        codes.collect()
    }
}
