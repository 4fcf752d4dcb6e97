//! Retention: finished work is removed by age and by size, oldest first. What is live, parked or may still be changed by a
//! late result stays whatever its age.
//!
//! Decides when and how much; whether a task may go is the core's word, and its removal is a commit like any other. One
//! small batch is under way at a time, so that requests of clients and daemons pass between two of them.

mod cap;
mod oldest;
mod steady;

use std::time::Duration;

use baton_core::effects::Reply;
use baton_core::id::TaskId;
use baton_core::input::Input;
use baton_core::time::{Moment, Wall};
use tokio_util::sync::CancellationToken;

use crate::bodies::{Bodies, BodyHash};
use crate::clock::Clock;
use crate::config::RetentionConfig;
use crate::dispatcher::{Dispatcher, Refusal};
use crate::output::OutputLog;
use crate::reader::Reader;
use crate::store::Weight;
use crate::telemetry::Telemetry;
use cap::Cap;
use oldest::{Candidate, Oldest};
use steady::SteadyWall;

/// Between two passes. Sizes must be looked at often: a busy relay writes tens of megabytes a second.
const EVERY: Duration = Duration::from_millis(250);
/// Between two looks at ages, which begin the list anew: an eighth of the age, at most this long.
const AGES_EVERY_MS: u64 = 60_000;
/// Between two looks at who has been away for long.
const DAEMONS_EVERY_MS: u64 = 60 * 60 * 1_000;
/// Tasks of one commit.
const BATCH: usize = 64;
/// Tasks that one pass looks at. What is left waits for the next one.
const LOOKED_AT: usize = 32_768;

/// What retention works on.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: Reader,
    pub(crate) bodies: Bodies,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: Clock,
}

