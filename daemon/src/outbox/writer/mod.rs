//! The one thread that writes the outboxes of all attempts. It takes all waiting jobs at once,
//! writes them, reports what is written, syncs only the files with entries that require it, and
//! reports what is synced. The supervisor never waits for it, and it decides nothing: a disk
//! that refuses writes is reported once per attempt, and that attempt's entries are dropped
//! until a whole new file is requested.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::file::OutboxFile;
use super::{DurablePosition, LoggedFrameEntry, RequiredDurability};
use crate::machine::disk_monitor::FreeSpace;
use crate::machine::memory_monitor;
use crate::machine::memory_monitor::MachineUsage;
use crate::storage::atomic_file;
use crate::storage::attempt_dir::{AttemptDir, AttemptDirectories, AttemptId, AttemptMeta};
use crate::storage::conversation_store::ConversationChange;

/// Jobs for the thread. When it is full, entries wait in their outboxes and a slow disk pauses
/// children.
const JOB_QUEUE: usize = 256;
/// Reports for the supervisor, which never waits for this thread. When it is full the thread
/// waits.
const REPORT_QUEUE: usize = 256;
/// Jobs that are written before anything is synced.
const JOBS_PER_SYNC: usize = 64;
/// Enough to need a block of its own.
const PROBE_BYTES: usize = 4096;
const PROBE_FILE: &str = "disk-probe";

/// A job for the thread.
#[derive(Debug)]
pub(crate) enum OutboxJob {
    /// An attempt is accepted: its directory is created.
    Begin {
        id: AttemptId,
        meta: Box<AttemptMeta>,
    },
    /// A file of an earlier daemon is continued.
    Resume {
        id: AttemptId,
        prefix: OutboxFilePrefix,
    },
    Append {
        id: AttemptId,
        entries: Vec<LoggedFrameEntry>,
    },
    /// A new file replaces the old one.
    Replace {
        id: AttemptId,
        entries: Vec<LoggedFrameEntry>,
    },
    /// The relay has acknowledged everything: the directory is removed.
    Remove {
        id: AttemptId,
    },
    /// Which relays were replaced.
    StoreEpochs(String),
    StoreConversation(ConversationChange),
    /// Measures the free space. With `probe` it also tries a write.
    CheckDisk {
        probe: bool,
    },
}

/// The valid part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutboxFilePrefix {
    pub(crate) length: u64,
    /// The serial of the last entry in it.
    pub(crate) serial: u64,
}

/// The result of a job.
#[derive(Debug)]
pub(crate) enum OutboxReport {
    Stored {
        id: AttemptId,
        durable: DurablePosition,
    },
    /// The new file could not be written; the old one is unchanged.
    NotReplaced { id: AttemptId },
    /// The disk refused a write. Nothing more of this attempt is written until a whole new file
    /// is requested.
    Failed { id: AttemptId, error: io::Error },
    DiskChecked {
        space: Option<FreeSpace>,
        is_writable: bool,
        machine: MachineUsage,
    },
}

/// The supervisor's handle on the thread.
#[derive(Debug)]
pub(crate) struct OutboxWriter {
    pub(crate) jobs: mpsc::Sender<OutboxJob>,
    pub(crate) reports: mpsc::Receiver<OutboxReport>,
    thread: JoinHandle<()>,
}

impl OutboxWriter {
    pub(crate) fn start(attempts: AttemptDirectories, data_dir: PathBuf) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel(JOB_QUEUE);
        let (report_sender, reports) = mpsc::channel(REPORT_QUEUE);
        let writer = WriterThread {
            attempts,
            data_dir,
            reports: report_sender,
            outboxes: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name("outbox".to_owned());
        let thread = thread.spawn(move || writer.run(waiting))?;
        Ok(Self {
            jobs,
            reports,
            thread,
        })
    }

    /// Returns when all submitted jobs are done.
    pub(crate) async fn finish(self) {
        let Self {
            jobs,
            mut reports,
            thread,
        } = self;
        drop(jobs);
        // The thread may be waiting for room for its reports.
        while reports.recv().await.is_some() {}
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            warn!("the thread that writes the outboxes has panicked");
        }
    }
}

