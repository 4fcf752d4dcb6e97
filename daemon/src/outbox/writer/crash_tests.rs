//! kill -9 of a real process at any time while it appends, rewrites and syncs: everything that
//! was reported as stored is there, in order, and the next process continues it. The process is
//! this test's own executable, started again as `the_process`.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, TaskLifecycle};
use bytes::Bytes;

use super::*;
use crate::deadlines::DeadlineLimits;
use crate::frames::ControlFrame;
use crate::outbox::{
    AckedPosition, FrameOutbox, FrameRecord, OUTPUT_LIMIT, OutboxTail, StoredOutbox, read_outbox,
};
use crate::spool::ChildPipe;

const ROUNDS: usize = 200;
/// The variable with the directory of the started process.
const DIRECTORY: &str = "BATON_TEST_CRASH_DIRECTORY";
const ATTEMPT: &str = "01936f2e-8a4b-7c1d-9e2f-0123456789ab";
/// Marks our lines among those of the test harness.
const MARK: &str = "@stored";
/// How much the relay would leave unacknowledged. Small, so that files are soon mostly
/// obsolete.
const UNACKED: u64 = 20_000;

type CrashTestOutbox = FrameOutbox;

/// How far an outbox has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OutboxExtent {
    control_seq: u64,
    output_end: u64,
}

