//! Helpers that block, resume and list parked tasks.

use std::sync::Arc;

use super::CoreHarness;
use super::frames::actor;
use crate::commands::{BlockTask, ListParkedTasks, ResumeTask};
use crate::goal::progress::{BlockDraft, SanitizedText};
use crate::ids::{AttemptId, TaskId};
use crate::io::rejection::Rejection;
use crate::record::{ResumeInstructions, TaskRecord};
use crate::samples;

impl CoreHarness {
    pub(in crate::tests) fn block(
        &mut self,
        task: TaskId,
        reason: &str,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        let block = BlockDraft {
            reason: reason.into(),
            ..BlockDraft::default()
        };
        let blocked = self.send(BlockTask {
            tenant: samples::tenant("acme"),
            task,
            by: actor(),
            block: Box::new(SanitizedText::new(block)),
        })?;
        Ok(blocked.record)
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
        self.send(ResumeTask {
            tenant: samples::tenant("acme"),
            task,
            resume: Box::new(resume),
            attempt,
        })
    }

    /// Ids of the parked tasks, in the order of the list.
    pub(in crate::tests) fn parked(&mut self) -> Vec<TaskId> {
        let listed = self.send(ListParkedTasks {
            tenant: samples::tenant("acme"),
            causes: Vec::new(),
            agent_scope: None,
            after: None,
            limit: 200,
        });
        let rows = listed.expect("a list is never refused");
        rows.into_iter().map(|(record, _)| record.task).collect()
    }
}
