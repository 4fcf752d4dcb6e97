//! Helpers that block, resume and list parked tasks.

use std::sync::Arc;

use super::CoreHarness;
use super::frames::actor;
use crate::goal::progress::{BlockDraft, SanitizedText};
use crate::ids::{AttemptId, TaskId};
use crate::io::command::CoreCommand;
use crate::io::effects::CoreReply;
use crate::io::rejection::Rejection;
use crate::record::{ResumeInstructions, TaskRecord};
use crate::samples;

impl CoreHarness {
    pub(in crate::tests) fn block(
        &mut self,
        task: TaskId,
        reason: &str,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let (finished, known) = (self.store.finished(task), self.store.stored_progress(task));
        let block = BlockDraft {
            reason: reason.into(),
            ..BlockDraft::default()
        };
        let request = self.request();
        self.send_input(CoreCommand::Block {
            request,
            tenant: samples::tenant("acme"),
            task,
            by: actor(),
            block: Box::new(SanitizedText::new(block)),
            stored_progress: known,
            finished,
        });
        self.task_reply(request)
    }

    pub(in crate::tests) fn resume(
        &mut self,
        task: TaskId,
        attempt: Option<AttemptId>,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let resume = ResumeInstructions {
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
        resume: ResumeInstructions,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
        let resume = Box::new(resume);
        self.send_input(CoreCommand::Resume {
            request,
            tenant: samples::tenant("acme"),
            task,
            resume,
            attempt,
            finished,
        });
        self.task_reply(request)
    }

    /// Ids of the parked tasks, in the order of the list.
    pub(in crate::tests) fn parked(&mut self) -> Vec<TaskId> {
        let listed = self.send_request(|request| CoreCommand::ListParked {
            request,
            tenant: samples::tenant("acme"),
            causes: Vec::new(),
            agent_scope: None,
            after: None,
            limit: 200,
        });
        match listed.expect("a list is never refused") {
            CoreReply::Parked(rows) => rows.into_iter().map(|(record, _)| record.task).collect(),
            other => panic!("not a list of parked tasks: {other:?}"),
        }
    }
}
