//! People and programs: they submit (some twice), cancel early, late and twice, retry, answer, pause and drain.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::effects::Reply;
use baton_core::id::{InputId, RequestId, TaskId, TenantId, TenantScope, TokenId};
use baton_core::input::{Actor, Input, Submit};
use baton_core::record::{DaemonOperation, Decision, TaskRecord, TaskState};
use baton_core::reject::Rejection;
use baton_core::spec::TaskSpec;
use baton_core::time::Mint;
use uuid::Uuid;

use crate::operators::{healer, on_daemon};
use crate::people::Promised;
use crate::store::State;
use crate::submissions::digest;
use crate::world::{Event, World};

#[derive(Debug, Default)]
pub(crate) struct Clients {
    requests: u64,
    asked: BTreeMap<u64, Asked>,
    pub(crate) submitted: Vec<Arc<TaskSpec>>,
    /// S7: what each key was acknowledged as, and for which prompt.
    keys: BTreeMap<(TenantId, String), (TaskId, String)>,
    known: Vec<TaskId>,
    /// Everything that a person was ever asked.
    inputs: Vec<(TenantId, TaskId, InputId)>,
    /// S4: an acknowledged cancel of an open task leaves one way to end.
    canceled: BTreeMap<TaskId, ()>,
    pub(crate) promised: Promised,
}

#[derive(Debug)]
pub(crate) enum Asked {
    Submit(Arc<TaskSpec>),
    /// A key of before with another prompt.
    Conflict(Arc<TaskSpec>),
    /// Something about another tenant's task.
    Foreign,
    Cancel(TaskId),
    /// An operator's verb.
    Operated(TaskId),
    Answer(InputId, Decision),
    /// A call of an agent.
    Agent(usize),
    /// A parked task is to go on, with this reason.
    Resume(TaskId, Arc<str>),
    Block(TaskId),
    /// This item is done.
    Progress(TaskId, Arc<str>),
    Daemons,
    Other,
}

impl Clients {
    pub(crate) fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// The relay's data are those of an earlier time: what was acknowledged since is gone.
    pub(crate) fn accept_loss(&mut self, state: &State) {
        self.promised.accept_loss(state);
        let there = |task: &TaskId| state.record(*task).is_some();
        self.known.retain(there);
        self.keys.retain(|_, (task, _)| there(task));
        self.inputs.retain(|(_, task, _)| there(task));
        self.canceled.retain(|task, ()| {
            let record = state.record(*task);
            record.is_some_and(|record| record.cancel.is_some())
        });
    }

    /// The relay died: what was asked may or may not have happened.
    pub(crate) fn forget_requests(&mut self) {
        self.asked.clear();
    }
}

pub(crate) fn actor() -> Actor {
    Actor {
        name: "alice".into(),
        token: TokenId(Uuid::from_u128(0xa11ce)),
        operator: false,
    }
}

impl World {
    pub(crate) fn client_acts(&mut self) {
        if self.healing {
            return;
        }
        let pace = self.options.storm_ms / (self.options.tasks as u64 * 3);
        let next = self.now + self.rng.between(1, pace.max(2));
        self.at(next, Event::Client);
        if self.options.goals && self.rng.chance(25) {
            return self.act_on_goals();
        }
        let many = self.clients.submitted.len() >= self.options.tasks;
        match self.rng.below(100) {
            0..=44 if !many => self.submit_new(),
            45..=47 if self.options.forces => self.force_some(),
            45..=52 => self.submit_again(),
            53..=54 => self.submit_other(),
            55..=69 if self.options.cancels => self.cancel_some(),
            70..=79 if self.options.retries => self.retry_some(),
            80..=83 if self.options.pauses => self.pause_some(),
            84..=87 if self.options.drains => self.drain_some(),
            88..=91 => self.answer_some(),
            92..=94 if self.options.late_answers => self.answer_old(),
            95 if self.options.imports => self.release_inherited(),
            96..=97 if self.options.retention => self.remove_some(),
            98 => self.probe(),
            _ => self.inspect_some(),
        }
    }

    fn submit_new(&mut self) {
        let spec = Arc::new(self.new_spec());
        self.clients.submitted.push(Arc::clone(&spec));
        self.submit(spec);
    }

    fn submit_again(&mut self) {
        let at = self.rng.index(self.clients.submitted.len());
        let spec = self.clients.submitted.get(at).cloned();
        if let Some(spec) = spec.filter(|spec| spec.idempotency_key.is_some()) {
            self.counts.resubmits += 1;
            self.submit(spec);
        }
    }

    /// The same key for something else.
    fn submit_other(&mut self) {
        let at = self.rng.index(self.clients.submitted.len());
        let spec = self.clients.submitted.get(at).cloned();
        if let Some(spec) = spec.filter(|spec| spec.idempotency_key.is_some()) {
            let other = Arc::new(TaskSpec {
                prompt: format!("other than {}", spec.prompt),
                ..TaskSpec::clone(&spec)
            });
            let request = self.submit_as(Arc::clone(&other));
            self.remember(request, Asked::Conflict(other));
        }
    }

