//! The one thread that writes the outboxes of all attempts. It takes what waits in one go, writes it, tells what is written, syncs
//! only the files that something urgent went into, and tells what is synced. The supervisor never waits for it, and it decides
//! nothing: a disk that refuses is reported, once per attempt, and that attempt's entries are dropped until a whole new file of it is
//! asked for.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::file::OutboxFile;
use super::{Durable, Leaves, Logged};
use crate::attempt_dir::{AttemptDir, AttemptId, AttemptMeta, Attempts};
use crate::conversations::Note;
use crate::disk::Space;
use crate::memory::{self, Machine};
use crate::whole_file;

/// Jobs on their way to the thread. Full: entries wait in their outboxes, and a slow disk holds children back.
const JOBS: usize = 256;
/// Reports on their way to the supervisor, which never waits for this thread. Full: the thread waits.
const REPORTS: usize = 256;
/// Jobs that are written before anything is synced.
const GROUP: usize = 64;
/// Enough to need a block of its own.
const PROBE_BYTES: usize = 4096;
const PROBE: &str = "disk-probe";

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// An attempt is taken: its directory is made.
    Begin {
        id: AttemptId,
        meta: Box<AttemptMeta>,
    },
    /// A file that another daemon left is written on.
    Resume {
        id: AttemptId,
        found: Found,
    },
    Append {
        id: AttemptId,
        entries: Vec<Logged>,
    },
    /// A new file takes the place of the old one.
    Replace {
        id: AttemptId,
        entries: Vec<Logged>,
    },
    /// The relay has everything: the directory goes.
    Remove {
        id: AttemptId,
    },
    /// Which relays are of the past.
    KeepEpochs(String),
    KeepConversation(Note),
    /// How much room is there? With `probe`: does the disk take a write?
    Look {
        probe: bool,
    },
}

/// The good part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) length: u64,
    /// Of the last entry in it.
    pub(crate) serial: u64,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Report {
    Stored {
        id: AttemptId,
        durable: Durable,
    },
    /// No new file could be made; the old one is as good as before.
    NotReplaced {
        id: AttemptId,
    },
    /// The disk refused. Nothing more of this attempt is written until a whole new file is asked for.
    Failed {
        id: AttemptId,
        error: io::Error,
    },
    Looked {
        space: Option<Space>,
        is_writable: bool,
        machine: Machine,
    },
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) reports: mpsc::Receiver<Report>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(crate) fn start(attempts: Attempts, data_dir: PathBuf) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel(JOBS);
        let (tell, reports) = mpsc::channel(REPORTS);
        let desk = Desk {
            attempts,
            data_dir,
            tell,
            open: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name("outbox".to_owned());
        let thread = thread.spawn(move || desk.work(waiting))?;
        Ok(Self {
            jobs,
            reports,
            thread,
        })
    }

    /// Returns when everything that was handed over is done.
    pub(crate) async fn finish(self) {
        let Self {
            jobs,
            mut reports,
            thread,
        } = self;
        drop(jobs);
        // The thread waits for room in here.
        while reports.recv().await.is_some() {}
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            warn!("the thread that writes the outboxes has panicked");
        }
    }
}

/// One attempt as the thread knows it.
#[derive(Debug)]
struct Open {
    dir: AttemptDir,
    /// None: the disk refused.
    file: Option<OutboxFile>,
    /// Serial of the last entry in the file.
    written: u64,
    synced: u64,
    /// The names survive the machine.
    named: bool,
    wants_sync: bool,
    has_news: bool,
}

impl Open {
    fn new(dir: AttemptDir, file: Option<OutboxFile>, written: u64) -> Self {
        Self {
            dir,
            file,
            written,
            synced: 0,
            named: false,
            wants_sync: false,
            has_news: true,
        }
    }

    fn durable(&self) -> Durable {
        Durable {
            written: self.written,
            synced: self.synced,
            file_bytes: self.file.as_ref().map_or(0, OutboxFile::length),
        }
    }
}

struct Desk {
    attempts: Attempts,
    data_dir: PathBuf,
    tell: mpsc::Sender<Report>,
    open: BTreeMap<AttemptId, Open>,
}

