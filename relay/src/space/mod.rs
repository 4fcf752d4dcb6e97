//! The free space of the data directory. sled cannot continue after a write that failed for
//! lack of space. So the relay stops accepting work long before that, keeps a ballast that it
//! can remove to let running attempts end, and restarts if that was not enough.
//!
//! `marks.rs` decides; this file measures and acts.

mod ballast;
mod marks;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dispatcher::{Dispatcher, HolderMessage};
use crate::output::OutputLog;
use crate::store;
use crate::telemetry::Telemetry;
use ballast::BallastFiles;
use marks::{BallastAction, PIECES, SpaceLevel, SpaceMeasurement, StartAction};

/// Time between two measurements. In this time less is written than the lowest mark leaves
/// free.
const EVERY: Duration = Duration::from_millis(100);
/// Time between two measurements while a start waits for space.
pub(crate) const START_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The disk's state, for the parts of the relay that accept work. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SpaceStatus {
    readings: watch::Receiver<SpaceReading>,
}

/// The newest measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceReading {
    level: SpaceLevel,
    measurement: SpaceMeasurement,
}

impl SpaceStatus {
    /// Whether work that makes the data grow may be accepted.
    pub(crate) fn accepts_work(&self) -> bool {
        self.latest().accepts_work()
    }

    pub(crate) fn latest(&self) -> SpaceReading {
        *self.readings.borrow()
    }
}

impl SpaceReading {
    pub(crate) fn accepts_work(self) -> bool {
        self.level == SpaceLevel::Roomy
    }

    pub(crate) fn free(self) -> u64 {
        self.measurement.free
    }

    pub(crate) fn total(self) -> u64 {
        self.measurement.total
    }

    /// Free bytes needed to keep accepting work, or to accept it again.
    pub(crate) fn needed(self) -> u64 {
        let marks = self.measurement.marks();
        match self.level {
            SpaceLevel::Roomy => marks.low,
            SpaceLevel::Low | SpaceLevel::Bare => {
                marks.reopen_bytes(self.measurement.ballast_pieces)
            }
        }
    }

    pub(crate) fn ballast(self) -> u64 {
        u64::from(self.measurement.ballast_pieces) * self.measurement.marks().piece
    }
}

/// The disk has too little space to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceShortage {
    pub(crate) free: u64,
    pub(crate) needed_bytes: u64,
}

/// Measures the space and owns the ballast.
#[derive(Debug)]
pub(crate) struct SpaceGuard {
    data: PathBuf,
    ballast: BallastFiles,
    readings: watch::Sender<SpaceReading>,
}

/// Removes ballast until the database can be opened, or returns how much is missing. Blocks on
/// the disk.
pub(crate) fn free_space_to_start(data: &Path) -> io::Result<Result<SpaceGuard, SpaceShortage>> {
    let (measurement, directory) = (measure_space(data, 0)?, data.join("store"));
    if matches!(store::is_in_use(&directory), Ok(true)) {
        // Another relay uses the directory, so the ballast is its own. The start will be
        // refused.
        return Ok(Ok(SpaceGuard::new(
            data,
            BallastFiles::unmanaged(data),
            measurement,
        )));
    }
    let mut pieces = BallastFiles::open_existing(data, measurement.marks().piece);
    let database = store::file_bytes(&directory);
    loop {
        let measurement = measure_space(data, pieces.count())?;
        match measurement.start(database) {
            StartAction::Open => return Ok(Ok(SpaceGuard::new(data, pieces, measurement))),
            StartAction::GiveUp => {
                tracing::warn!(
                    free = measurement.free,
                    "disk full: ballast removed to start"
                );
                pieces.remove_one()?;
            }
            StartAction::Wait => {
                let needed = measurement.needed_to_start(database);
                let free = measurement.free;
                return Ok(Err(SpaceShortage {
                    free,
                    needed_bytes: needed,
                }));
            }
        }
    }
}

/// The parts of the relay that a change of level concerns.
#[derive(Clone, Debug)]
pub(crate) struct SpaceParts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
}

