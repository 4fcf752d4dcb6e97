//! Tasks from submit to durable completion: as many as the relay takes, then at a fixed rate.

use std::sync::Arc;
use std::time::Duration;

use super::load::{Load, Shape};
use super::report::{Figure, Phase, Report};
use super::simulated_daemon::Work;
use super::site::{FleetPlan, Place, Site};
use super::witness::Witness;
use super::{SETTLE_LIMIT, shown};
use crate::console::Console;
use crate::errors::CliError;

/// Before figures are taken, so that connections, caches and the allocator are warm.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub window: Duration,
    pub connections: usize,
    pub shape: Shape,
    pub daemons: usize,
    pub slots: u32,
    /// The relay's bound on open tasks.
    pub max_open: u32,
    /// Tasks per second of the second phase; half of what the first one reached if absent.
    pub rate: Option<u32>,
}

impl Plan {
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

pub(crate) async fn run(place: &Place, plan: &Plan, console: &Console) -> Result<Report, CliError> {
    let max_open = plan.max_open.to_string();
    let mut site = Site::open(place, &["--max-open".to_owned(), max_open]).await?;
    let witness = Arc::new(Witness::new());
    // Daemons first, so that the first task finds them there.
    let fleet = site
        .fleet(FleetPlan {
            daemons: plan.daemons,
            slots: plan.slots,
            work: Work::Complete,
            witness: witness.clone(),
        })
        .await?;
    let clients = site.clients(plan.connections).await?;
    let load = Load::new(clients, plan.shape, witness.clone());
    let progress = |what: &'static str| {
        let witness = witness.clone();
        move || format!("{what}: {} tasks completed", witness.count())
    };

    let _ = site.relay.usage();
    let saturation = load.saturate(WARM_UP, plan.window);
    let saturation = shown(console, saturation, progress("saturation")).await;
    load.settle(SETTLE_LIMIT).await?;
    let rate = plan.rate.unwrap_or(half(saturation.tasks_per_second()));
    let mut report = Report::new("tasks", site.machine.clone(), plan.settings(rate));
    report.phase(saturation.phase(site.relay.usage()));

    let steady = load.steady("steady", rate, plan.window);
    let steady = shown(console, steady, progress("steady")).await;
    load.settle(SETTLE_LIMIT).await?;
    report.phase(steady.phase(site.relay.usage()));

    let (asked, completed) = (load.acknowledged(), witness.count());
    report.phase(disk(site.relay.disk_bytes(), completed));
    report.check(
        asked == completed,
        format!("every acknowledged task completed once: {completed} of {asked}"),
    );
    report.check(
        witness.lost() == 0,
        format!(
            "no attempt was taken away or done again: {}",
            witness.lost()
        ),
    );
    drop(fleet);
    site.close().await?;
    Ok(report)
}

/// What all tasks of a run take on the disk.
pub(super) fn disk(bytes: u64, tasks: u64) -> Phase {
    Phase::new("disk")
        .with("tasks", "TASKS", Figure::Count(tasks))
        .with("diskBytes", "BYTES ON DISK", Figure::Bytes(bytes))
        .with(
            "diskBytesPerTask",
            "PER TASK",
            Figure::Bytes(bytes / tasks.max(1)),
        )
}

fn half(rate: f64) -> u32 {
    // Saturating by definition of a float cast; a machine that does 2^33 tasks a second may complain.
    ((rate / 2.0).round() as u32).max(1)
}