    fn submit(&mut self, spec: Arc<TaskSpec>) {
        let request = self.submit_as(Arc::clone(&spec));
        self.remember(request, Asked::Submit(spec));
    }

    fn submit_as(&mut self, spec: Arc<TaskSpec>) -> Option<RequestId> {
        let task = TaskId(self.mint.id());
        let digest = digest(&spec);
        self.ask(|request| {
            Input::Submit(Submit {
                request,
                task,
                spec,
                digest,
                prior: Ok(None),
            })
        })
    }

    pub(crate) fn remember(&mut self, request: Option<RequestId>, asked: Asked) {
        if let Some(RequestId(number)) = request {
            self.saw_call(RequestId(number), &asked);
            self.clients.asked.insert(number, asked);
        }
    }

    /// The answer to this will be for somebody who waits elsewhere.
    pub(crate) fn expect(&mut self, request: u64, asked: Asked) {
        self.clients.asked.insert(request, asked);
    }

    pub(crate) fn some_task(&mut self) -> Option<(TenantId, TaskId)> {
        let task = self.rng.pick(&self.clients.known)?;
        let record = self.relay.store.view.record(task)?;
        Some((record.tenant.clone(), task))
    }

    fn cancel_some(&mut self) {
        let Some((tenant, task)) = self.some_task() else {
            return;
        };
        let by = Actor {
            operator: self.rng.chance(30),
            ..actor()
        };
        let request = self.ask(|request| Input::Cancel {
            request,
            tenant,
            task,
            by,
            reason: None,
            finished: None,
        });
        self.remember(request, Asked::Cancel(task));
    }

    /// Often one that is away: people drain a machine before they look at it.
    fn drain_some(&mut self) {
        let all: Vec<usize> = (0..self.daemons.len()).collect();
        let is_away = |index: &&usize| self.daemons[**index].conn.is_none();
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
        let request = self.ask(on_daemon(daemon, actor(), operation));
        self.remember(request, Asked::Other);
    }

    /// Retention, with no regard for age: what may not go must be refused.
    fn remove_some(&mut self) {
        let picked: Vec<_> = (0..4).filter_map(|_| self.some_task()).collect();
        let request = self.ask(|request| Input::RemoveFinished {
            request,
            tasks: picked,
            finished: Vec::new(),
        });
        self.remember(request, Asked::Other);
        let unseen_ms = self.rng.below(200_000);
        let request = self.ask(|request| Input::ForgetDaemons { request, unseen_ms });
        self.remember(request, Asked::Other);
        let (scope, by, reason) = (TenantScope::All, actor(), Arc::from("gone"));
        let daemon = self.daemons[self.rng.index(self.daemons.len())].id;
        let request = self.ask(|request| Input::ForgetDaemon {
            request,
            scope,
            daemon,
            by,
            reason,
        });
        self.remember(request, Asked::Other);
    }

    fn inspect_some(&mut self) {
        if let Some((tenant, task)) = self.some_task() {
            let request = self.ask(|request| Input::Inspect {
                request,
                tenant,
                task,
            });
            self.remember(request, Asked::Other);
        }
    }

    fn answer_some(&mut self) {
        let view = &self.relay.store.view;
        let open = view.live.values().filter_map(|record| {
            let inputs = &record.newest()?.inputs;
            let input = inputs.iter().find(|i| i.state.is_pending())?;
            Some((record.tenant.clone(), record.task, input.id))
        });
        let open: Vec<_> = open.collect();
        for (tenant, task, input) in open {
            let seen = (tenant.clone(), task, input);
            if !self.clients.inputs.contains(&seen) {
                self.clients.inputs.push(seen);
            }
            self.answer(tenant, task, input);
        }
    }

    /// Somebody answers what was asked long ago, or once more.
    fn answer_old(&mut self) {
        let place = self.rng.index(self.clients.inputs.len());
        if let Some((tenant, task, input)) = self.clients.inputs.get(place).cloned() {
            self.answer(tenant, task, input);
        }
    }

