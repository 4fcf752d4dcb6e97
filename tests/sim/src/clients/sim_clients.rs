//! People and programs: they submit (some twice), cancel early, late and twice, retry, answer,
//! pause and drain.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::commands::{
    AnswerInput, CancelTask, ForgetAbsentDaemons, ForgetDaemon, InspectTask, ListDaemons,
    RemoveFinishedTasks, SubmitTask,
};
use baton_core::ids::{InputId, TaskId, TenantId, TenantScope, TokenId};
use baton_core::io::command::RequestActor;
use baton_core::record::{DaemonOperation, InputDecision, TaskRecord, TaskState};
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;
use uuid::Uuid;

use crate::clients::goal_clients::AcknowledgedGoals;
use crate::clients::operators::{healing_operator, operate_daemon_command};
use crate::clients::task_specs::spec_digest;
use crate::relay::sim_reply::{RequestId, SimOutcome, SimReply};
use crate::relay::sim_store::StoreState;
use crate::simulation::{ScheduledEvent, Simulation};

#[derive(Debug, Default)]
pub(crate) struct SimClients {
    last_request: u64,
    pending_requests: BTreeMap<u64, SimClientRequest>,
    pub(crate) submitted: Vec<Arc<TaskSpec>>,
    /// S7: the task and prompt that each key was acknowledged for.
    keys: BTreeMap<(TenantId, String), (TaskId, String)>,
    known_tasks: Vec<TaskId>,
    /// All inputs that were ever opened.
    known_inputs: Vec<(TenantId, TaskId, InputId)>,
    /// S4: an open task with an acknowledged cancel can only end as canceled.
    canceled_tasks: BTreeMap<TaskId, ()>,
    pub(crate) acknowledged_goals: AcknowledgedGoals,
}

#[derive(Debug)]
pub(crate) enum SimClientRequest {
    Submit(Arc<TaskSpec>),
    /// An earlier key with another prompt.
    Conflict(Arc<TaskSpec>),
    /// A request about another tenant's task.
    ForeignTask,
    Cancel(TaskId),
    /// A force command.
    Operate(TaskId),
    Answer(InputId, InputDecision),
    /// A call of an agent.
    AgentCall(usize),
    /// Resumes a parked task with this reason.
    Resume(TaskId, Arc<str>),
    Block(TaskId),
    /// Reports this item as completed.
    Progress(TaskId, Arc<str>),
    ListDaemons,
    Other,
}

impl SimClients {
    pub(crate) fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }

    /// The relay's data is that of an earlier time: later acknowledgements are lost.
    pub(crate) fn forget_lost_data(&mut self, state: &StoreState) {
        self.acknowledged_goals.forget_lost_data(state);
        let there = |task: &TaskId| state.record(*task).is_some();
        self.known_tasks.retain(there);
        self.keys.retain(|_, (task, _)| there(task));
        self.known_inputs.retain(|(_, task, _)| there(task));
        self.canceled_tasks.retain(|task, ()| {
            let record = state.record(*task);
            record.is_some_and(|record| record.cancel.is_some())
        });
    }

    /// The relay died: pending requests may have taken effect or not.
    pub(crate) fn clear_pending_requests(&mut self) {
        self.pending_requests.clear();
    }
}

pub(crate) fn client_actor() -> RequestActor {
    RequestActor {
        name: "alice".into(),
        token: TokenId(Uuid::from_u128(0xa11ce)),
        operator: false,
    }
}

impl Simulation {
    pub(crate) fn act_as_client(&mut self) {
        if self.healing {
            return;
        }
        let pace = self.options.storm_ms / (self.options.tasks as u64 * 3);
        let next = self.now + self.rng.between(1, pace.max(2));
        self.schedule(next, ScheduledEvent::ClientAction);
        if self.options.goals && self.rng.chance(25) {
            return self.act_on_goals();
        }
        let many = self.clients.submitted.len() >= self.options.tasks;
        match self.rng.below(100) {
            0..=44 if !many => self.submit_new(),
            45..=47 if self.options.forced_operations => self.force_random_task(),
            45..=52 => self.submit_duplicate(),
            53..=54 => self.submit_conflicting(),
            55..=69 if self.options.cancels => self.cancel_random_task(),
            70..=79 if self.options.retries => self.retry_random_task(),
            80..=83 if self.options.pauses => self.pause_randomly(),
            84..=87 if self.options.drains => self.drain_random_daemon(),
            88..=91 => self.answer_open_inputs(),
            92..=94 if self.options.late_answers => self.answer_old_input(),
            95 if self.options.imports => self.release_inherited_tasks(),
            96..=97 if self.options.retention => self.remove_random_tasks(),
            98 => self.probe_foreign_task(),
            _ => self.inspect_random_task(),
        }
    }

