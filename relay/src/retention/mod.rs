//! Retention: finished work is removed by age and by size, oldest first. What is live, parked or may still be changed by a
//! late result stays whatever its age.
//!
//! Decides when and how much; whether a task may go is the core's word, and its removal is a commit like any other. One
//! small batch is under way at a time, so that requests of clients and daemons pass between two of them.

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

/// Between two passes. Sizes must be looked at often: a busy relay writes tens of megabytes a second.
const EVERY: Duration = Duration::from_millis(250);
/// Between two looks at ages, which begin the list anew: an eighth of the age, at most this long.
const AGE_CHECK_INTERVAL_MS: u64 = 60_000;
/// Between two looks at who has been away for long.
const DAEMON_CHECK_INTERVAL_MS: u64 = 60 * 60 * 1_000;
/// Tasks of one commit.
const BATCH: usize = 64;
/// Tasks that one pass looks at. What is left waits for the next one.
const MAX_TASKS_PER_PASS: usize = 32_768;

/// What retention works on.
#[derive(Clone, Debug)]
pub(crate) struct RetentionParts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: RecordReader,
    pub(crate) bodies: BodyFiles,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: RelayClock,
}

/// Runs until `finish`, or until the relay stops.
pub(crate) async fn run_retention(
    config: RetentionConfig,
    parts: RetentionParts,
    finish: CancellationToken,
) {
    let mut sweeper = RetentionSweeper::new(config, parts, finish.clone());
    let work = async {
        loop {
            if let Err(refusal) = sweeper.run_pass().await {
                tracing::debug!(%refusal, "retention ends");
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
    /// The sum of all records, once they have been counted.
    weight: Option<RecordByteCount>,
    cap: RecordSizeCap,
    /// Tasks up to here were looked at and stayed.
    last_kept_task: Option<TaskId>,
    ages_due: MonotonicTime,
    daemons_due: MonotonicTime,
}

/// What a pass wants to remove.
#[derive(Clone, Copy, Debug, Default)]
struct RemovalTarget {
    /// Everything that ended before this.
    before: WallTime,
    /// And of what ended before `settled`, so many bytes.
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
        let wanted = RemovalTarget {
            before: earlier(wall, self.config.max_age),
            bytes: self.excess_bytes(),
            settled_before: earlier(wall, self.config.min_age),
        };
        if ages_due || wanted.bytes > 0 {
            self.remove(wanted).await?;
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
            Err(error) => tracing::warn!(%error, "output retention did not run"),
        }
    }

    /// For operators, who find the counters in `baton info`.
    fn count(&self, what: &'static str, removed: u64, bytes: u64) {
        if removed > 0 {
            tracing::info!(what, removed, bytes, "removed by retention");
            self.parts.telemetry.add("retention_removed", what, removed);
            let telemetry = &self.parts.telemetry;
            telemetry.add("retention_removed_bytes", what, bytes);
        }
    }

    /// Counts all records, once. Sizes are not held to before that, which at a start is not pressing.
    async fn count_record_bytes(&mut self) {
        if self.weight.is_some() {
            return;
        }
        let (store, stop) = (self.parts.reader.store().clone(), self.finish.clone());
        let weighed = run_blocking(move || store.count_record_bytes(|| !stop.is_cancelled())).await;
        match weighed {
            Some(Ok(weight)) => self.weight = weight,
            Some(Err(error)) => tracing::warn!(%error, "the records could not be counted"),
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

    async fn remove(&mut self, mut wanted: RemovalTarget) -> Result<(), RequestRefusal> {
        let (reader, after) = (self.parts.reader.clone(), self.last_kept_task);
        let Some(mut oldest) =
            run_blocking(move || OldestFinishedTasks::after(&reader, after)).await
        else {
            return Ok(());
        };
        let (mut looked_at, mut removed) = (0, RemovedCount::default());
        while looked_at < MAX_TASKS_PER_PASS {
            let Some((rest, step)) = run_blocking(move || step(oldest, wanted)).await else {
                break;
            };
            (oldest, wanted) = (rest, step.remaining);
            looked_at += BATCH;
            self.remove_batch(step.due, &mut removed).await?;
            // At the end: the next pass begins again, where tasks may have become old enough.
            self.last_kept_task = step.last;
            if step.last.is_none() || step.is_done {
                break;
            }
        }
        self.count("task", removed.tasks, removed.bytes);
        Ok(())
    }

    /// Removes those that the core lets go, with everything that they had.
    async fn remove_batch(
        &self,
        due: Vec<DueTask>,
        counted: &mut RemovedCount,
    ) -> Result<(), RequestRefusal> {
        if due.is_empty() {
            return Ok(());
        }
        let named = due.iter().map(|due| &due.candidate);
        let tasks = named
            .map(|named| (named.tenant.clone(), named.task))
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

    /// What a removed task had outside the store. Should the relay end before this, output goes with its segments, and
    /// the next start looks at all bodies.
    async fn release_task_data(&self, due: DueTask) {
        if let Some(hash) = due.body {
            self.parts.bodies.add_sweep_candidate(hash);
        }
        for attempt in due.candidate.attempts {
            if let Err(error) = self.parts.output.forget(attempt.0).await {
                tracing::debug!(attempt_id = %attempt, %error, "output was not forgotten");
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

/// A task that should go.
#[derive(Debug)]
struct DueTask {
    candidate: RemovalCandidate,
    /// Of its specification, without its long body.
    spec_bytes: u64,
    body: Option<BodyHash>,
}

/// What one pass removed of the records.
#[derive(Debug, Default)]
struct RemovedCount {
    tasks: u64,
    bytes: u64,
}

/// One batch of the list.
#[derive(Debug)]
struct RemovalBatch {
    due: Vec<DueTask>,
    /// What is still wanted after it.
    remaining: RemovalTarget,
    /// The last task that was looked at; none at the end of the list.
    last: Option<TaskId>,
    /// Nothing behind it is wanted.
    is_done: bool,
}

fn step(
    mut oldest: OldestFinishedTasks,
    wanted: RemovalTarget,
) -> (OldestFinishedTasks, RemovalBatch) {
    let mut step = RemovalBatch {
        due: Vec::new(),
        remaining: wanted,
        last: None,
        is_done: false,
    };
    for _ in 0..BATCH {
        let Some(candidate) = oldest.next() else {
            step.last = None;
            break;
        };
        step.last = Some(candidate.task);
        // Nothing ends before it was created, and everything behind it was created later.
        step.is_done = step.remaining.bytes == 0 && candidate.created >= step.remaining.before;
        if step.is_done {
            break;
        }
        step.take(candidate, oldest.reader());
    }
    (oldest, step)
}

impl RemovalBatch {
    fn take(&mut self, candidate: RemovalCandidate, reader: &RecordReader) {
        let old = candidate.ended < self.remaining.before;
        let too_much = self.remaining.bytes > 0 && candidate.ended <= self.remaining.settled_before;
        if old || too_much {
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

/// Reads of the store wait for the disk, which no async thread may. `None` only if the relay is going away.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn earlier(wall: WallTime, by: Duration) -> WallTime {
    WallTime(wall.0.saturating_sub(millis(by)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
