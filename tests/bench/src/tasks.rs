//! Tasks bench: tasks from submit to durable completion, first as many as the relay accepts, then
//! at a fixed rate.

use std::sync::Arc;
use std::time::Duration;

use crate::SETTLE_LIMIT;
use crate::environment::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::simulated_daemon::SimulatedWork;
use crate::load::{LoadGenerator, LoadShape};
use crate::measure::report::{BenchFigure, BenchPhase, BenchReport};
use crate::progress::{BenchProgress, with_progress};

/// Load before the measurement begins, so that connections, caches and the allocator are warm.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct TasksBenchPlan {
    pub window: Duration,
    pub connections: usize,
    pub shape: LoadShape,
    pub daemons: usize,
    pub slots: u32,
    /// The relay's limit on open tasks.
    pub max_open: u32,
    /// Tasks per second of the second phase; half of the rate of the first one if absent.
    pub rate: Option<u32>,
}

impl TasksBenchPlan {
    fn settings(&self, rate: u32) -> Vec<(&'static str, u64)> {
        vec![
            ("seconds", self.window.as_secs()),
            ("connections", self.connections as u64),
            ("inFlight", self.shape.in_flight as u64),
            ("batch", self.shape.batch.unwrap_or(0) as u64),
            ("daemons", self.daemons as u64),
            ("slots", self.slots.into()),
            ("maxOpen", self.max_open.into()),
            ("rate", rate.into()),
        ]
    }
}

pub async fn run(
    target: &BenchTarget,
    plan: &TasksBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BenchReport, BenchError> {
    let max_open = plan.max_open.to_string();
    let mut environment =
        BenchEnvironment::open(target, &["--max-open".to_owned(), max_open]).await?;
    let completions = Arc::new(CompletionRecorder::new());
    // Daemons connect before the first task is submitted.
    let fleet = environment
        .start_fleet(SimulatedFleetPlan {
            daemons: plan.daemons,
            slots: plan.slots,
            work: SimulatedWork::Complete,
            completions: completions.clone(),
        })
        .await?;
    let clients = environment.connect_clients(plan.connections).await?;
    let load = LoadGenerator::new(clients, plan.shape, completions.clone());
    let status = |what: &'static str| {
        let completions = completions.clone();
        move || format!("{what}: {} tasks completed", completions.completed_count())
    };

    let _ = environment.relay.usage();
    let saturation = load.run_saturated(WARM_UP, plan.window);
    let saturation = with_progress(progress, saturation, status("saturation")).await;
    load.wait_until_completed(SETTLE_LIMIT).await?;
    let rate = plan
        .rate
        .unwrap_or(half_rate(saturation.tasks_per_second()));
    let mut report = BenchReport::new("tasks", environment.machine.clone(), plan.settings(rate));
    report.add_phase(saturation.into_phase(environment.relay.usage()));

    let steady = load.run_at_rate("steady", rate, plan.window);
    let steady = with_progress(progress, steady, status("steady")).await;
    load.wait_until_completed(SETTLE_LIMIT).await?;
    report.add_phase(steady.into_phase(environment.relay.usage()));

    let (submitted, completed) = (load.acknowledged(), completions.completed_count());
    report.add_phase(disk_phase(environment.relay.disk_bytes(), completed));
    report.add_check(
        submitted == completed,
        format!("every acknowledged task completed once: {completed} of {submitted}"),
    );
    report.add_check(
        completions.lost_count() == 0,
        format!(
            "no attempt was revoked or repeated: {}",
            completions.lost_count()
        ),
    );
    drop(fleet);
    environment.close().await?;
    Ok(report)
}

/// The disk space of all tasks of a run.
pub(super) fn disk_phase(bytes: u64, tasks: u64) -> BenchPhase {
    BenchPhase::new("disk")
        .with("tasks", "TASKS", BenchFigure::Count(tasks))
        .with("diskBytes", "BYTES ON DISK", BenchFigure::Bytes(bytes))
        .with(
            "diskBytesPerTask",
            "PER TASK",
            BenchFigure::Bytes(bytes / tasks.max(1)),
        )
}

fn half_rate(rate: f64) -> u32 {
    // The cast saturates; no machine completes 2^33 tasks a second.
    ((rate / 2.0).round() as u32).max(1)
}