    fn submit_new(&mut self) {
        let spec = Arc::new(self.random_spec());
        self.clients.submitted.push(Arc::clone(&spec));
        self.submit_spec(spec);
    }

    fn submit_duplicate(&mut self) {
        let at = self.rng.random_index(self.clients.submitted.len());
        let spec = self.clients.submitted.get(at).cloned();
        if let Some(spec) = spec.filter(|spec| spec.idempotency_key.is_some()) {
            self.counts.resubmits += 1;
            self.submit_spec(spec);
        }
    }

    /// The same key with another body.
    fn submit_conflicting(&mut self) {
        let at = self.rng.random_index(self.clients.submitted.len());
        let spec = self.clients.submitted.get(at).cloned();
        if let Some(spec) = spec.filter(|spec| spec.idempotency_key.is_some()) {
            let other = Arc::new(TaskSpec {
                prompt: format!("other than {}", spec.prompt),
                ..TaskSpec::clone(&spec)
            });
            let request = self.send_submit(Arc::clone(&other));
            self.track_request(request, SimClientRequest::Conflict(other));
        }
    }

    fn submit_spec(&mut self, spec: Arc<TaskSpec>) {
        let request = self.send_submit(Arc::clone(&spec));
        self.track_request(request, SimClientRequest::Submit(spec));
    }

    fn send_submit(&mut self, spec: Arc<TaskSpec>) -> Option<RequestId> {
        let task = TaskId(self.id_source.new_id());
        let digest = spec_digest(&spec);
        self.send_request(SubmitTask { task, spec, digest }, SimReply::from)
    }

    pub(crate) fn track_request(&mut self, request: Option<RequestId>, asked: SimClientRequest) {
        if let Some(RequestId(number)) = request {
            self.record_client_call(RequestId(number), &asked);
            self.clients.pending_requests.insert(number, asked);
        }
    }

    /// The answer is for an agent, which is handled elsewhere.
    pub(crate) fn track_agent_request(&mut self, request: u64, asked: SimClientRequest) {
        self.clients.pending_requests.insert(request, asked);
    }

    pub(crate) fn pick_task(&mut self) -> Option<(TenantId, TaskId)> {
        let task = self.rng.pick(&self.clients.known_tasks)?;
        let record = self.relay.store.view.record(task)?;
        Some((record.tenant.clone(), task))
    }

    fn cancel_random_task(&mut self) {
        let Some((tenant, task)) = self.pick_task() else {
            return;
        };
        let by = RequestActor {
            operator: self.rng.chance(30),
            ..client_actor()
        };
        let cancel = CancelTask {
            tenant,
            task,
            by,
            reason: None,
        };
        let request = self.send_request(cancel, SimReply::from);
        self.track_request(request, SimClientRequest::Cancel(task));
    }

    /// Often one that is offline: people drain a machine before they inspect it.
    fn drain_random_daemon(&mut self) {
        let all: Vec<usize> = (0..self.daemons.len()).collect();
        let is_away = |index: &&usize| self.daemons[**index].stream.is_none();
        let away: Vec<usize> = all.iter().filter(is_away).copied().collect();
        let from = if away.is_empty() { all } else { away };
        let index = self.rng.pick(&from).unwrap_or_default();
        let daemon = self.daemons[index].id;
        let drain = self.rng.chance(60);
        if !drain {
            self.daemons[index].draining = false;
        }
        let operation = if drain {
            DaemonOperation::Drain
        } else {
            DaemonOperation::Undrain
        };
        let operate = operate_daemon_command(daemon, client_actor(), operation);
        let request = self.send_request(operate, SimReply::other);
        self.track_request(request, SimClientRequest::Other);
    }