/// Runs until `finish`, or until the relay stops.
pub(crate) async fn run(config: RetentionConfig, parts: Parts, finish: CancellationToken) {
    let mut sweeper = Sweeper::new(config, parts, finish.clone());
    let work = async {
        loop {
            if let Err(refusal) = sweeper.pass().await {
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
struct Sweeper {
    config: RetentionConfig,
    parts: Parts,
    finish: CancellationToken,
    wall: SteadyWall,
    /// The sum of all records, once they have been counted.
    weight: Option<Weight>,
    cap: Cap,
    /// Tasks up to here were looked at and stayed.
    passed: Option<TaskId>,
    ages_due: Moment,
    daemons_due: Moment,
}

/// What a pass wants to remove.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// Everything that ended before this.
    before: Wall,
    /// And of what ended before `settled`, so many bytes.
    bytes: u64,
    settled: Wall,
}

impl Sweeper {
    fn new(config: RetentionConfig, parts: Parts, finish: CancellationToken) -> Self {
        let now = parts.clock.now();
        Self {
            config,
            wall: SteadyWall::new(now),
            weight: None,
            cap: Cap::default(),
            passed: None,
            ages_due: now.at,
            daemons_due: now.at + DAEMONS_EVERY_MS,
            parts,
            finish,
        }
    }

    async fn pass(&mut self) -> Result<(), Refusal> {
        let now = self.parts.clock.now();
        let wall = self.wall.now(now);
        self.output_tick(wall).await;
        self.weigh().await;
        let ages_due = now.at >= self.ages_due;
        if ages_due {
            self.ages_due = now.at + (millis(self.config.age) / 8).min(AGES_EVERY_MS);
            self.passed = None;
        }
        let wanted = Wanted {
            before: earlier(wall, self.config.age),
            bytes: self.too_many_bytes(),
            settled: earlier(wall, self.config.at_least),
        };
        if ages_due || wanted.bytes > 0 {
            self.remove(wanted).await?;
        }
        self.sweep_bodies().await;
        if now.at >= self.daemons_due {
            self.daemons_due = now.at + DAEMONS_EVERY_MS;
            self.forget_daemons().await?;
        }
        Ok(())
    }

    async fn output_tick(&self, wall: Wall) {
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
    async fn weigh(&mut self) {
        if self.weight.is_some() {
            return;
        }
        let (store, stop) = (self.parts.reader.store().clone(), self.finish.clone());
        let weighed = off_loop(move || store.weigh(|| !stop.is_cancelled())).await;
        match weighed {
            Some(Ok(weight)) => self.weight = weight,
            Some(Err(error)) => tracing::warn!(%error, "the records could not be counted"),
            None => {}
        }
    }

    fn too_many_bytes(&mut self) -> u64 {
        let store = self.parts.reader.store();
        let Some(weight) = self.weight else {
            return 0;
        };
        let file = store.file_bytes();
        let bodies = self.parts.bodies.bytes();
        let (file, records) = (file + bodies, store.record_bytes(weight) + bodies);
        self.cap.look(self.config.record_bytes(), file, records)
    }

    async fn remove(&mut self, mut wanted: Wanted) -> Result<(), Refusal> {
        let (reader, after) = (self.parts.reader.clone(), self.passed);
        let Some(mut oldest) = off_loop(move || Oldest::after(&reader, after)).await else {
            return Ok(());
        };
        let (mut looked_at, mut removed) = (0, Removed::default());
        while looked_at < LOOKED_AT {
            let Some((rest, step)) = off_loop(move || step(oldest, wanted)).await else {
                break;
            };
            (oldest, wanted) = (rest, step.wanted);
            looked_at += BATCH;
            self.remove_batch(step.due, &mut removed).await?;
            // At the end: the next pass begins again, where tasks may have become old enough.
            self.passed = step.last;
            if step.last.is_none() || step.enough {
                break;
            }
        }
        self.count("task", removed.tasks, removed.bytes);
        Ok(())
    }

    /// Removes those that the core lets go, with everything that they had.
    async fn remove_batch(&self, due: Vec<Due>, counted: &mut Removed) -> Result<(), Refusal> {
        if due.is_empty() {
            return Ok(());
        }
        let named = due.iter().map(|due| &due.candidate);
        let tasks = named
            .map(|named| (named.tenant.clone(), named.task))
            .collect();
        let ask = move |request| Input::RemoveFinished {
            request,
            tasks,
            finished: Vec::new(),
        };
        let Reply::Removed(removed) = self.parts.dispatcher.request(ask).await? else {
            return Ok(());
        };
        for due in due {
            if removed.contains(&due.candidate.task) {
                counted.tasks += 1;
                counted.bytes += due.candidate.bytes + due.spec_bytes;
                self.let_go(due).await;
            }
        }
        Ok(())
    }

    /// What a removed task had outside the store. Should the relay end before this, output goes with its segments, and
    /// the next start looks at all bodies.
    async fn let_go(&self, due: Due) {
        if let Some(hash) = due.body {
            self.parts.bodies.suspect(hash);
        }
        for attempt in due.candidate.attempts {
            if let Err(error) = self.parts.output.forget(attempt.0).await {
                tracing::debug!(attempt_id = %attempt, %error, "output was not forgotten");
            }
        }
    }

    async fn sweep_bodies(&self) {
        if !self.parts.bodies.has_suspects() {
            return;
        }
        let (bodies, reader) = (self.parts.bodies.clone(), self.parts.reader.clone());
        let swept = off_loop(move || bodies.sweep(|hash| reader.claims_body(hash))).await;
        let swept = swept.unwrap_or_default();
        self.count("body", swept.bodies, swept.bytes);
    }

    async fn forget_daemons(&self) -> Result<(), Refusal> {
        let unseen_ms = millis(self.config.daemons);
        let ask = move |request| Input::ForgetDaemons { request, unseen_ms };
        if let Reply::Forgotten(forgotten) = self.parts.dispatcher.request(ask).await? {
            self.count("daemon", forgotten as u64, 0);
        }
        Ok(())
    }
}

/// A task that should go.
#[derive(Debug)]
struct Due {
    candidate: Candidate,
    /// Of its specification, without its long body.
    spec_bytes: u64,
    body: Option<BodyHash>,
}

/// What one pass removed of the records.
#[derive(Debug, Default)]
struct Removed {
    tasks: u64,
    bytes: u64,
}

/// One batch of the list.
#[derive(Debug)]
struct Step {
    due: Vec<Due>,
    /// What is still wanted after it.
    wanted: Wanted,
    /// The last task that was looked at; none at the end of the list.
    last: Option<TaskId>,
    /// Nothing behind it is wanted.
    enough: bool,
}

fn step(mut oldest: Oldest, wanted: Wanted) -> (Oldest, Step) {
    let mut step = Step {
        due: Vec::new(),
        wanted,
        last: None,
        enough: false,
    };
    for _ in 0..BATCH {
        let Some(candidate) = oldest.next() else {
            step.last = None;
            break;
        };
        step.last = Some(candidate.task);
        // Nothing ends before it was created, and everything behind it was created later.
        step.enough = step.wanted.bytes == 0 && candidate.created >= step.wanted.before;
        if step.enough {
            break;
        }
        step.take(candidate, oldest.reader());
    }
    (oldest, step)
}

impl Step {
    fn take(&mut self, candidate: Candidate, reader: &Reader) {
        let old = candidate.ended < self.wanted.before;
        let too_much = self.wanted.bytes > 0 && candidate.ended <= self.wanted.settled;
        if old || too_much {
            let size = reader.spec_size(&candidate.tenant, candidate.task);
            let bytes = candidate.bytes + size.record + size.body_bytes;
            self.wanted.bytes = self.wanted.bytes.saturating_sub(bytes);
            self.due.push(Due {
                candidate,
                spec_bytes: size.record,
                body: size.body,
            });
        }
    }
}

/// Reads of the store wait for the disk, which no async thread may. `None` only if the relay is going away.
async fn off_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn earlier(wall: Wall, by: Duration) -> Wall {
    Wall(wall.0.saturating_sub(millis(by)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
