//! People's calls about goals: they report progress, block, resume (with and without a reason,
//! twice, late), and list parked tasks. Acknowledged calls are checked at the end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::commands::{BlockTask, ListParkedTasks, ResumeTask, UpdateProgress};
use baton_core::goal::progress::{
    BlockDraft, CheckpointDraft, GoalReport, MAX_CHECKPOINTS, ProgressUpdate, SanitizedText,
};
use baton_core::ids::{AttemptId, CheckpointId, TaskId, TenantId};
use baton_core::record::{
    CheckpointRecord, EvidenceItem, FailedItem, ProgressRecord, ResumeInstructions, TaskRecord,
};

use crate::checks::agent_calls::{HandOffProbe, ParkedListCheck, RequestProbe};
use crate::clients::sim_clients::{SimClientRequest, client_actor};
use crate::relay::sim_reply::SimReply;
use crate::relay::sim_store::StoreState;
use crate::simulation::Simulation;

/// Acknowledged calls about goals.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedGoals {
    progress: BTreeMap<TaskId, Arc<ProgressRecord>>,
    checkpoints: BTreeMap<(TaskId, u64), CheckpointId>,
    /// The successor of each parked attempt.
    successors: BTreeMap<AttemptId, AttemptId>,
    /// Parked attempts that a client has seen.
    seen_parked: Vec<(TaskId, AttemptId)>,
    texts_made: u64,
}

impl AcknowledgedGoals {
    /// The relay's data is that of an earlier time.
    pub(crate) fn forget_lost_data(&mut self, state: &StoreState) {
        self.progress.clone_from(&state.progress);
        let there = |key: &(TaskId, u64), id: &mut CheckpointId| {
            state
                .checkpoints
                .get(key)
                .is_some_and(|kept| kept.id == *id)
        };
        self.checkpoints.retain(there);
        self.successors.clear();
    }

    pub(crate) fn record_progress(&mut self, progress: &Arc<ProgressRecord>) {
        let known = self
            .progress
            .entry(progress.task)
            .or_insert_with(|| Arc::clone(progress));
        if count_items(known) <= count_items(progress) {
            *known = Arc::clone(progress);
        }
    }

    pub(crate) fn record_checkpoint(&mut self, written: &CheckpointRecord) {
        let at = (written.task, written.number);
        let known = *self.checkpoints.entry(at).or_insert(written.id);
        assert_eq!(
            known, written.id,
            "goals: checkpoint {at:?} was acknowledged twice"
        );
    }

    /// A parked attempt is resumed once.
    pub(crate) fn record_hand_off(&mut self, record: &TaskRecord) {
        let Some(newest) = record.newest_attempt() else {
            return;
        };
        let Some(from) = newest.previous else { return };
        let to = *self.successors.entry(from).or_insert(newest.id);
        assert_eq!(
            to, newest.id,
            "hand-off: {} was sent on from {from} twice",
            record.task
        );
    }
}

fn count_items(progress: &ProgressRecord) -> (u64, u64) {
    let completed = progress.completed.len() as u64 + progress.completed_truncated;
    let evidence = progress.evidence.len() as u64 + progress.evidence_truncated;
    (completed, evidence)
}

impl Simulation {
    pub(crate) fn act_on_goals(&mut self) {
        match self.rng.below(100) {
            0..=29 => self.update_random_progress(),
            30..=49 => self.block_random_task(),
            50..=69 => self.resume_random_task(),
            70..=79 => self.resume_stale_attempt(),
            _ => self.list_parked_tasks(),
        }
    }

    fn update_random_progress(&mut self) {
        let Some((tenant, task)) = self.pick_task() else {
            return;
        };
        let (item, update) = self.random_progress_item();
        let update = UpdateProgress {
            tenant,
            task,
            update: Box::new(update),
        };
        let request = self.send_request(update, SimReply::from);
        self.track_request(request, SimClientRequest::Progress(task, item));
    }