impl SpaceGuard {
    fn new(data: &Path, ballast: BallastFiles, measurement: SpaceMeasurement) -> Self {
        // Accept no work until the first check, which also creates the ballast of a new
        // directory.
        let level = SpaceLevel::Low;
        let (readings, _) = watch::channel(SpaceReading { level, measurement });
        Self {
            data: data.to_owned(),
            ballast,
            readings,
        }
    }

    pub(crate) fn space(&self) -> SpaceStatus {
        SpaceStatus {
            readings: self.readings.subscribe(),
        }
    }

    /// Checks the space before the relay serves requests.
    pub(crate) async fn run_first_checks(mut self, parts: &SpaceParts) -> Self {
        for _ in 0..=PIECES {
            self = self.check_space(parts).await;
        }
        let reading = *self.readings.borrow();
        if !reading.accepts_work() {
            parts.announce_level(reading).await;
        }
        self
    }

    /// Checks the space until `finish` is cancelled.
    pub(crate) async fn watch(mut self, parts: SpaceParts, finish: CancellationToken) {
        loop {
            tokio::select! {
                () = finish.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let before = self.readings.borrow().level;
            self = self.check_space(&parts).await;
            let reading = *self.readings.borrow();
            if reading.level != before {
                parts.announce_level(reading).await;
            }
        }
    }

    async fn check_space(mut self, parts: &SpaceParts) -> Self {
        let telemetry = parts.telemetry.clone();
        let checked = tokio::task::spawn_blocking(move || {
            if let Err(error) = self.measure_and_act(&telemetry) {
                tracing::warn!(%error, "checking the free disk space failed");
            }
            self
        });
        // The closure does not panic, and the task is never cancelled.
        checked.await.expect("the space check does not panic")
    }

    fn measure_and_act(&mut self, telemetry: &Telemetry) -> io::Result<()> {
        let measurement = measure_space(&self.data, self.ballast.count())?;
        let (level, ballast) = measurement.decide(self.readings.borrow().level);
        self.readings
            .send_replace(SpaceReading { level, measurement });
        match ballast {
            BallastAction::Keep => return Ok(()),
            BallastAction::GiveUp => {
                tracing::warn!(free = measurement.free, "disk nearly full: ballast removed");
                telemetry.add("ballast", "given_up", 1);
                self.ballast.remove_one()?;
            }
            BallastAction::Refill => self.ballast.refill(measurement.marks().piece)?,
        }
        let measurement = measure_space(&self.data, self.ballast.count())?;
        self.readings
            .send_replace(SpaceReading { level, measurement });
        Ok(())
    }
}

impl SpaceParts {
    async fn announce_level(&self, reading: SpaceReading) {
        let (free, needed) = (reading.free(), reading.needed());
        match reading.level {
            SpaceLevel::Roomy => tracing::info!(free, "disk space available again: accepting work"),
            SpaceLevel::Low => {
                tracing::warn!(free, needed, "disk nearly full: accepting no new work")
            }
            SpaceLevel::Bare => tracing::error!(free, needed, "disk full: refusing output too"),
        }
        self.telemetry.add("disk_space", reading.level.as_str(), 1);
        self.output
            .restrict_to_small_outputs(reading.level == SpaceLevel::Bare);
        let suspended = !reading.accepts_work();
        let suspend = HolderMessage::SuspendDispatch { suspended };
        // Fails only while the relay stops, when nothing is dispatched anyway.
        drop(self.dispatcher.send_to_loop(suspend).await);
    }
}

/// Whether so little space is left that a failed write must have failed for that reason.
pub(crate) fn is_bare(data: &Path) -> bool {
    let measurement = measure_space(data, PIECES);
    measurement.is_ok_and(|measurement| measurement.decide(SpaceLevel::Low).0 == SpaceLevel::Bare)
}

fn measure_space(dir: &Path, ballast_pieces: u32) -> io::Result<SpaceMeasurement> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(SpaceMeasurement {
        free: disk.f_bavail.saturating_mul(disk.f_frsize),
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
        ballast_pieces,
    })
}