/// One attempt's outbox in the thread.
#[derive(Debug)]
struct OpenOutbox {
    dir: AttemptDir,
    /// `None` after the disk refused a write.
    file: Option<OutboxFile>,
    /// The serial of the last entry in the file.
    written: u64,
    synced: u64,
    /// The names of the files are synced too, so that they survive a power failure.
    is_name_synced: bool,
    wants_sync: bool,
    is_unreported: bool,
}

impl OpenOutbox {
    fn new(dir: AttemptDir, file: Option<OutboxFile>, written: u64) -> Self {
        Self {
            dir,
            file,
            written,
            synced: 0,
            is_name_synced: false,
            wants_sync: false,
            is_unreported: true,
        }
    }

    fn durable(&self) -> DurablePosition {
        DurablePosition {
            written: self.written,
            synced: self.synced,
            file_bytes: self.file.as_ref().map_or(0, OutboxFile::length),
        }
    }
}

struct WriterThread {
    attempts: AttemptDirectories,
    data_dir: PathBuf,
    reports: mpsc::Sender<OutboxReport>,
    outboxes: BTreeMap<AttemptId, OpenOutbox>,
}

impl WriterThread {
    fn run(mut self, mut jobs: mpsc::Receiver<OutboxJob>) {
        while let Some(first) = jobs.blocking_recv() {
            self.do_job(first);
            for _ in 1..JOBS_PER_SYNC {
                match jobs.try_recv() {
                    Ok(job) => self.do_job(job),
                    Err(_) => break,
                }
            }
            self.report_written();
            self.sync();
        }
    }

    fn do_job(&mut self, job: OutboxJob) {
        match job {
            OutboxJob::Begin { id, meta } => self.begin(id, &meta),
            OutboxJob::Resume { id, prefix: found } => self.resume(id, found),
            OutboxJob::Append { id, entries } => self.append(id, &entries),
            OutboxJob::Replace { id, entries } => self.replace(id, &entries),
            OutboxJob::Remove { id } => self.remove(id),
            OutboxJob::StoreEpochs(text) => self.store_epochs(&text),
            OutboxJob::StoreConversation(change) => self.store_conversation(&change),
            OutboxJob::CheckDisk { probe } => self.check_disk(probe),
        }
    }

    fn begin(&mut self, id: AttemptId, meta: &AttemptMeta) {
        let dir = self.attempts.attempt_dir(id);
        let created = dir
            .create(meta)
            .and_then(|()| OutboxFile::open(&dir.outbox_path(), 0));
        self.insert_opened(id, dir, created, 0);
    }

    /// Entries of an earlier daemon may not have been synced by it.
    fn resume(&mut self, id: AttemptId, found: OutboxFilePrefix) {
        let dir = self.attempts.attempt_dir(id);
        let opened = OutboxFile::open(&dir.outbox_path(), found.length);
        self.insert_opened(id, dir, opened, found.serial);
        if let Some(open) = self.outboxes.get_mut(&id) {
            open.wants_sync = true;
        }
    }

    fn insert_opened(
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
        self.outboxes.insert(id, OpenOutbox::new(dir, file, serial));
        if let Some(error) = error {
            self.fail_attempt(id, error);
        }
    }

    fn append(&mut self, id: AttemptId, entries: &[LoggedFrameEntry]) {
        let Some(open) = self.outboxes.get_mut(&id) else {
            return;
        };
        let Some(file) = &mut open.file else { return };
        match file.append(entries) {
            Ok(()) => {
                open.written = entries.last().map_or(open.written, |last| last.serial);
                open.wants_sync |= entries
                    .iter()
                    .any(|entry| entry.required_durability == RequiredDurability::Synced);
                open.is_unreported = true;
            }
            Err(error) => self.fail_attempt(id, error),
        }
    }

    fn replace(&mut self, id: AttemptId, entries: &[LoggedFrameEntry]) {
        let Some(open) = self.outboxes.get_mut(&id) else {
            return;
        };
        let path = open.dir.outbox_path();
        match OutboxFile::write_draft(&path, entries) {
            Ok(file) => match OutboxFile::install_draft(&path) {
                Ok(()) => {
                    open.written = entries.last().map_or(open.written, |last| last.serial);
                    open.file = Some(file);
                    // The file is synced, but the name of its directory may not be.
                    (open.wants_sync, open.is_unreported) = (!open.is_name_synced, true);
                    open.synced = if open.is_name_synced { open.written } else { 0 };
                }
                Err(error) => self.fail_attempt(id, error),
            },
            Err(error) if open.file.is_some() => {
                warn!(attempt_id = %id, %error, "the outbox file could not be rewritten");
                self.report(OutboxReport::NotReplaced { id });
            }
            Err(error) => self.fail_attempt(id, error),
        }
    }