    /// Retention without regard for age: tasks that must stay have to be rejected.
    fn remove_random_tasks(&mut self) {
        let picked: Vec<_> = (0..4).filter_map(|_| self.pick_task()).collect();
        let request = self.send_request(RemoveFinishedTasks { tasks: picked }, SimReply::Removed);
        self.track_request(request, SimClientRequest::Other);
        let unseen_ms = self.rng.below(200_000);
        let request = self.send_request(ForgetAbsentDaemons { unseen_ms }, SimReply::other);
        self.track_request(request, SimClientRequest::Other);
        let (scope, by, reason) = (TenantScope::All, client_actor(), Arc::from("gone"));
        let daemon = self.daemons[self.rng.random_index(self.daemons.len())].id;
        let forget = ForgetDaemon {
            scope,
            daemon,
            by,
            reason,
        };
        let request = self.send_request(forget, SimReply::other);
        self.track_request(request, SimClientRequest::Other);
    }

    fn inspect_random_task(&mut self) {
        if let Some((tenant, task)) = self.pick_task() {
            let request = self.send_request(InspectTask { tenant, task }, SimReply::other);
            self.track_request(request, SimClientRequest::Other);
        }
    }

    fn answer_open_inputs(&mut self) {
        let view = &self.relay.store.view;
        let open = view.live.values().filter_map(|record| {
            let inputs = &record.newest_attempt()?.inputs;
            let input = inputs.iter().find(|i| i.state.is_pending())?;
            Some((record.tenant.clone(), record.task, input.id))
        });
        let open: Vec<_> = open.collect();
        for (tenant, task, input) in open {
            let seen = (tenant.clone(), task, input);
            if !self.clients.known_inputs.contains(&seen) {
                self.clients.known_inputs.push(seen);
            }
            self.answer_input(tenant, task, input);
        }
    }

    /// Answers an input that was opened long ago, or answers it again.
    fn answer_old_input(&mut self) {
        let place = self.rng.random_index(self.clients.known_inputs.len());
        if let Some((tenant, task, input)) = self.clients.known_inputs.get(place).cloned() {
            self.answer_input(tenant, task, input);
        }
    }

    fn answer_input(&mut self, tenant: TenantId, task: TaskId, input: InputId) {
        let (by, payload) = (client_actor(), Arc::from(*b"ok"));
        let decision = if self.rng.chance(60) {
            InputDecision::Allowed
        } else {
            InputDecision::Denied
        };
        let answer = AnswerInput {
            tenant,
            task,
            input,
            by,
            decision,
            payload,
        };
        let request = self.send_request(answer, SimReply::Task);
        self.counts.answers += 1;
        self.track_request(request, SimClientRequest::Answer(input, decision));
    }

    /// In the healing phase nothing stays paused, drained or unanswered.
    pub(crate) fn lift_pauses_and_drains(&mut self) {
        self.answer_open_inputs();
        self.unpause_all();
        for index in 0..self.daemons.len() {
            self.daemons[index].draining = false;
            self.daemons[index].disk_full_until = 0;
            let (daemon, by) = (self.daemons[index].id, healing_operator(self.now));
            let undrain = operate_daemon_command(daemon, by, DaemonOperation::Undrain);
            self.send_request(undrain, SimReply::other);
        }
    }

