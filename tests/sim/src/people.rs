//! People about goals: they tell of progress, block, send on (with and without words, twice, late), and look at what waits for
//! them. What was acknowledged to them is looked for in the end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::goal::{
    BlockDraft, CHECKPOINTS_KEPT, CheckpointDraft, Clean, GoalWord, ProgressUpdate,
};
use baton_core::id::{AttemptId, CheckpointId, TaskId, TenantId};
use baton_core::input::Input;
use baton_core::record::{
    CheckpointRecord, Evidence, FailedItem, ProgressRecord, Resume, TaskRecord,
};

use crate::clients::{Asked, actor};
use crate::store::State;
use crate::world::World;

/// What was acknowledged about goals.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    progress: BTreeMap<TaskId, Arc<ProgressRecord>>,
    checkpoints: BTreeMap<(TaskId, u64), CheckpointId>,
    /// Who sent the task on from where it stood.
    sent_on: BTreeMap<AttemptId, AttemptId>,
    /// Parked attempts that somebody saw.
    seen: Vec<(TaskId, AttemptId)>,
    words: u64,
}

impl Promised {
    /// The relay's data are those of an earlier time.
    pub(crate) fn accept_loss(&mut self, state: &State) {
        self.progress.clone_from(&state.progress);
        let there = |key: &(TaskId, u64), id: &mut CheckpointId| {
            state
                .checkpoints
                .get(key)
                .is_some_and(|kept| kept.id == *id)
        };
        self.checkpoints.retain(there);
        self.sent_on.clear();
    }

    pub(crate) fn progressed(&mut self, progress: &Arc<ProgressRecord>) {
        let known = self
            .progress
            .entry(progress.task)
            .or_insert_with(|| Arc::clone(progress));
        if items(known) <= items(progress) {
            *known = Arc::clone(progress);
        }
    }

    pub(crate) fn checkpointed(&mut self, written: &CheckpointRecord) {
        let at = (written.task, written.number);
        let known = *self.checkpoints.entry(at).or_insert(written.id);
        assert_eq!(
            known, written.id,
            "goals: checkpoint {at:?} was acknowledged twice"
        );
    }

    /// A task goes on from where it stood, once.
    pub(crate) fn sent_on(&mut self, record: &TaskRecord) {
        let Some(newest) = record.newest() else {
            return;
        };
        let Some(from) = newest.previous else { return };
        let to = *self.sent_on.entry(from).or_insert(newest.id);
        assert_eq!(
            to, newest.id,
            "hand-off: {} was sent on from {from} twice",
            record.task
        );
    }
}

fn items(progress: &ProgressRecord) -> (u64, u64) {
    let completed = progress.completed.len() as u64 + progress.completed_truncated;
    let evidence = progress.evidence.len() as u64 + progress.evidence_truncated;
    (completed, evidence)
}

impl World {
    pub(crate) fn act_on_goals(&mut self) {
        match self.rng.below(100) {
            0..=29 => self.progress_some(),
            30..=49 => self.block_some(),
            50..=69 => self.resume_some(),
            70..=79 => self.resume_old(),
            _ => self.list_parked(),
        }
    }

    fn progress_some(&mut self) {
        let Some((tenant, task)) = self.some_task() else {
            return;
        };
        let (item, update) = self.told_item();
        let request = self.ask(|request| Input::UpdateProgress {
            request,
            tenant,
            task,
            update: Box::new(update),
            known: Ok(None),
            finished: None,
        });
        self.remember(request, Asked::Progress(task, item));
    }

    fn block_some(&mut self) {
        let Some((tenant, task)) = self.some_task() else {
            return;
        };
        let GoalWord::Block(block) = self.some_block("look at it") else {
            return;
        };
        let by = actor();
        let request = self.ask(|request| Input::Block {
            request,
            tenant,
            task,
            by,
            block: Box::new(block),
            known: Ok(None),
            finished: None,
        });
        self.remember(request, Asked::Block(task));
    }

    fn resume_some(&mut self) {
        let tenant = self.some_tenant();
        let Some((task, seen)) = self.some_parked(&tenant) else {
            return;
        };
        let twice = self.rng.chance(30);
        for _ in 0..=u32::from(twice) {
            let seen = self.rng.chance(60).then_some(seen);
            self.resume(task, seen);
        }
    }

    /// Somebody comes back to what he saw long ago.
    fn resume_old(&mut self) {
        let place = self.rng.index(self.clients.promised.seen.len());
        if let Some((task, seen)) = self.clients.promised.seen.get(place).copied() {
            self.resume(task, Some(seen));
        }
    }

    pub(crate) fn resume(&mut self, task: TaskId, seen: Option<AttemptId>) {
        let Some(record) = self.relay.store.view.record(task) else {
            return;
        };
        let tenant = record.tenant.clone();
        self.clients.promised.words += 1;
        let reason: Arc<str> = format!("go on {}", self.clients.promised.words).into();
        let mut resume = Resume {
            by: "alice".into(),
            reason: Arc::clone(&reason),
            ..Resume::default()
        };
        if self.rng.chance(50) {
            resume.instructions = "use the other branch".into();
            resume.answers = vec![("which".into(), "this".into())];
        }
        let request = self.ask(|request| Input::Resume {
            request,
            tenant,
            task,
            resume: Box::new(resume),
            attempt: seen,
            finished: None,
        });
        self.remember(request, Asked::Resume(task, reason));
    }