    fn block_random_task(&mut self) {
        let Some((tenant, task)) = self.pick_task() else {
            return;
        };
        let GoalReport::Block(block) = self.random_block("look at it") else {
            return;
        };
        let by = client_actor();
        let block = BlockTask {
            tenant,
            task,
            by,
            block: Box::new(block),
        };
        let request = self.send_request(block, SimReply::from);
        self.track_request(request, SimClientRequest::Block(task));
    }

    fn resume_random_task(&mut self) {
        let tenant = self.pick_tenant();
        let Some((task, seen)) = self.pick_parked_task(&tenant) else {
            return;
        };
        let twice = self.rng.chance(30);
        for _ in 0..=u32::from(twice) {
            let seen = self.rng.chance(60).then_some(seen);
            self.resume_task(task, seen);
        }
    }

    /// A client resumes an attempt that it saw long ago.
    fn resume_stale_attempt(&mut self) {
        let place = self
            .rng
            .random_index(self.clients.acknowledged_goals.seen_parked.len());
        if let Some((task, seen)) = self
            .clients
            .acknowledged_goals
            .seen_parked
            .get(place)
            .copied()
        {
            self.resume_task(task, Some(seen));
        }
    }

    pub(crate) fn resume_task(&mut self, task: TaskId, seen: Option<AttemptId>) {
        let Some(record) = self.relay.store.view.record(task) else {
            return;
        };
        let tenant = record.tenant.clone();
        self.clients.acknowledged_goals.texts_made += 1;
        let reason: Arc<str> =
            format!("go on {}", self.clients.acknowledged_goals.texts_made).into();
        let mut resume = ResumeInstructions {
            by: "alice".into(),
            reason: Arc::clone(&reason),
            ..ResumeInstructions::default()
        };
        if self.rng.chance(50) {
            resume.instructions = "use the other branch".into();
            resume.answers = vec![("which".into(), "this".into())];
        }
        let resume = ResumeTask {
            tenant,
            task,
            resume: Box::new(resume),
            attempt: seen,
        };
        let request = self.send_probed_request(resume, SimReply::Task, |request| {
            Some(RequestProbe::HandOff(HandOffProbe {
                request,
                task,
                seen,
                is_pick_up: false,
            }))
        });
        self.track_request(request, SimClientRequest::Resume(task, reason));
    }

    fn list_parked_tasks(&mut self) {
        let tenant = self.pick_tenant();
        let scope = self.rng.chance(30).then(|| Arc::from("north"));
        let view = &self.relay.store.view;
        let mut parked = view.live.values().filter(|task| task.tenant == tenant);
        let first = parked.find_map(|task| Some((task.attention.as_ref()?.since, task.task)));
        let after = first.filter(|_| self.rng.chance(30));
        let after = after.map(|(since, task)| (Reverse(since), task));
        let limit = self.rng.pick(&[2, 50]).unwrap_or(50);
        let limit = usize::try_from(limit).unwrap_or(50);
        let list = ListParkedTasks {
            tenant: tenant.clone(),
            causes: Vec::new(),
            agent_scope: scope.clone(),
            after,
            limit,
        };
        let request = self.send_probed_request(list, SimReply::parked, |request| {
            Some(RequestProbe::ParkedList(ParkedListCheck {
                request,
                tenant,
                scope,
                after,
                limit,
            }))
        });
        self.track_request(request, SimClientRequest::Other);
    }

    /// A parked task with its parked attempt.
    pub(crate) fn pick_parked_task(&mut self, tenant: &TenantId) -> Option<(TaskId, AttemptId)> {
        let live = self.relay.store.view.live.values();
        let parked = live.filter(|task| task.tenant == *tenant && task.attention.is_some());
        let parked: Vec<_> = parked
            .filter_map(|task| Some((task.task, task.newest_attempt()?.id)))
            .collect();
        let picked = self.rng.pick(&parked)?;
        if !self
            .clients
            .acknowledged_goals
            .seen_parked
            .contains(&picked)
        {
            self.clients.acknowledged_goals.seen_parked.push(picked);
        }
        Some(picked)
    }

    /// Progress or a checkpoint of a worker.
    pub(crate) fn random_goal_update(&mut self) -> GoalReport {
        if self.rng.chance(50) {
            GoalReport::Progress(self.random_progress())
        } else {
            GoalReport::Checkpoint(SanitizedText::new(self.random_checkpoint()))
        }
    }

