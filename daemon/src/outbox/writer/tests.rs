//! The thread with real files: what it reports is there, a refusing disk is told once, and a new file mends it.

use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use baton_proto::v1::AttemptRef;
use bytes::Bytes;

use super::*;
use crate::attempt_dir::AttemptDir;
use crate::frames::{self, Control};
use crate::outbox::{OUTPUT_LIMIT, Outbox, Tail, read};
use crate::spool::OutputKind;
use crate::timers::Deadlines;

const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    dir: tempfile::TempDir,
    attempts: Attempts,
    writer: Writer,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let attempts = Attempts::open(dir.path()).unwrap();
        let writer = Writer::start(attempts.clone(), dir.path().to_owned()).unwrap();
        Self {
            dir,
            attempts,
            writer,
        }
    }

    fn place(&self) -> AttemptDir {
        self.attempts
            .place(uuid::Uuid::now_v7().to_string().parse().unwrap())
    }

    async fn begin(&mut self, place: &AttemptDir) -> Outbox {
        let meta = AttemptMeta {
            attempt: AttemptRef::default(),
            agent: String::new(),
            daemon_id: String::new(),
            boot_id: String::new(),
            deadlines: Deadlines::default(),
            cleanup_term: Duration::ZERO,
            conversation_key: Bytes::new(),
            workspace: None,
            tools: None,
            files: None,
            talks: false,
        };
        let (id, meta) = (place.id, Box::new(meta));
        self.job(Job::Begin { id, meta }).await;
        Outbox::new(OUTPUT_LIMIT)
    }

    async fn job(&mut self, job: Job) {
        self.writer.jobs.send(job).await.unwrap();
    }

    async fn append(&mut self, place: &AttemptDir, outbox: &mut Outbox) {
        let entries = outbox.log_mut().take();
        let id = place.id;
        self.job(Job::Append { id, entries }).await;
    }

    async fn report(&mut self) -> Report {
        let report = tokio::time::timeout(PATIENCE, self.writer.reports.recv());
        report.await.expect("no report comes").unwrap()
    }

    /// Takes reports until the attempt's outbox satisfies.
    async fn until(
        &mut self,
        place: &AttemptDir,
        outbox: &mut Outbox,
        wanted: impl Fn(&Durable) -> bool,
    ) {
        loop {
            match self.report().await {
                Report::Stored { id, durable } if id == place.id => {
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

fn say(outbox: &mut Outbox, leaves: Leaves) {
    let control = Control::from(frames::accepted());
    outbox.push_control(control, SystemTime::UNIX_EPOCH, leaves);
}

fn print(outbox: &mut Outbox, text: &'static str) {
    let bytes = Bytes::from_static(text.as_bytes());
    outbox.push_output(OutputKind::Stdout.into(), bytes, SystemTime::UNIX_EPOCH);
}

#[tokio::test]
async fn what_is_reported_written_is_there_and_only_what_is_urgent_is_synced() {
    let mut bench = Bench::new();
    let place = bench.place();
    let mut outbox = bench.begin(&place).await;
    say(&mut outbox, Leaves::Written);
    print(&mut outbox, "text");
    bench.append(&place, &mut outbox).await;
    bench
        .until(&place, &mut outbox, |durable| durable.written == 2)
        .await;
    assert!(outbox.next_unsent().is_some());
    let mut stored = read(&place.outbox(), Tail::Short).unwrap();
    assert_eq!(stored.found.serial, 2);
    assert_eq!(stored.outbox.end_offset(), 4);
    say(&mut outbox, Leaves::Synced);
    bench.append(&place, &mut outbox).await;
    bench
        .until(&place, &mut outbox, |durable| durable.synced == 3)
        .await;
    print(&mut outbox, "more");
    bench.append(&place, &mut outbox).await;
    bench
        .until(&place, &mut outbox, |durable| durable.written == 4)
        .await;
    bench.job(Job::Look { probe: false }).await;
    let next = bench.report().await;
    assert!(matches!(next, Report::Looked { .. }), "no sync: {next:?}");
    // A new daemon goes on behind it, and everything is synced again first.
    stored = read(&place.outbox(), Tail::Short).unwrap();
    let found = stored.found;
    let mut next = stored.outbox;
    bench
        .job(Job::Resume {
            id: place.id,
            found,
        })
        .await;
    bench
        .until(&place, &mut next, |durable| durable.synced == found.serial)
        .await;
    bench.append(&place, &mut next).await;
    bench
        .until(&place, &mut next, |durable| durable.written > found.serial)
        .await;
    bench.job(Job::Remove { id: place.id }).await;
    bench.writer.finish().await;
    assert!(!place.path().exists());
}

#[tokio::test]
async fn a_refusing_disk_is_told_once_and_a_new_file_mends_it() {
    let mut bench = Bench::new();
    let (place, other) = (bench.place(), bench.place());
    let mut outbox = bench.begin(&place).await;
    let mut healthy = bench.begin(&other).await;
    say(&mut outbox, Leaves::Written);
    bench.append(&place, &mut outbox).await;
    while outbox.next_unsent().is_none() {
        match bench.report().await {
            Report::Stored { id, durable } if id == place.id => {
                outbox.log_mut().on_durable(durable);
            }
            Report::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    // A file that is resumed there cannot be written.
    fs::remove_file(place.outbox()).unwrap();
    symlink("/dev/full", place.outbox()).unwrap();
    let found = Found {
        length: 0,
        serial: 1,
    };
    bench
        .job(Job::Resume {
            id: place.id,
            found,
        })
        .await;
    print(&mut outbox, "lost on the disk");
    bench.append(&place, &mut outbox).await;
    print(&mut outbox, "this too");
    bench.append(&place, &mut outbox).await;
    say(&mut healthy, Leaves::Synced);
    bench.append(&other, &mut healthy).await;
    let mut failures = 0;
    loop {
        match bench.report().await {
            Report::Failed { id, .. } => {
                assert_eq!(id, place.id);
                failures += 1;
            }
            Report::Stored { id, durable } if id == other.id && durable.synced == 1 => break,
            Report::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    assert_eq!(failures, 1, "the others go on");
    outbox.log_mut().on_failed();
    let entries = outbox.image();
    let last = entries.last().unwrap().serial;
    bench
        .job(Job::Replace {
            id: place.id,
            entries,
        })
        .await;
    bench
        .until(&place, &mut outbox, |durable| durable.synced == last)
        .await;
    let stored = read(&place.outbox(), Tail::Short).unwrap();
    assert_eq!(stored.outbox.end_offset(), outbox.end_offset());
}

#[tokio::test]
async fn a_file_that_cannot_be_made_smaller_goes_on_as_it_is() {
    let mut bench = Bench::new();
    let place = bench.place();
    let mut outbox = bench.begin(&place).await;
    print(&mut outbox, "text");
    bench.append(&place, &mut outbox).await;
    bench
        .until(&place, &mut outbox, |durable| durable.written == 1)
        .await;
    // Nothing can be written under the draft's name.
    fs::create_dir(place.path().join("outbox.new")).unwrap();
    let entries = outbox.image();
    bench
        .job(Job::Replace {
            id: place.id,
            entries,
        })
        .await;
    print(&mut outbox, "more");
    bench.append(&place, &mut outbox).await;
    let mut refused = false;
    loop {
        match bench.report().await {
            Report::NotReplaced { id } => refused = id == place.id,
            Report::Stored { durable, .. } if refused && durable.written > 2 => break,
            Report::Stored { .. } => {}
            report => panic!("{report:?}"),
        }
    }
    let stored = read(&place.outbox(), Tail::Short).unwrap();
    assert_eq!(stored.outbox.end_offset(), 8);
}

#[tokio::test]
async fn the_disk_is_looked_at_and_probed_and_small_files_are_kept() {
    let mut bench = Bench::new();
    bench.job(Job::Look { probe: true }).await;
    let Report::Looked {
        space: Some(space),
        is_writable: true,
        machine: _,
    } = bench.report().await
    else {
        panic!("the disk is there")
    };
    assert!(space.total >= space.free && space.total > 0);
    let epochs = "incarnation = \"a\"\nepoch = 3\nover = []\n";
    bench.job(Job::KeepEpochs(epochs.to_owned())).await;
    let probe = bench.dir.path().join(PROBE);
    fs::create_dir(&probe).unwrap();
    bench.job(Job::Look { probe: true }).await;
    assert!(matches!(
        bench.report().await,
        Report::Looked {
            is_writable: false,
            ..
        }
    ));
    bench.writer.finish().await;
    assert_eq!(crate::epoch::read(bench.dir.path()).unwrap().epoch(), 3);
}
