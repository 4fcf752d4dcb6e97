//! Tasks from submit to durable completion: as many as the relay takes, then at a fixed rate.

use std::sync::Arc;
use std::time::Duration;

use super::load::{LoadGenerator, LoadShape};
use super::report::{BenchFigure, BenchPhase, BenchReport};
use super::simulated_daemon::SimulatedWork;
use super::site::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use super::witness::CompletionRecorder;
use super::{SETTLE_LIMIT, with_progress};
use crate::error::cli_error::CliError;
use crate::render::console::CliConsole;

/// Before figures are taken, so that connections, caches and the allocator are warm.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct TasksBenchPlan {
    pub window: Duration,
    pub connections: usize,
    pub shape: LoadShape,
    pub daemons: usize,
    pub slots: u32,
    /// The relay's bound on open tasks.
    pub max_open: u32,
    /// Tasks per second of the second phase; half of what the first one reached if absent.
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

pub(crate) async fn run(
    place: &BenchTarget,
    plan: &TasksBenchPlan,
    console: &CliConsole,
) -> Result<BenchReport, CliError> {
    let max_open = plan.max_open.to_string();
    let mut site = BenchEnvironment::open(place, &["--max-open".to_owned(), max_open]).await?;
    let witness = Arc::new(CompletionRecorder::new());
    // Daemons first, so that the first task finds them there.
    let fleet = site
        .start_fleet(SimulatedFleetPlan {
            daemons: plan.daemons,
            slots: plan.slots,
            work: SimulatedWork::Complete,
            witness: witness.clone(),
        })
        .await?;
    let clients = site.connect_clients(plan.connections).await?;
    let load = LoadGenerator::new(clients, plan.shape, witness.clone());
    let progress = |what: &'static str| {
        let witness = witness.clone();
        move || format!("{what}: {} tasks completed", witness.completed_count())
    };

    let _ = site.relay.usage();
    let saturation = load.run_saturated(WARM_UP, plan.window);
    let saturation = with_progress(console, saturation, progress("saturation")).await;
    load.wait_until_completed(SETTLE_LIMIT).await?;
    let rate = plan
        .rate
        .unwrap_or(half_rate(saturation.tasks_per_second()));
    let mut report = BenchReport::new("tasks", site.machine.clone(), plan.settings(rate));
    report.add_phase(saturation.into_phase(site.relay.usage()));

    let steady = load.run_at_rate("steady", rate, plan.window);
    let steady = with_progress(console, steady, progress("steady")).await;
    load.wait_until_completed(SETTLE_LIMIT).await?;
    report.add_phase(steady.into_phase(site.relay.usage()));

    let (asked, completed) = (load.acknowledged(), witness.completed_count());
    report.add_phase(disk_phase(site.relay.disk_bytes(), completed));
    report.add_check(
        asked == completed,
        format!("every acknowledged task completed once: {completed} of {asked}"),
    );
    report.add_check(
        witness.lost_count() == 0,
        format!(
            "no attempt was taken away or done again: {}",
            witness.lost_count()
        ),
    );
    drop(fleet);
    site.close().await?;
    Ok(report)
}

/// What all tasks of a run take on the disk.
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
    // Saturating by definition of a float cast; a machine that does 2^33 tasks a second may complain.
    ((rate / 2.0).round() as u32).max(1)
}