    fn answer(&mut self, tenant: TenantId, task: TaskId, input: InputId) {
        let (by, payload) = (actor(), Arc::from(*b"ok"));
        let decision = if self.rng.chance(60) {
            Decision::Allowed
        } else {
            Decision::Denied
        };
        let request = self.ask(|request| Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            decision,
            payload,
            finished: None,
        });
        self.counts.answers += 1;
        self.remember(request, Asked::Answer(input, decision));
    }

    /// In healing nothing stays paused, drained or unanswered.
    pub(crate) fn settle_clients(&mut self) {
        self.answer_some();
        self.unpause_all();
        for index in 0..self.daemons.len() {
            self.daemons[index].draining = false;
            self.daemons[index].full_until = 0;
            let (daemon, by) = (self.daemons[index].id, healer(self.now));
            self.ask(on_daemon(daemon, by, DaemonOperation::Undrain));
        }
    }

    pub(crate) fn replied(&mut self, request: RequestId, outcome: Result<Reply, Rejection>) {
        let Some(asked) = self.clients.asked.remove(&request.0) else {
            return;
        };
        self.saw_answer(request, &asked, &outcome);
        match (asked, outcome) {
            (Asked::Submit(spec), Ok(Reply::Submitted { record, created })) => {
                self.submit_acked(&spec, &record, created)
            }
            (Asked::Cancel(task), Ok(Reply::Task(record) | Reply::Finished(record))) => {
                self.cancel_acked(task, &record);
            }
            (Asked::Daemons, Ok(Reply::Daemons(views))) => {
                for view in views {
                    assert!(
                        view.held.is_empty(),
                        "L2: {} still holds {:?}",
                        view.record.name,
                        view.held
                    );
                    assert_eq!(
                        view.free_slots, view.record.slots,
                        "L2: {} keeps a place for nobody",
                        view.record.name
                    );
                }
            }
            (Asked::Other, Ok(Reply::Removed(tasks))) => self.counts.removals += tasks.len() as u64,
            (Asked::Answer(input, decision), Ok(Reply::Task(record))) => {
                answer_acked(input, decision, &record);
            }
            (Asked::Agent(agent), outcome) => self.agent_answered(agent, request.0, outcome),
            (Asked::Resume(_, reason), Ok(Reply::Task(record))) => {
                self.resume_acked(&reason, &record);
            }
            (Asked::Progress(_, item), Ok(Reply::Progressed { progress, .. })) => {
                self.progress_acked(&item, &progress);
            }
            (Asked::Block(_), Ok(Reply::Progressed { progress, .. })) => {
                self.counts.blocks += 1;
                self.clients.promised.progressed(&progress);
            }
            (Asked::Answer(..), Err(_)) => self.counts.refused_answers += 1,
            (Asked::Foreign, outcome) => self.foreign_answered(outcome),
            (Asked::Conflict(spec), outcome) => self.conflict_answered(&spec, outcome),
            (
                Asked::Submit(_)
                | Asked::Cancel(_)
                | Asked::Operated(_)
                | Asked::Answer(..)
                | Asked::Resume(..)
                | Asked::Progress(..)
                | Asked::Block(_)
                | Asked::Daemons
                | Asked::Other,
                _,
            ) => {}
        }
    }

    pub(crate) fn submit_acked(&mut self, spec: &TaskSpec, record: &TaskRecord, created: bool) {
        self.counts.submits += u64::from(created);
        if !self.clients.known.contains(&record.task) {
            self.clients.known.push(record.task);
        }
        let Some(key) = spec.idempotency_key.clone() else {
            return;
        };
        let this = (record.task, spec.prompt.clone());
        let key = (spec.tenant.clone(), key);
        let known = self.clients.keys.insert(key, this.clone());
        // A key lives as long as its task.
        let removed = &self.relay.store.view.removed;
        let known = known.filter(|(task, _)| !removed.contains_key(task));
        assert!(
            known
                .as_ref()
                .is_none_or(|known| *known == this && !created),
            "S7: one key was taken for {known:?} and {this:?}"
        );
    }

    /// A task that an agent began is as good as any.
    pub(crate) fn known_by_agents(&mut self, spec: &TaskSpec, record: &TaskRecord) {
        self.submit_acked(spec, record, false);
    }

    fn cancel_acked(&mut self, task: TaskId, record: &TaskRecord) {
        assert_eq!(task, record.task);
        assert!(
            record.cancel.is_some() || record.state.is_terminal(),
            "S4: acknowledged and not canceled: {task}"
        );
        if record.cancel.is_some() {
            self.clients.canceled.insert(task, ());
        }
    }

    /// The last look: every acknowledged task is there, every acknowledged cancel held, nobody holds anything.
    pub(crate) fn check_acknowledged(&mut self) {
        for task in &self.clients.known {
            let record = self.relay.store.durable.record(*task);
            assert!(record.is_some(), "S4: {task} was acknowledged and is gone");
        }
        for task in self.clients.canceled.keys() {
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
        let request = self.ask(|request| Input::ListDaemons {
            request,
            scope: TenantScope::All,
        });
        self.remember(request, Asked::Daemons);
    }
}

/// S8: an answer that was taken is the answer, whatever became of it since.
fn answer_acked(input: InputId, decision: Decision, record: &TaskRecord) {
    let mut inputs = record.attempts.iter().flat_map(|attempt| &attempt.inputs);
    let asked = inputs.find(|known| known.id == input);
    let given = asked.and_then(|asked| asked.state.answer());
    let given = given.map(|given| given.decision);
    assert_eq!(given, Some(decision), "S8: the answer to {input} was taken");
}