impl OutboxExtent {
    fn of(outbox: &CrashTestOutbox) -> Self {
        Self {
            control_seq: outbox.last_control_seq(),
            output_end: outbox.end_offset(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_once(MARK)?.1.split_whitespace();
        Some(Self {
            control_seq: words.next()?.parse().ok()?,
            output_end: words.next()?.parse().ok()?,
        })
    }
}

/// The output at an offset. Unlike a power of two, 251 reveals a chunk at the wrong offset.
fn output_at(offset: u64, length: usize) -> Bytes {
    static PATTERN: LazyLock<Bytes> = LazyLock::new(|| (0..251u8).cycle().take(1 << 17).collect());
    let from = (offset % 251) as usize;
    PATTERN.slice(from..from + length)
}

fn control(seq: u64) -> ControlFrame {
    ControlFrame::from(Body::Lifecycle(TaskLifecycle {
        elapsed_ms: Some(seq),
        ..TaskLifecycle::default()
    }))
}

/// Not a test of its own: it does nothing without a directory.
#[test]
fn the_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(write_for_ever(Path::new(&directory)));
}

async fn write_for_ever(directory: &Path) {
    let attempts = AttemptDirectories::open(directory).unwrap();
    let mut writer = OutboxWriter::start(attempts.clone(), directory.to_owned()).unwrap();
    let id = ATTEMPT.parse().unwrap();
    let place = attempts.attempt_dir(id);
    let mut outbox = if place.has_meta().unwrap() {
        let StoredOutbox {
            outbox,
            prefix: found,
            ..
        } = read_outbox(&place.outbox_path(), OutboxTail::MayBeTorn).unwrap();
        writer
            .jobs
            .send(OutboxJob::Resume { id, prefix: found })
            .await
            .unwrap();
        outbox
    } else {
        let meta = Box::new(meta());
        writer
            .jobs
            .send(OutboxJob::Begin { id, meta })
            .await
            .unwrap();
        CrashTestOutbox::new(OUTPUT_LIMIT)
    };
    let mut on_the_way = VecDeque::new();
    for turn in 0u64.. {
        push_frames(&mut outbox, turn);
        let entries = outbox.log_mut().take_pending();
        on_the_way.push_back((entries.last().unwrap().serial, OutboxExtent::of(&outbox)));
        writer
            .jobs
            .send(OutboxJob::Append { id, entries })
            .await
            .unwrap();
        while let Ok(report) = writer.reports.try_recv() {
            on_report(report, &mut outbox, &mut on_the_way);
        }
        if turn % 64 == 63 {
            let entries = outbox.rewrite_entries();
            writer
                .jobs
                .send(OutboxJob::Replace { id, entries })
                .await
                .unwrap();
        }
    }
}

/// Sometimes a long write, which a kill can tear.
fn push_frames(outbox: &mut CrashTestOutbox, turn: u64) {
    let chunks = if turn % 8 == 7 { 4 } else { 1 };
    for _ in 0..chunks {
        let offset = outbox.end_offset();
        let length = if chunks > 1 {
            60_000
        } else {
            1 + (turn * 7919) % 3000
        };
        let bytes = output_at(offset, length as usize);
        outbox.push_output(ChildPipe::Stdout.into(), bytes, SystemTime::UNIX_EPOCH);
    }
    let leaves = if turn.is_multiple_of(5) {
        RequiredDurability::Synced
    } else {
        RequiredDurability::Written
    };
    let next = outbox.last_control_seq() + 1;
    outbox.push_control(control(next), SystemTime::UNIX_EPOCH, leaves);
    outbox.ack(AckedPosition {
        control_seq: outbox.last_control_seq().saturating_sub(10),
        output_offset: outbox.end_offset().saturating_sub(UNACKED),
    });
}

fn on_report(
    report: OutboxReport,
    outbox: &mut CrashTestOutbox,
    on_the_way: &mut VecDeque<(u64, OutboxExtent)>,
) {
    let OutboxReport::Stored { durable, .. } = report else {
        panic!("{report:?}")
    };
    outbox.log_mut().on_durable(durable);
    let mut reported = None;
    while let Some((_, extent)) = on_the_way.pop_front_if(|(serial, _)| *serial <= durable.written)
    {
        reported = Some(extent);
    }
    if let Some(extent) = reported {
        println!("{MARK} {} {}", extent.control_seq, extent.output_end);
    }
}

fn meta() -> AttemptMeta {
    AttemptMeta {
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
    }
}

/// Starts the process, lets it report `lines` times, kills it, and returns the last report.
fn one_round(directory: &Path, lines: usize) -> Option<OutboxExtent> {
    let executable = std::env::current_exe().unwrap();
    let mut process = Command::new(executable)
        .args([
            "--exact",
            without_crate(concat!(module_path!(), "::the_process")),
        ])
        .args(["--nocapture", "--test-threads", "1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| OutboxExtent::parse(&line));
    let mut last = None;
    for _ in 0..lines {
        last = Some(reported.next().expect("it writes until it is killed"));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    // Reports before its death count too.
    reported.last().or(last)
}

/// The harness lists tests without their crate.
fn without_crate(path: &'static str) -> &'static str {
    path.strip_prefix("baton_daemon::").unwrap_or(path)
}

/// The stored frames follow the acknowledged ones without a gap and with the right bytes.
fn check(mut outbox: CrashTestOutbox) {
    let AckedPosition {
        mut control_seq,
        output_offset: mut offset,
    } = outbox.acked();
    let end = OutboxExtent::of(&outbox);
    outbox.log_mut().on_failed();
    while let Some(record) = outbox.next_unsent() {
        match record {
            FrameRecord::Control { seq, body, .. } => {
                control_seq += 1;
                assert_eq!((*seq, body), (control_seq, &control(control_seq)));
            }
            FrameRecord::Output {
                offset: from,
                bytes,
                ..
            } => {
                assert_eq!(*from, offset);
                offset += bytes.len() as u64;
                assert_eq!(*bytes, output_at(*from, bytes.len()));
            }
            FrameRecord::Cut { .. } => panic!("nothing was cut"),
        }
        outbox.mark_sent();
    }
    assert_eq!((control_seq, offset), (end.control_seq, end.output_end));
}

#[test]
fn everything_reported_as_stored_survives_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let path = AttemptDirectories::open(directory.path())
        .unwrap()
        .attempt_dir(ATTEMPT.parse().unwrap())
        .outbox_path();
    let (mut torn, mut before) = (0, OutboxExtent::default());
    for round in 0..ROUNDS {
        let lines = rand::random_range(0..6);
        let reported = one_round(directory.path(), lines);
        let stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
        let found = OutboxExtent::of(&stored.outbox);
        let least = reported.unwrap_or(before);
        assert!(
            found >= least,
            "round {round}: {found:?} is less than {least:?}"
        );
        torn += u64::from(stored.torn_bytes > 0);
        before = found;
        check(stored.outbox);
    }
    println!("{ROUNDS} rounds, {torn} torn ends, {before:?}");
    assert!(
        before.control_seq > ROUNDS as u64,
        "it hardly wrote anything"
    );
}
