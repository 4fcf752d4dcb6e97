//! Retention: removes finished work by age and by size, oldest first. Live and parked tasks
//! stay, whatever their age, and so do tasks that a late result may still change.
//!
//! This module decides when to remove and how much. The core decides whether a task may be
//! removed, and a removal is an ordinary commit. Only one small batch runs at a time, so that
//! requests from clients and daemons are served between two batches.

mod oldest_tasks;
mod size_cap;
mod steady_clock;

use std::time::Duration;

use baton_core::commands::{ForgetAbsentDaemons, RemoveFinishedTasks};
use baton_core::ids::TaskId;
use baton_core::time::{MonotonicTime, WallTime};
use tokio_util::sync::CancellationToken;

use crate::body_files::{BodyFiles, BodyHash};
use crate::clock::RelayClock;
use crate::config::RetentionConfig;
use crate::dispatcher::{Dispatcher, RequestRefusal};
use crate::output::OutputLog;
use crate::reader::RecordReader;
use crate::store::RecordByteCount;
use crate::telemetry::Telemetry;
use oldest_tasks::{OldestFinishedTasks, RemovalCandidate};
use size_cap::RecordSizeCap;
use steady_clock::SteadyWallClock;

/// Time between two passes. Sizes are checked often, because a busy relay writes tens of
/// megabytes a second.
const EVERY: Duration = Duration::from_millis(250);
/// Longest time between two age checks, each of which reads the task list from the beginning.
/// The actual interval is an eighth of the maximum age if that is shorter.
const AGE_CHECK_INTERVAL_MS: u64 = 60_000;
/// Time between two checks for daemons that have not connected for a long time.
const DAEMON_CHECK_INTERVAL_MS: u64 = 60 * 60 * 1_000;
/// Tasks removed in one commit.
const BATCH: usize = 64;
/// Tasks examined in one pass. The next pass continues after them.
const MAX_TASKS_PER_PASS: usize = 32_768;

/// The parts of the relay that retention works with.
#[derive(Clone, Debug)]
pub(crate) struct RetentionParts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: RecordReader,
    pub(crate) bodies: BodyFiles,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: RelayClock,
}

