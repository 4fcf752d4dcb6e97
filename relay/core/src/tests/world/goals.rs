//! What people say about parked work.

use std::sync::Arc;

use super::World;
use super::bodies::actor;
use crate::effects::Reply;
use crate::goal::{BlockDraft, Clean};
use crate::id::{AttemptId, TaskId};
use crate::input::Input;
use crate::record::{Resume, TaskRecord};
use crate::reject::Rejection;
use crate::samples;

impl World {
    pub(in crate::tests) fn block(
        &mut self,
        task: TaskId,
        reason: &str,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let (finished, known) = (self.store.finished(task), self.store.known(task));
        let block = BlockDraft {
            reason: reason.into(),
            ..BlockDraft::default()
        };
        let request = self.request();
        self.say(Input::Block {
            request,
            tenant: samples::tenant("acme"),
            task,
            by: actor(),
            block: Box::new(Clean::new(block)),
            known,
            finished,
        });
        self.task_reply(request)
    }

    pub(in crate::tests) fn resume(
        &mut self,
        task: TaskId,
        attempt: Option<AttemptId>,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let resume = Resume {
            by: "alice".into(),
            reason: "go on".into(),
            instructions: "use the other key".into(),
            answers: Vec::new(),
        };
        self.resume_saying(task, attempt, resume)
    }

    pub(in crate::tests) fn resume_saying(
        &mut self,
        task: TaskId,
        attempt: Option<AttemptId>,
        resume: Resume,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
        let resume = Box::new(resume);
        self.say(Input::Resume {
            request,
            tenant: samples::tenant("acme"),
            task,
            resume,
            attempt,
            finished,
        });
        self.task_reply(request)
    }

    /// Ids of the parked tasks, as a list shows them.
    pub(in crate::tests) fn parked(&mut self) -> Vec<TaskId> {
        let listed = self.ask(|request| Input::ListParked {
            request,
            tenant: samples::tenant("acme"),
            causes: Vec::new(),
            agent_scope: None,
            after: None,
            limit: 200,
        });
        match listed.expect("a list is never refused") {
            Reply::Parked(rows) => rows.into_iter().map(|(record, _)| record.task).collect(),
            other => panic!("not a list of parked tasks: {other:?}"),
        }
    }
}