    pub(crate) fn random_progress(&mut self) -> SanitizedText<ProgressUpdate> {
        self.random_progress_item().1
    }

    fn random_progress_item(&mut self) -> (Arc<str>, SanitizedText<ProgressUpdate>) {
        self.clients.acknowledged_goals.texts_made += 1;
        let item: Arc<str> = format!("item {}", self.clients.acknowledged_goals.texts_made).into();
        let failed = self.rng.chance(20).then(|| FailedItem {
            item: "half".into(),
            reason: "no".into(),
        });
        let seen = if self.rng.chance(25) { 27 } else { 1 };
        let evidence = (0..seen).map(|_| EvidenceItem {
            kind: "file".into(),
            reference: Arc::clone(&item),
            summary: "".into(),
        });
        let update = ProgressUpdate {
            summary: Some(Arc::clone(&item)),
            completed: vec![Arc::clone(&item)],
            failed: failed.into_iter().collect(),
            cursor: None,
            evidence: evidence.collect(),
        };
        (item, SanitizedText::new(update))
    }

    fn random_checkpoint(&mut self) -> CheckpointDraft {
        self.clients.acknowledged_goals.texts_made += 1;
        CheckpointDraft {
            summary: format!("milestone {}", self.clients.acknowledged_goals.texts_made).into(),
            ..CheckpointDraft::default()
        }
    }

    pub(crate) fn random_block(&mut self, reason: &str) -> GoalReport {
        let checkpoint = self.rng.chance(50).then(|| self.random_checkpoint());
        GoalReport::Block(SanitizedText::new(BlockDraft {
            reason: reason.into(),
            hint: None,
            checkpoint,
        }))
    }

    /// The reason is stored with the task.
    pub(crate) fn record_resume_ack(&mut self, reason: &str, record: &TaskRecord) {
        self.counts.resumes += 1;
        let words = record
            .newest_attempt()
            .and_then(|newest| newest.resume.as_ref());
        assert!(
            words.is_some_and(|words| *words.reason == *reason),
            "hand-off: {} was sent on without what was said",
            record.task
        );
        self.clients.acknowledged_goals.record_hand_off(record);
    }

    pub(crate) fn record_progress_ack(&mut self, item: &str, progress: &Arc<ProgressRecord>) {
        self.counts.progress += 1;
        self.counts.truncated += u64::from(progress.evidence_truncated > 0);
        let there = progress.completed.iter().any(|known| **known == *item);
        assert!(there, "goals: {item} of {} was not taken in", progress.task);
        self.clients.acknowledged_goals.record_progress(progress);
    }

    /// The final check: acknowledged data is stored, or was replaced by newer data that is
    /// counted.
    pub(crate) fn check_acknowledged_goals(&self) {
        let durable = &self.relay.store.durable;
        let gone = |task: &TaskId| durable.removed.contains_key(task);
        for (task, told) in &self.clients.acknowledged_goals.progress {
            let Some(kept) = durable.progress.get(task) else {
                assert!(
                    gone(task),
                    "S4: the progress of {task} was acknowledged and is gone"
                );
                continue;
            };
            let (was, is) = (count_items(told), count_items(kept));
            assert!(
                was.0 <= is.0 && was.1 <= is.1,
                "S4: progress of {task} is gone"
            );
            let lost = told
                .completed
                .iter()
                .find(|item| !kept.completed.contains(item));
            assert!(
                lost.is_none() || kept.completed_truncated > 0,
                "S4: {lost:?} of {task} was acknowledged and is gone"
            );
        }
        for ((task, number), id) in &self.clients.acknowledged_goals.checkpoints {
            let newest = durable
                .record(*task)
                .map_or(0, |record| record.checkpoint_count);
            let kept = durable.checkpoints.get(&(*task, *number));
            let pushed_out = number + MAX_CHECKPOINTS <= newest;
            assert!(
                kept.is_some_and(|kept| kept.id == *id) || pushed_out || gone(task),
                "S4: checkpoint {number} of {task} was acknowledged and is gone"
            );
        }
    }
}
