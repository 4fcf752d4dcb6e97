//! The space under the data directory. sled cannot go on after a write that the disk did not take, so the relay stops taking work
//! long before, keeps a ballast that it can give up for what runs, and starts again when it was not enough.
//!
//! `marks.rs` decides; here it is looked and done.

mod ballast;
mod marks;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_core::input::Input;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dispatcher::{Dispatcher, FromSession};
use crate::output::OutputLog;
use crate::store;
use crate::telemetry::Telemetry;
use ballast::Pieces;
use marks::{Ballast, Level, PIECES, Standing, Start};

/// Between two looks: in this time nothing writes as much as the lowest mark leaves.
const EVERY: Duration = Duration::from_millis(100);
/// Between two looks of a start that waits.
pub(crate) const WAIT: Duration = Duration::from_millis(500);

/// How the disk stands, for those who take work. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    seen: watch::Receiver<Seen>,
}

/// The newest look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    level: Level,
    standing: Standing,
}

impl Space {
    /// Whether anything may be taken that makes the data grow.
    pub(crate) fn admits(&self) -> bool {
        self.seen().admits()
    }

    pub(crate) fn seen(&self) -> Seen {
        *self.seen.borrow()
    }
}

impl Seen {
    pub(crate) fn admits(self) -> bool {
        self.level == Level::Roomy
    }

    pub(crate) fn free(self) -> u64 {
        self.standing.free
    }

    pub(crate) fn total(self) -> u64 {
        self.standing.total
    }

    /// What must be free: to go on taking work, or to take it again.
    pub(crate) fn needed(self) -> u64 {
        let marks = self.standing.marks();
        match self.level {
            Level::Roomy => marks.low,
            Level::Low | Level::Bare => marks.open_again(self.standing.held),
        }
    }

    pub(crate) fn ballast(self) -> u64 {
        u64::from(self.standing.held) * self.standing.marks().piece
    }
}

/// There is not even room to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) free: u64,
    pub(crate) needed: u64,
}

/// The one who looks, and owns the ballast.
#[derive(Debug)]
pub(crate) struct Guard {
    data: PathBuf,
    pieces: Pieces,
    seen: watch::Sender<Seen>,
}

/// Gives up ballast until the database can be opened; says what is missing if that was not enough. Blocks on the disk.
pub(crate) fn make_room(data: &Path) -> io::Result<Result<Guard, Shortage>> {
    let (standing, directory) = (look_at(data, 0)?, data.join("store"));
    if matches!(store::is_in_use(&directory), Ok(true)) {
        // By another relay, whose ballast it is; the start is going to be refused.
        return Ok(Ok(Guard::new(data, Pieces::left_alone(data), standing)));
    }
    let mut pieces = Pieces::found_in(data, standing.marks().piece);
    let database = store::file_bytes(&directory);
    loop {
        let standing = look_at(data, pieces.held())?;
        match standing.start(database) {
            Start::Open => return Ok(Ok(Guard::new(data, pieces, standing))),
            Start::GiveUp => {
                tracing::warn!(free = standing.free, "disk full: ballast given up to start");
                pieces.give_up()?;
            }
            Start::Wait => {
                let needed = standing.needed_to_start(database);
                let free = standing.free;
                return Ok(Err(Shortage { free, needed }));
            }
        }
    }
}

/// Whom a change concerns.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) output: OutputLog,
    pub(crate) telemetry: Telemetry,
}

impl Guard {
    fn new(data: &Path, pieces: Pieces, standing: Standing) -> Self {
        // Closed until the first look, which also makes the ballast of a new directory.
        let level = Level::Low;
        let (seen, _) = watch::channel(Seen { level, standing });
        Self {
            data: data.to_owned(),
            pieces,
            seen,
        }
    }

    pub(crate) fn space(&self) -> Space {
        Space {
            seen: self.seen.subscribe(),
        }
    }

    /// The first looks, before anybody is served.
    pub(crate) async fn begin(mut self, parts: &Parts) -> Self {
        for _ in 0..=PIECES {
            self = self.look(parts).await;
        }
        let seen = *self.seen.borrow();
        if !seen.admits() {
            parts.tell(seen).await;
        }
        self
    }

    /// Looks until `finish`.
    pub(crate) async fn watch(mut self, parts: Parts, finish: CancellationToken) {
        loop {
            tokio::select! {
                () = finish.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let before = self.seen.borrow().level;
            self = self.look(&parts).await;
            let seen = *self.seen.borrow();
            if seen.level != before {
                parts.tell(seen).await;
            }
        }
    }

    async fn look(mut self, parts: &Parts) -> Self {
        let telemetry = parts.telemetry.clone();
        let looked = tokio::task::spawn_blocking(move || {
            if let Err(error) = self.look_and_act(&telemetry) {
                tracing::warn!(%error, "the space under the data directory was not seen to");
            }
            self
        });
        // It does not panic, and nobody cancels it.
        looked.await.expect("a look ends")
    }

    fn look_and_act(&mut self, telemetry: &Telemetry) -> io::Result<()> {
        let standing = look_at(&self.data, self.pieces.held())?;
        let (level, ballast) = standing.decide(self.seen.borrow().level);
        self.seen.send_replace(Seen { level, standing });
        match ballast {
            Ballast::Keep => return Ok(()),
            Ballast::GiveUp => {
                tracing::warn!(free = standing.free, "disk nearly full: ballast given up");
                telemetry.add("ballast", "given_up", 1);
                self.pieces.give_up()?;
            }
            Ballast::Refill => self.pieces.refill(standing.marks().piece)?,
        }
        let standing = look_at(&self.data, self.pieces.held())?;
        self.seen.send_replace(Seen { level, standing });
        Ok(())
    }
}

impl Parts {
    async fn tell(&self, seen: Seen) {
        let (free, needed) = (seen.free(), seen.needed());
        match seen.level {
            Level::Roomy => tracing::info!(free, "there is room again: work is taken"),
            Level::Low => tracing::warn!(free, needed, "disk nearly full: no new work is taken"),
            Level::Bare => tracing::error!(free, needed, "disk full: output is refused too"),
        }
        self.telemetry.add("disk_space", seen.level.as_str(), 1);
        self.output.hold(seen.level == Level::Bare);
        let held = !seen.admits();
        let hold = FromSession::Input(Input::HoldDispatch { held });
        // Refused only by a relay that is stopping, which dispatches nothing.
        drop(self.dispatcher.hear(hold).await);
    }
}

/// Whether so little is left that a write which failed must have failed for that.
pub(crate) fn is_bare(data: &Path) -> bool {
    let standing = look_at(data, PIECES);
    standing.is_ok_and(|standing| standing.decide(Level::Low).0 == Level::Bare)
}

fn look_at(dir: &Path, held: u32) -> io::Result<Standing> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(Standing {
        free: disk.f_bavail.saturating_mul(disk.f_frsize),
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
        held,
    })
}
