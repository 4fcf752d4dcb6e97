//! The thread with real files: reported entries are there, a refused write is reported once,
//! and a new file repairs it.

use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use baton_proto::v1::AttemptRef;
use bytes::Bytes;

use super::*;
use crate::deadlines::DeadlineLimits;
use crate::frames::{self, ControlFrame};
use crate::outbox::{FrameOutbox, OUTPUT_LIMIT, OutboxTail, read_outbox};
use crate::spool::ChildPipe;
use crate::storage::attempt_dir::AttemptDir;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct WriterFixture {
    dir: tempfile::TempDir,
    attempts: AttemptDirectories,
    writer: OutboxWriter,
}

impl WriterFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let attempts = AttemptDirectories::open(dir.path()).unwrap();
        let writer = OutboxWriter::start(attempts.clone(), dir.path().to_owned()).unwrap();
        Self {
            dir,
            attempts,
            writer,
        }
    }

    fn new_attempt_dir(&self) -> AttemptDir {
        self.attempts
            .attempt_dir(uuid::Uuid::now_v7().to_string().parse().unwrap())
    }

    async fn begin(&mut self, attempt_dir: &AttemptDir) -> FrameOutbox {
        let meta = AttemptMeta {
            attempt: AttemptRef::default(),
            agent: String::new(),
            daemon_id: String::new(),
            boot_id: String::new(),
            deadlines: DeadlineLimits::default(),
            cleanup_term: Duration::ZERO,
            conversation_key: Bytes::new(),
            workspace: None,
            tools: None,
            required_files: None,
            is_coding_agent: false,
        };
        let (id, meta) = (attempt_dir.id, Box::new(meta));
        self.submit(OutboxJob::Begin { id, meta }).await;
        FrameOutbox::new(OUTPUT_LIMIT)
    }

    async fn submit(&mut self, job: OutboxJob) {
        self.writer.jobs.send(job).await.unwrap();
    }

    async fn append(&mut self, attempt_dir: &AttemptDir, outbox: &mut FrameOutbox) {
        let entries = outbox.log_mut().take_pending();
        let id = attempt_dir.id;
        self.submit(OutboxJob::Append { id, entries }).await;
    }

    async fn next_report(&mut self) -> OutboxReport {
        let report = tokio::time::timeout(TEST_TIMEOUT, self.writer.reports.recv());
        report.await.expect("no report comes").unwrap()
    }

    /// Applies reports until the attempt's outbox satisfies the condition.
    async fn wait_for_durable(
        &mut self,
        attempt_dir: &AttemptDir,
        outbox: &mut FrameOutbox,
        wanted: impl Fn(&DurablePosition) -> bool,
    ) {
        loop {
            match self.next_report().await {
                OutboxReport::Stored { id, durable } if id == attempt_dir.id => {
                    outbox.log_mut().on_durable(durable);
                    if wanted(&durable) {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn push_control(outbox: &mut FrameOutbox, durability: RequiredDurability) {
    let control = ControlFrame::from(frames::accepted());
    outbox.push_control(control, SystemTime::UNIX_EPOCH, durability);
}

fn push_output(outbox: &mut FrameOutbox, text: &'static str) {
    let bytes = Bytes::from_static(text.as_bytes());
    outbox.push_output(ChildPipe::Stdout.into(), bytes, SystemTime::UNIX_EPOCH);
}

#[tokio::test]
async fn reported_entries_are_written_and_only_urgent_ones_synced() {
    let mut bench = WriterFixture::new();
    let attempt_dir = bench.new_attempt_dir();
    let mut outbox = bench.begin(&attempt_dir).await;
    push_control(&mut outbox, RequiredDurability::Written);
    push_output(&mut outbox, "text");
    bench.append(&attempt_dir, &mut outbox).await;
    bench
        .wait_for_durable(&attempt_dir, &mut outbox, |durable| durable.written == 2)
        .await;
    assert!(outbox.next_unsent().is_some());
    let mut stored = read_outbox(&attempt_dir.outbox_path(), OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.prefix.serial, 2);
    assert_eq!(stored.outbox.end_offset(), 4);
    push_control(&mut outbox, RequiredDurability::Synced);
    bench.append(&attempt_dir, &mut outbox).await;
    bench
        .wait_for_durable(&attempt_dir, &mut outbox, |durable| durable.synced == 3)
        .await;
    push_output(&mut outbox, "more");
    bench.append(&attempt_dir, &mut outbox).await;
    bench
        .wait_for_durable(&attempt_dir, &mut outbox, |durable| durable.written == 4)
        .await;
    bench.submit(OutboxJob::CheckDisk { probe: false }).await;
    let next = bench.next_report().await;
    assert!(
        matches!(next, OutboxReport::DiskChecked { .. }),
        "no sync: {next:?}"
    );
    // A new daemon continues the file, and everything is synced first.
    stored = read_outbox(&attempt_dir.outbox_path(), OutboxTail::MayBeTorn).unwrap();
    let found = stored.prefix;
    let mut next = stored.outbox;
    bench
        .submit(OutboxJob::Resume {
            id: attempt_dir.id,
            prefix: found,
        })
        .await;
    bench
        .wait_for_durable(&attempt_dir, &mut next, |durable| {
            durable.synced == found.serial
        })
        .await;
    bench.append(&attempt_dir, &mut next).await;
    bench
        .wait_for_durable(&attempt_dir, &mut next, |durable| {
            durable.written > found.serial
        })
        .await;
    bench.submit(OutboxJob::Remove { id: attempt_dir.id }).await;
    bench.writer.finish().await;
    assert!(!attempt_dir.path().exists());
}

#[tokio::test]
async fn a_refused_write_is_reported_once_and_repaired_by_a_new_file() {
    let mut bench = WriterFixture::new();
    let (attempt_dir, other) = (bench.new_attempt_dir(), bench.new_attempt_dir());
    let mut outbox = bench.begin(&attempt_dir).await;
    let mut healthy = bench.begin(&other).await;
    push_control(&mut outbox, RequiredDurability::Written);
    bench.append(&attempt_dir, &mut outbox).await;
    while outbox.next_unsent().is_none() {
        match bench.next_report().await {
            OutboxReport::Stored { id, durable } if id == attempt_dir.id => {
                outbox.log_mut().on_durable(durable);
            }
            OutboxReport::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    // A file that is resumed there cannot be written.
    fs::remove_file(attempt_dir.outbox_path()).unwrap();
    symlink("/dev/full", attempt_dir.outbox_path()).unwrap();
    let found = OutboxFilePrefix {
        length: 0,
        serial: 1,
    };
    bench
        .submit(OutboxJob::Resume {
            id: attempt_dir.id,
            prefix: found,
        })
        .await;
    push_output(&mut outbox, "lost on the disk");
    bench.append(&attempt_dir, &mut outbox).await;
    push_output(&mut outbox, "this too");
    bench.append(&attempt_dir, &mut outbox).await;
    push_control(&mut healthy, RequiredDurability::Synced);
    bench.append(&other, &mut healthy).await;
    let mut failures = 0;
    loop {
        match bench.next_report().await {
            OutboxReport::Failed { id, .. } => {
                assert_eq!(id, attempt_dir.id);
                failures += 1;
            }
            OutboxReport::Stored { id, durable } if id == other.id && durable.synced == 1 => break,
            OutboxReport::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    assert_eq!(failures, 1, "the others go on");
    outbox.log_mut().on_failed();
    let entries = outbox.rewrite_entries();
    let last = entries.last().unwrap().serial;
    bench
        .submit(OutboxJob::Replace {
            id: attempt_dir.id,
            entries,
        })
        .await;
    bench
        .wait_for_durable(&attempt_dir, &mut outbox, |durable| durable.synced == last)
        .await;
    let stored = read_outbox(&attempt_dir.outbox_path(), OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.outbox.end_offset(), outbox.end_offset());
}

#[tokio::test]
async fn a_file_that_cannot_be_rewritten_is_continued() {
    let mut bench = WriterFixture::new();
    let attempt_dir = bench.new_attempt_dir();
    let mut outbox = bench.begin(&attempt_dir).await;
    push_output(&mut outbox, "text");
    bench.append(&attempt_dir, &mut outbox).await;
    bench
        .wait_for_durable(&attempt_dir, &mut outbox, |durable| durable.written == 1)
        .await;
    // The draft's name is taken by a directory.
    fs::create_dir(attempt_dir.path().join("outbox.new")).unwrap();
    let entries = outbox.rewrite_entries();
    bench
        .submit(OutboxJob::Replace {
            id: attempt_dir.id,
            entries,
        })
        .await;
    push_output(&mut outbox, "more");
    bench.append(&attempt_dir, &mut outbox).await;
    let mut refused = false;
    loop {
        match bench.next_report().await {
            OutboxReport::NotReplaced { id } => refused = id == attempt_dir.id,
            OutboxReport::Stored { durable, .. } if refused && durable.written > 2 => break,
            OutboxReport::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    let stored = read_outbox(&attempt_dir.outbox_path(), OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.outbox.end_offset(), 8);
}

#[tokio::test]
async fn the_disk_is_measured_and_small_files_are_stored() {
    let mut bench = WriterFixture::new();
    bench.submit(OutboxJob::CheckDisk { probe: true }).await;
    let OutboxReport::DiskChecked {
        space: Some(space),
        is_writable: true,
        machine: _,
    } = bench.next_report().await
    else {
        panic!("the disk is there")
    };
    assert!(space.total >= space.free && space.total > 0);
    let epochs = "incarnation = \"a\"\nepoch = 3\nover = []\n";
    bench
        .submit(OutboxJob::StoreEpochs(epochs.to_owned()))
        .await;
    let probe = bench.dir.path().join(PROBE_FILE);
    fs::create_dir(&probe).unwrap();
    bench.submit(OutboxJob::CheckDisk { probe: true }).await;
    assert!(matches!(
        bench.next_report().await,
        OutboxReport::DiskChecked {
            is_writable: false,
            ..
        }
    ));
    bench.writer.finish().await;
    assert_eq!(
        crate::storage::relay_epochs::read_relay_epochs(bench.dir.path())
            .unwrap()
            .epoch(),
        3
    );
}