    fn remove(&mut self, id: AttemptId) {
        self.outboxes.remove(&id);
        if let Err(error) = self.attempts.attempt_dir(id).remove() {
            warn!(attempt_id = %id, %error, "the directory of a settled attempt was not removed completely");
        }
    }

    fn store_epochs(&mut self, text: &str) {
        if let Err(error) = atomic_file::write(
            &self.data_dir,
            crate::storage::relay_epochs::RELAY_EPOCHS_FILE,
            text,
        ) {
            warn!(%error, "the relay's epoch was not stored; a restarted daemon might accept a replaced relay");
        }
    }

    fn store_conversation(&self, change: &ConversationChange) {
        if let Err(error) = change.write(&self.data_dir) {
            warn!(%error, "a conversation was not stored; after a restart its next turn begins a new one");
        }
    }

    fn check_disk(&mut self, probe: bool) {
        let space = crate::storage::daemon_storage::measure_free_space(&self.data_dir);
        let probed = if probe { self.probe_write() } else { Ok(()) };
        if let Err(error) = &probed {
            debug!(%error, "the disk refuses writes");
        }
        self.report(OutboxReport::DiskChecked {
            space: space.ok(),
            is_writable: probed.is_ok(),
            machine: memory_monitor::measure_machine(),
        });
    }

    fn probe_write(&self) -> io::Result<()> {
        let path = self.data_dir.join(PROBE_FILE);
        let written =
            fs::write(&path, [0; PROBE_BYTES]).and_then(|()| fs::File::open(&path)?.sync_all());
        let removed = fs::remove_file(&path);
        written.and(removed)
    }

    fn report_written(&mut self) {
        let mut stored = Vec::new();
        for (id, open) in &mut self.outboxes {
            if std::mem::take(&mut open.is_unreported) && open.file.is_some() {
                stored.push((*id, open.durable()));
            }
        }
        for (id, durable) in stored {
            self.report(OutboxReport::Stored { id, durable });
        }
    }

    fn sync(&mut self) {
        let needs_sync = |(id, open): (&AttemptId, &mut OpenOutbox)| {
            (std::mem::take(&mut open.wants_sync) && open.file.is_some()).then_some(*id)
        };
        let due: Vec<AttemptId> = self.outboxes.iter_mut().filter_map(needs_sync).collect();
        let unnamed = due.iter().any(|id| !self.outboxes[id].is_name_synced);
        let named = if unnamed {
            self.attempts.sync()
        } else {
            Ok(())
        };
        for id in due {
            // The error is reported for every attempt whose name may be lost.
            let parent = match &named {
                Err(error) if !self.outboxes[&id].is_name_synced => Err(copy_error(error)),
                Ok(()) | Err(_) => Ok(()),
            };
            match parent.and_then(|()| self.sync_one(id)) {
                Ok(durable) => self.report(OutboxReport::Stored { id, durable }),
                Err(error) => self.fail_attempt(id, error),
            }
        }
    }

    fn sync_one(&mut self, id: AttemptId) -> io::Result<DurablePosition> {
        let Some(open) = self.outboxes.get_mut(&id) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Some(file) = &open.file {
            file.sync()?;
        }
        if !open.is_name_synced {
            open.dir.sync()?;
            open.is_name_synced = true;
        }
        open.synced = open.written;
        Ok(open.durable())
    }

    /// After a failed sync the contents of the file are unknown, so it is not written any more.
    fn fail_attempt(&mut self, id: AttemptId, error: io::Error) {
        if let Some(open) = self.outboxes.get_mut(&id) {
            open.file = None;
        }
        self.report(OutboxReport::Failed { id, error });
    }

    fn report(&self, report: OutboxReport) {
        // Without a supervisor the report has no receiver.
        let _ = self.reports.blocking_send(report);
    }
}

fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;