    pub(crate) fn handle_reply(&mut self, request: RequestId, outcome: SimOutcome) {
        let Some(asked) = self.clients.pending_requests.remove(&request.0) else {
            return;
        };
        self.record_client_answer(request, &asked, &outcome);
        match (asked, outcome) {
            (SimClientRequest::Submit(spec), Ok(SimReply::Submitted { record, created })) => {
                self.record_submit_ack(&spec, &record, created)
            }
            (
                SimClientRequest::Cancel(task),
                Ok(SimReply::Task(record) | SimReply::Finished(record)),
            ) => {
                self.record_cancel_ack(task, &record);
            }
            (SimClientRequest::ListDaemons, Ok(SimReply::Daemons(views))) => {
                for view in views {
                    assert!(
                        view.held_attempts.is_empty(),
                        "L2: {} still holds {:?}",
                        view.record.name,
                        view.held_attempts
                    );
                    assert_eq!(
                        view.free_slots, view.record.slots,
                        "L2: {} keeps a place for nobody",
                        view.record.name
                    );
                }
            }
            (SimClientRequest::Other, Ok(SimReply::Removed(tasks))) => {
                self.counts.removals += tasks.len() as u64
            }
            (SimClientRequest::Answer(input, decision), Ok(SimReply::Task(record))) => {
                check_answer_ack(input, decision, &record);
            }
            (SimClientRequest::AgentCall(agent), outcome) => {
                self.record_agent_reply(agent, request.0, outcome)
            }
            (SimClientRequest::Resume(_, reason), Ok(SimReply::Task(record))) => {
                self.record_resume_ack(&reason, &record);
            }
            (SimClientRequest::Progress(_, item), Ok(SimReply::Progressed { progress, .. })) => {
                self.record_progress_ack(&item, &progress);
            }
            (SimClientRequest::Block(_), Ok(SimReply::Progressed { progress, .. })) => {
                self.counts.blocks += 1;
                self.clients.acknowledged_goals.record_progress(&progress);
            }
            (SimClientRequest::Answer(..), Err(_)) => self.counts.refused_answers += 1,
            (SimClientRequest::ForeignTask, outcome) => self.check_foreign_reply(outcome),
            (SimClientRequest::Conflict(spec), outcome) => {
                self.handle_conflict_reply(&spec, outcome)
            }
            (
                SimClientRequest::Submit(_)
                | SimClientRequest::Cancel(_)
                | SimClientRequest::Operate(_)
                | SimClientRequest::Answer(..)
                | SimClientRequest::Resume(..)
                | SimClientRequest::Progress(..)
                | SimClientRequest::Block(_)
                | SimClientRequest::ListDaemons
                | SimClientRequest::Other,
                _,
            ) => {}
        }
    }

    pub(crate) fn record_submit_ack(
        &mut self,
        spec: &TaskSpec,
        record: &TaskRecord,
        created: bool,
    ) {
        self.counts.submits += u64::from(created);
        if !self.clients.known_tasks.contains(&record.task) {
            self.clients.known_tasks.push(record.task);
        }
        let Some(key) = spec.idempotency_key.clone() else {
            return;
        };
        let this = (record.task, spec.prompt.clone());
        let key = (spec.tenant.clone(), key);
        let known = self.clients.keys.insert(key, this.clone());
        // A key is stored as long as its task.
        let removed = &self.relay.store.view.removed;
        let known = known.filter(|(task, _)| !removed.contains_key(task));
        assert!(
            known
                .as_ref()
                .is_none_or(|known| *known == this && !created),
            "S7: one key was taken for {known:?} and {this:?}"
        );
    }

    /// A task that an agent started counts like any other.
    pub(crate) fn record_agent_task(&mut self, spec: &TaskSpec, record: &TaskRecord) {
        self.record_submit_ack(spec, record, false);
    }

    fn record_cancel_ack(&mut self, task: TaskId, record: &TaskRecord) {
        assert_eq!(task, record.task);
        assert!(
            record.cancel.is_some() || record.state.is_terminal(),
            "S4: acknowledged and not canceled: {task}"
        );
        if record.cancel.is_some() {
            self.clients.canceled_tasks.insert(task, ());
        }
    }

    /// The final check: every acknowledged task exists, every acknowledged cancel took effect,
    /// and no lease is left.
    pub(crate) fn check_acknowledged_tasks(&mut self) {
        for task in &self.clients.known_tasks {
            let record = self.relay.store.durable.record(*task);
            assert!(record.is_some(), "S4: {task} was acknowledged and is gone");
        }
        for task in self.clients.canceled_tasks.keys() {
            let record = self
                .relay
                .store
                .durable
                .record(*task)
                .expect("looked at above");
            assert_eq!(
                record.state,
                TaskState::Canceled,
                "S4: the cancel of {task} was acknowledged"
            );
        }
        let scope = TenantScope::All;
        let request = self.send_request(ListDaemons { scope }, SimReply::Daemons);
        self.track_request(request, SimClientRequest::ListDaemons);
    }
}

/// S8: an accepted answer stays the answer.
fn check_answer_ack(input: InputId, decision: InputDecision, record: &TaskRecord) {
    let mut inputs = record.attempts.iter().flat_map(|attempt| &attempt.inputs);
    let asked = inputs.find(|known| known.id == input);
    let given = asked.and_then(|asked| asked.state.answer());
    let given = given.map(|given| given.decision);
    assert_eq!(given, Some(decision), "S8: the answer to {input} was taken");
}
