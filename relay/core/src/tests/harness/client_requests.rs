//! What clients and operators ask for, in shorthand, and the tasks as they are stored.

use std::sync::Arc;

use uuid::Uuid;

use super::CoreHarness;
use super::frames::{actor, digest};
use crate::commands::{AnswerInput, CancelTask, InspectTask, SubmitTask};
use crate::ids::{InputId, TaskId, TokenId};
use crate::io::command::RequestActor;
use crate::io::effects::TaskView;
use crate::io::rejection::Rejection;
use crate::operator::task_operation::{OperateTask, OperatedTask, TaskOperation};
use crate::record::{
    AttemptRecord, AttemptState, AttemptStateKind, FailureCode, InputDecision, TaskRecord,
    TaskState,
};
use crate::samples;
use crate::task::spec::TaskSpec;
use crate::time::IdSource;

impl CoreHarness {
    pub(in crate::tests) fn submit(&mut self, spec: TaskSpec) -> TaskId {
        self.try_submit(spec).expect("admitted").0
    }

    pub(in crate::tests) fn try_submit(
        &mut self,
        spec: TaskSpec,
    ) -> Result<(TaskId, bool), Rejection> {
        let task = TaskId(self.ids.new_id());
        let digest = digest(&spec);
        let submitted = self.send(SubmitTask {
            task,
            spec: Arc::new(spec),
            digest,
        })?;
        Ok((submitted.record.task, submitted.created))
    }

    pub(in crate::tests) fn cancel(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        let canceled = self.send(CancelTask {
            tenant: samples::tenant("acme"),
            task,
            by: actor(),
            reason: None,
        })?;
        Ok(canceled.record)
    }

    pub(in crate::tests) fn retry(&mut self, task: TaskId) -> Result<Arc<TaskRecord>, Rejection> {
        // Another person each time, so that the rate limit is never reached.
        let by = RequestActor {
            token: TokenId(Uuid::from_u128(1_000 + u128::from(self.requests))),
            ..actor()
        };
        let verb = TaskOperation::Retry { allow_unsafe: true };
        let operated = self.operate_as(by, task, "once more", verb)?;
        Ok(operated.record)
    }

    pub(in crate::tests) fn operate(
        &mut self,
        task: TaskId,
        verb: TaskOperation,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let operated = self.operate_as(actor(), task, "a reason", verb)?;
        assert!(operated.changed, "it was so before");
        Ok(operated.record)
    }

    pub(in crate::tests) fn operate_as(
        &mut self,
        by: RequestActor,
        task: TaskId,
        reason: &str,
        operation: TaskOperation,
    ) -> Result<OperatedTask, Rejection> {
        self.send(OperateTask {
            tenant: samples::tenant("acme"),
            task,
            by,
            reason: reason.into(),
            operation,
        })
    }

    pub(in crate::tests) fn answer(
        &mut self,
        task: TaskId,
        input: InputId,
        approved: bool,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let decision = if approved {
            InputDecision::Allowed
        } else {
            InputDecision::Denied
        };
        self.send(AnswerInput {
            tenant: samples::tenant("acme"),
            task,
            input,
            by: actor(),
            decision,
            payload: Arc::from([]),
        })
    }

    pub(in crate::tests) fn inspect(&mut self, task: TaskId) -> Result<Box<TaskView>, Rejection> {
        let tenant = samples::tenant("acme");
        self.send(InspectTask { tenant, task })
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
}