/// Runs until `finish` is cancelled or the relay stops.
pub(crate) async fn run_retention(
    config: RetentionConfig,
    parts: RetentionParts,
    finish: CancellationToken,
) {
    let mut sweeper = RetentionSweeper::new(config, parts, finish.clone());
    let work = async {
        loop {
            if let Err(refusal) = sweeper.run_pass().await {
                tracing::debug!(%refusal, "retention stopped");
                return;
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = finish.cancelled() => {}
        () = work => {}
    }
}

#[derive(Debug)]
struct RetentionSweeper {
    config: RetentionConfig,
    parts: RetentionParts,
    finish: CancellationToken,
    wall: SteadyWallClock,
    /// Size of all records; `None` until they have been counted.
    weight: Option<RecordByteCount>,
    cap: RecordSizeCap,
    /// The last task that was examined; it and all older ones were kept.
    last_kept_task: Option<TaskId>,
    ages_due: MonotonicTime,
    daemons_due: MonotonicTime,
}

/// What a pass should remove.
#[derive(Clone, Copy, Debug, Default)]
struct RemovalTarget {
    /// Remove every task that ended before this time.
    before: WallTime,
    /// In addition, remove this many bytes of tasks that ended before `settled_before`.
    bytes: u64,
    settled_before: WallTime,
}

impl RetentionSweeper {
    fn new(config: RetentionConfig, parts: RetentionParts, finish: CancellationToken) -> Self {
        let now = parts.clock.now();
        Self {
            config,
            wall: SteadyWallClock::new(now),
            weight: None,
            cap: RecordSizeCap::default(),
            last_kept_task: None,
            ages_due: now.monotonic,
            daemons_due: now.monotonic + DAEMON_CHECK_INTERVAL_MS,
            parts,
            finish,
        }
    }

    async fn run_pass(&mut self) -> Result<(), RequestRefusal> {
        let now = self.parts.clock.now();
        let wall = self.wall.now(now);
        self.apply_output_retention(wall).await;
        self.count_record_bytes().await;
        let ages_due = now.monotonic >= self.ages_due;
        if ages_due {
            self.ages_due =
                now.monotonic + (millis(self.config.max_age) / 8).min(AGE_CHECK_INTERVAL_MS);
            self.last_kept_task = None;
        }
        let target = RemovalTarget {
            before: earlier(wall, self.config.max_age),
            bytes: self.excess_bytes(),
            settled_before: earlier(wall, self.config.min_age),
        };
        if ages_due || target.bytes > 0 {
            self.remove(target).await?;
        }
        self.remove_unclaimed_bodies().await;
        if now.monotonic >= self.daemons_due {
            self.daemons_due = now.monotonic + DAEMON_CHECK_INTERVAL_MS;
            self.forget_daemons().await?;
        }
        Ok(())
    }

    async fn apply_output_retention(&self, wall: WallTime) {
        match self.parts.output.tick(wall.0).await {
            Ok(dropped) => {
                self.count("output_segment", dropped.segments as u64, dropped.bytes);
            }
            Err(error) => tracing::warn!(%error, "output retention failed"),
        }
    }

    /// Logs a removal and adds it to the counters that `baton info` shows.
    fn count(&self, what: &'static str, removed: u64, bytes: u64) {
        if removed > 0 {
            tracing::info!(what, removed, bytes, "removed by retention");
            self.parts.telemetry.add("retention_removed", what, removed);
            let telemetry = &self.parts.telemetry;
            telemetry.add("retention_removed_bytes", what, bytes);
        }
    }

    /// Counts all records, once. Until then the size limit is not applied; shortly after a
    /// start that does no harm.
    async fn count_record_bytes(&mut self) {
        if self.weight.is_some() {
            return;
        }
        let (store, stop) = (self.parts.reader.store().clone(), self.finish.clone());
        let counted_bytes =
            run_blocking(move || store.count_record_bytes(|| !stop.is_cancelled())).await;
        match counted_bytes {
            Some(Ok(weight)) => self.weight = weight,
            Some(Err(error)) => tracing::warn!(%error, "counting the stored records failed"),
            None => {}
        }
    }

    fn excess_bytes(&mut self) -> u64 {
        let store = self.parts.reader.store();
        let Some(weight) = self.weight else {
            return 0;
        };
        let file = store.file_bytes();
        let bodies = self.parts.bodies.bytes();
        let (file, records) = (file + bodies, store.record_bytes(weight) + bodies);
        self.cap
            .excess_bytes(self.config.record_bytes(), file, records)
    }

    async fn remove(&mut self, mut target: RemovalTarget) -> Result<(), RequestRefusal> {
        let (reader, after) = (self.parts.reader.clone(), self.last_kept_task);
        let Some(mut oldest) =
            run_blocking(move || OldestFinishedTasks::after(&reader, after)).await
        else {
            return Ok(());
        };
        let (mut looked_at, mut removed) = (0, RemovedCount::default());
        while looked_at < MAX_TASKS_PER_PASS {
            let Some((rest, batch)) = run_blocking(move || next_batch(oldest, target)).await else {
                break;
            };
            (oldest, target) = (rest, batch.remaining);
            looked_at += BATCH;
            self.remove_batch(batch.due, &mut removed).await?;
            // At the end of the list the next pass starts from the beginning, because tasks may
            // have become old enough by then.
            self.last_kept_task = batch.last;
            if batch.last.is_none() || batch.is_done {
                break;
            }
        }
        self.count("task", removed.tasks, removed.bytes);
        Ok(())
    }

    /// Removes the tasks that the core releases, with everything that belongs to them.
    async fn remove_batch(
        &self,
        due: Vec<DueTask>,
        counted: &mut RemovedCount,
    ) -> Result<(), RequestRefusal> {
        if due.is_empty() {
            return Ok(());
        }
        let candidates = due.iter().map(|due| &due.candidate);
        let tasks = candidates
            .map(|candidate| (candidate.tenant.clone(), candidate.task))
            .collect();
        let removal = RemoveFinishedTasks { tasks };
        let removed = self.parts.dispatcher.request(removal).await?;
        for due in due {
            if removed.contains(&due.candidate.task) {
                counted.tasks += 1;
                counted.bytes += due.candidate.bytes + due.spec_bytes;
                self.release_task_data(due).await;
            }
        }
        Ok(())
    }

    /// Releases what a removed task had outside the store. If the relay stops before this, the
    /// output is removed with its segments, and the next start examines all bodies.
    async fn release_task_data(&self, due: DueTask) {
        if let Some(hash) = due.body {
            self.parts.bodies.add_sweep_candidate(hash);
        }
        for attempt in due.candidate.attempts {
            if let Err(error) = self.parts.output.forget(attempt.0).await {
                tracing::debug!(attempt_id = %attempt, %error, "output of a removed task could not be released");
            }
        }
    }

    async fn remove_unclaimed_bodies(&self) {
        if !self.parts.bodies.has_sweep_candidates() {
            return;
        }
        let (bodies, reader) = (self.parts.bodies.clone(), self.parts.reader.clone());
        let swept = run_blocking(move || bodies.sweep(|hash| reader.is_body_claimed(hash))).await;
        let swept = swept.unwrap_or_default();
        self.count("body", swept.bodies, swept.bytes);
    }

    async fn forget_daemons(&self) -> Result<(), RequestRefusal> {
        let unseen_ms = millis(self.config.daemon_max_age);
        let absent = ForgetAbsentDaemons { unseen_ms };
        let forgotten = self.parts.dispatcher.request(absent).await?;
        self.count("daemon", forgotten as u64, 0);
        Ok(())
    }
}

/// A task to be removed.
#[derive(Debug)]
struct DueTask {
    candidate: RemovalCandidate,
    /// Size of its specification without the long body.
    spec_bytes: u64,
    body: Option<BodyHash>,
}

/// Records removed by one pass.
#[derive(Debug, Default)]
struct RemovedCount {
    tasks: u64,
    bytes: u64,
}

/// One batch of the task list.
#[derive(Debug)]
struct RemovalBatch {
    due: Vec<DueTask>,
    /// What remains to be removed after this batch.
    remaining: RemovalTarget,
    /// The last task examined; `None` at the end of the list.
    last: Option<TaskId>,
    /// No later task needs to be removed.
    is_done: bool,
}

fn next_batch(
    mut oldest: OldestFinishedTasks,
    target: RemovalTarget,
) -> (OldestFinishedTasks, RemovalBatch) {
    let mut batch = RemovalBatch {
        due: Vec::new(),
        remaining: target,
        last: None,
        is_done: false,
    };
    for _ in 0..BATCH {
        let Some(candidate) = oldest.next() else {
            batch.last = None;
            break;
        };
        batch.last = Some(candidate.task);
        // A task cannot end before it was created, and every later task in the list was created
        // later.
        batch.is_done = batch.remaining.bytes == 0 && candidate.created >= batch.remaining.before;
        if batch.is_done {
            break;
        }
        batch.add_if_due(candidate, oldest.reader());
    }
    (oldest, batch)
}

impl RemovalBatch {
    fn add_if_due(&mut self, candidate: RemovalCandidate, reader: &RecordReader) {
        let old = candidate.ended < self.remaining.before;
        let over_size =
            self.remaining.bytes > 0 && candidate.ended <= self.remaining.settled_before;
        if old || over_size {
            let size = reader.spec_size(&candidate.tenant, candidate.task);
            let bytes = candidate.bytes + size.record + size.body_bytes;
            self.remaining.bytes = self.remaining.bytes.saturating_sub(bytes);
            self.due.push(DueTask {
                candidate,
                spec_bytes: size.record,
                body: size.body,
            });
        }
    }
}

/// Runs a read of the store on a blocking thread, because it waits for the disk. Returns `None`
/// only while the relay is shutting down.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn earlier(wall: WallTime, by: Duration) -> WallTime {
    WallTime(wall.0.saturating_sub(millis(by)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
