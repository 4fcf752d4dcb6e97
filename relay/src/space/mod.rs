//! The space under the data directory. sled cannot go on after a write that the disk did not take, so the relay stops taking work
//! long before, keeps a ballast that it can give up for what runs, and starts again when it was not enough.
//!
//! `marks.rs` decides; here it is looked and done.

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

/// Between two looks: in this time nothing writes as much as the lowest mark leaves.
const EVERY: Duration = Duration::from_millis(100);
/// Between two looks of a start that waits.
pub(crate) const START_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How the disk stands, for those who take work. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SpaceStatus {
    readings: watch::Receiver<SpaceReading>,
}

/// The newest look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceReading {
    level: SpaceLevel,
    measurement: SpaceMeasurement,
}

impl SpaceStatus {
    /// Whether anything may be taken that makes the data grow.
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

    /// What must be free: to go on taking work, or to take it again.
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

/// There is not even room to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceShortage {
    pub(crate) free: u64,
    pub(crate) needed_bytes: u64,
}

/// The one who looks, and owns the ballast.
#[derive(Debug)]
pub(crate) struct SpaceGuard {
    data: PathBuf,
    ballast: BallastFiles,
    readings: watch::Sender<SpaceReading>,
}

/// Gives up ballast until the database can be opened; says what is missing if that was not enough. Blocks on the disk.
pub(crate) fn free_space_to_start(data: &Path) -> io::Result<Result<SpaceGuard, SpaceShortage>> {
    let (standing, directory) = (measure_space(data, 0)?, data.join("store"));
    if matches!(store::is_in_use(&directory), Ok(true)) {
        // By another relay, whose ballast it is; the start is going to be refused.
        return Ok(Ok(SpaceGuard::new(
            data,
            BallastFiles::unmanaged(data),
            standing,
        )));
    }
    let mut pieces = BallastFiles::open_existing(data, standing.marks().piece);
    let database = store::file_bytes(&directory);
    loop {
        let standing = measure_space(data, pieces.count())?;
        match standing.start(database) {
            StartAction::Open => return Ok(Ok(SpaceGuard::new(data, pieces, standing))),
            StartAction::GiveUp => {
                tracing::warn!(free = standing.free, "disk full: ballast given up to start");
                pieces.remove_one()?;
            }
            StartAction::Wait => {
                let needed = standing.needed_to_start(database);
                let free = standing.free;
                return Ok(Err(SpaceShortage {
                    free,
                    needed_bytes: needed,
                }));
            }
        }
    }
}

/// Whom a change concerns.
#[derive(Clone, Debug)]
pub(crate) struct SpaceParts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
}

impl SpaceGuard {
    fn new(data: &Path, ballast: BallastFiles, standing: SpaceMeasurement) -> Self {
        // Closed until the first look, which also makes the ballast of a new directory.
        let level = SpaceLevel::Low;
        let (readings, _) = watch::channel(SpaceReading {
            level,
            measurement: standing,
        });
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

    /// The first looks, before anybody is served.
    pub(crate) async fn run_first_checks(mut self, parts: &SpaceParts) -> Self {
        for _ in 0..=PIECES {
            self = self.check_space(parts).await;
        }
        let seen = *self.readings.borrow();
        if !seen.accepts_work() {
            parts.announce_level(seen).await;
        }
        self
    }

    /// Looks until `finish`.
    pub(crate) async fn watch(mut self, parts: SpaceParts, finish: CancellationToken) {
        loop {
            tokio::select! {
                () = finish.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let before = self.readings.borrow().level;
            self = self.check_space(&parts).await;
            let seen = *self.readings.borrow();
            if seen.level != before {
                parts.announce_level(seen).await;
            }
        }
    }

    async fn check_space(mut self, parts: &SpaceParts) -> Self {
        let telemetry = parts.telemetry.clone();
        let looked = tokio::task::spawn_blocking(move || {
            if let Err(error) = self.measure_and_act(&telemetry) {
                tracing::warn!(%error, "the space under the data directory was not seen to");
            }
            self
        });
        // It does not panic, and nobody cancels it.
        looked.await.expect("a look ends")
    }

    fn measure_and_act(&mut self, telemetry: &Telemetry) -> io::Result<()> {
        let standing = measure_space(&self.data, self.ballast.count())?;
        let (level, ballast) = standing.decide(self.readings.borrow().level);
        self.readings.send_replace(SpaceReading {
            level,
            measurement: standing,
        });
        match ballast {
            BallastAction::Keep => return Ok(()),
            BallastAction::GiveUp => {
                tracing::warn!(free = standing.free, "disk nearly full: ballast given up");
                telemetry.add("ballast", "given_up", 1);
                self.ballast.remove_one()?;
            }
            BallastAction::Refill => self.ballast.refill(standing.marks().piece)?,
        }
        let standing = measure_space(&self.data, self.ballast.count())?;
        self.readings.send_replace(SpaceReading {
            level,
            measurement: standing,
        });
        Ok(())
    }
}

impl SpaceParts {
    async fn announce_level(&self, seen: SpaceReading) {
        let (free, needed) = (seen.free(), seen.needed());
        match seen.level {
            SpaceLevel::Roomy => tracing::info!(free, "there is room again: work is taken"),
            SpaceLevel::Low => {
                tracing::warn!(free, needed, "disk nearly full: no new work is taken")
            }
            SpaceLevel::Bare => tracing::error!(free, needed, "disk full: output is refused too"),
        }
        self.telemetry.add("disk_space", seen.level.as_str(), 1);
        self.output
            .restrict_to_small_outputs(seen.level == SpaceLevel::Bare);
        let held = !seen.accepts_work();
        let hold = HolderMessage::SuspendDispatch { suspended: held };
        // Refused only by a relay that is stopping, which dispatches nothing.
        drop(self.dispatcher.send_to_loop(hold).await);
    }
}

/// Whether so little is left that a write which failed must have failed for that.
pub(crate) fn is_bare(data: &Path) -> bool {
    let standing = measure_space(data, PIECES);
    standing.is_ok_and(|standing| standing.decide(SpaceLevel::Low).0 == SpaceLevel::Bare)
}

fn measure_space(dir: &Path, held: u32) -> io::Result<SpaceMeasurement> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(SpaceMeasurement {
        free: disk.f_bavail.saturating_mul(disk.f_frsize),
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
        ballast_pieces: held,
    })
}