    fn list_parked(&mut self) {
        let tenant = self.some_tenant();
        let scope = self.rng.chance(30).then(|| Arc::from("north"));
        let view = &self.relay.store.view;
        let mut parked = view.live.values().filter(|task| task.tenant == tenant);
        let first = parked.find_map(|task| Some((task.attention.as_ref()?.since, task.task)));
        let after = first.filter(|_| self.rng.chance(30));
        let after = after.map(|(since, task)| (Reverse(since), task));
        let limit = self.rng.pick(&[2, 50]).unwrap_or(50);
        let limit = usize::try_from(limit).unwrap_or(50);
        let request = self.ask(|request| Input::ListParked {
            request,
            tenant,
            causes: Vec::new(),
            agent_scope: scope,
            after,
            limit,
        });
        self.remember(request, Asked::Other);
    }

    /// A task that waits for a person, and the attempt that it waits with.
    pub(crate) fn some_parked(&mut self, tenant: &TenantId) -> Option<(TaskId, AttemptId)> {
        let live = self.relay.store.view.live.values();
        let parked = live.filter(|task| task.tenant == *tenant && task.attention.is_some());
        let parked: Vec<_> = parked
            .filter_map(|task| Some((task.task, task.newest()?.id)))
            .collect();
        let picked = self.rng.pick(&parked)?;
        if !self.clients.promised.seen.contains(&picked) {
            self.clients.promised.seen.push(picked);
        }
        Some(picked)
    }

    /// A word about the goal from whoever works.
    pub(crate) fn some_word(&mut self) -> GoalWord {
        if self.rng.chance(50) {
            GoalWord::Progress(self.some_update())
        } else {
            GoalWord::Checkpoint(Clean::new(self.some_milestone()))
        }
    }

    pub(crate) fn some_update(&mut self) -> Clean<ProgressUpdate> {
        self.told_item().1
    }

    fn told_item(&mut self) -> (Arc<str>, Clean<ProgressUpdate>) {
        self.clients.promised.words += 1;
        let item: Arc<str> = format!("item {}", self.clients.promised.words).into();
        let failed = self.rng.chance(20).then(|| FailedItem {
            item: "half".into(),
            reason: "no".into(),
        });
        let seen = if self.rng.chance(25) { 27 } else { 1 };
        let evidence = (0..seen).map(|_| Evidence {
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
        (item, Clean::new(update))
    }

    fn some_milestone(&mut self) -> CheckpointDraft {
        self.clients.promised.words += 1;
        CheckpointDraft {
            summary: format!("milestone {}", self.clients.promised.words).into(),
            ..CheckpointDraft::default()
        }
    }

    pub(crate) fn some_block(&mut self, reason: &str) -> GoalWord {
        let checkpoint = self.rng.chance(50).then(|| self.some_milestone());
        GoalWord::Block(Clean::new(BlockDraft {
            reason: reason.into(),
            hint: None,
            checkpoint,
        }))
    }

    /// What he has to say goes with the task.
    pub(crate) fn resume_acked(&mut self, reason: &str, record: &TaskRecord) {
        self.counts.resumes += 1;
        let words = record.newest().and_then(|newest| newest.resume.as_ref());
        assert!(
            words.is_some_and(|words| *words.reason == *reason),
            "hand-off: {} was sent on without what was said",
            record.task
        );
        self.clients.promised.sent_on(record);
    }

    pub(crate) fn progress_acked(&mut self, item: &str, progress: &Arc<ProgressRecord>) {
        self.counts.progress += 1;
        self.counts.truncated += u64::from(progress.evidence_truncated > 0);
        let there = progress.completed.iter().any(|known| **known == *item);
        assert!(there, "goals: {item} of {} was not taken in", progress.task);
        self.clients.promised.progressed(progress);
    }

    /// The last look: what was acknowledged is there, or something newer took its place and is counted.
    pub(crate) fn check_goals(&self) {
        let durable = &self.relay.store.durable;
        let gone = |task: &TaskId| durable.removed.contains_key(task);
        for (task, told) in &self.clients.promised.progress {
            let Some(kept) = durable.progress.get(task) else {
                assert!(
                    gone(task),
                    "S4: the progress of {task} was acknowledged and is gone"
                );
                continue;
            };
            let (was, is) = (items(told), items(kept));
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
        for ((task, number), id) in &self.clients.promised.checkpoints {
            let newest = durable.record(*task).map_or(0, |record| record.checkpoints);
            let kept = durable.checkpoints.get(&(*task, *number));
            let pushed_out = number + CHECKPOINTS_KEPT <= newest;
            assert!(
                kept.is_some_and(|kept| kept.id == *id) || pushed_out || gone(task),
                "S4: checkpoint {number} of {task} was acknowledged and is gone"
            );
        }
    }
}