impl Desk {
    fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
            self.take(first);
            for _ in 1..GROUP {
                match jobs.try_recv() {
                    Ok(job) => self.take(job),
                    Err(_) => break,
                }
            }
            self.tell_written();
            self.sync();
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Begin { id, meta } => self.begin(id, &meta),
            Job::Resume { id, found } => self.resume(id, found),
            Job::Append { id, entries } => self.append(id, &entries),
            Job::Replace { id, entries } => self.replace(id, &entries),
            Job::Remove { id } => self.remove(id),
            Job::KeepEpochs(text) => self.keep_epochs(&text),
            Job::KeepConversation(note) => self.keep_conversation(&note),
            Job::Look { probe } => self.look(probe),
        }
    }

    fn begin(&mut self, id: AttemptId, meta: &AttemptMeta) {
        let dir = self.attempts.place(id);
        let made = dir
            .create(meta)
            .and_then(|()| OutboxFile::open(&dir.outbox(), 0));
        self.opened(id, dir, made, 0);
    }

    /// What was written by a daemon that is gone may not have been synced by it.
    fn resume(&mut self, id: AttemptId, found: Found) {
        let dir = self.attempts.place(id);
        let opened = OutboxFile::open(&dir.outbox(), found.length);
        self.opened(id, dir, opened, found.serial);
        if let Some(open) = self.open.get_mut(&id) {
            open.wants_sync = true;
        }
    }

    fn opened(
        &mut self,
        id: AttemptId,
        dir: AttemptDir,
        file: io::Result<OutboxFile>,
        serial: u64,
    ) {
        let (file, error) = match file {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(error)),
        };
        self.open.insert(id, Open::new(dir, file, serial));
        if let Some(error) = error {
            self.failed(id, error);
        }
    }

    fn append(&mut self, id: AttemptId, entries: &[Logged]) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        let Some(file) = &mut open.file else { return };
        match file.append(entries) {
            Ok(()) => {
                open.written = entries.last().map_or(open.written, |last| last.serial);
                open.wants_sync |= entries.iter().any(|entry| entry.leaves == Leaves::Synced);
                open.has_news = true;
            }
            Err(error) => self.failed(id, error),
        }
    }

    fn replace(&mut self, id: AttemptId, entries: &[Logged]) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        let path = open.dir.outbox();
        match OutboxFile::draft(&path, entries) {
            Ok(file) => match OutboxFile::install(&path) {
                Ok(()) => {
                    open.written = entries.last().map_or(open.written, |last| last.serial);
                    open.file = Some(file);
                    // Synced as it is, but the name of its directory may not be.
                    (open.wants_sync, open.has_news) = (!open.named, true);
                    open.synced = if open.named { open.written } else { 0 };
                }
                Err(error) => self.failed(id, error),
            },
            Err(error) if open.file.is_some() => {
                warn!(attempt_id = %id, %error, "the outbox could not be made smaller");
                self.report(Report::NotReplaced { id });
            }
            Err(error) => self.failed(id, error),
        }
    }

    fn remove(&mut self, id: AttemptId) {
        self.open.remove(&id);
        if let Err(error) = self.attempts.place(id).remove() {
            warn!(attempt_id = %id, %error, "a settled attempt's directory was not removed whole");
        }
    }

    fn keep_epochs(&mut self, text: &str) {
        if let Err(error) = whole_file::write(&self.data_dir, crate::epoch::FILE, text) {
            warn!(%error, "the relay's epoch was not kept; a restarted daemon would not know it");
        }
    }

    fn keep_conversation(&self, note: &Note) {
        if let Err(error) = note.write(&self.data_dir) {
            warn!(%error, "a conversation was not kept; after a restart its next turn begins anew");
        }
    }

    fn look(&mut self, probe: bool) {
        let space = crate::storage::space(&self.data_dir);
        let probed = if probe { self.probe() } else { Ok(()) };
        if let Err(error) = &probed {
            debug!(%error, "the disk takes no writes");
        }
        self.report(Report::Looked {
            space: space.ok(),
            is_writable: probed.is_ok(),
            machine: memory::look(),
        });
    }

    fn probe(&self) -> io::Result<()> {
        let path = self.data_dir.join(PROBE);
        let written =
            fs::write(&path, [0; PROBE_BYTES]).and_then(|()| fs::File::open(&path)?.sync_all());
        let removed = fs::remove_file(&path);
        written.and(removed)
    }

    fn tell_written(&mut self) {
        let mut news = Vec::new();
        for (id, open) in &mut self.open {
            if std::mem::take(&mut open.has_news) && open.file.is_some() {
                news.push((*id, open.durable()));
            }
        }
        for (id, durable) in news {
            self.report(Report::Stored { id, durable });
        }
    }

    fn sync(&mut self) {
        let wanting = |(id, open): (&AttemptId, &mut Open)| {
            (std::mem::take(&mut open.wants_sync) && open.file.is_some()).then_some(*id)
        };
        let due: Vec<AttemptId> = self.open.iter_mut().filter_map(wanting).collect();
        let unnamed = due.iter().any(|id| !self.open[id].named);
        let named = if unnamed {
            self.attempts.sync()
        } else {
            Ok(())
        };
        for id in due {
            // The error is reported for each whose name may be lost.
            let parent = match &named {
                Err(error) if !self.open[&id].named => Err(again(error)),
                Ok(()) | Err(_) => Ok(()),
            };
            match parent.and_then(|()| self.sync_one(id)) {
                Ok(durable) => self.report(Report::Stored { id, durable }),
                Err(error) => self.failed(id, error),
            }
        }
    }

    fn sync_one(&mut self, id: AttemptId) -> io::Result<Durable> {
        let Some(open) = self.open.get_mut(&id) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Some(file) = &open.file {
            file.sync()?;
        }
        if !open.named {
            open.dir.sync()?;
            open.named = true;
        }
        open.synced = open.written;
        Ok(open.durable())
    }

    /// After a failed sync nobody knows what the file holds, so it is not written any more either.
    fn failed(&mut self, id: AttemptId, error: io::Error) {
        if let Some(open) = self.open.get_mut(&id) {
            open.file = None;
        }
        self.report(Report::Failed { id, error });
    }

    fn report(&self, report: Report) {
        // Without a supervisor nobody needs to know.
        let _ = self.tell.blocking_send(report);
    }
}

fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
