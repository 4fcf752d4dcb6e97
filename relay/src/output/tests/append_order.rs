//! Appending: order, limits, acknowledgement, and the effects of a failing disk.

use std::io::ErrorKind;
use std::sync::Mutex;

use super::*;
use crate::output::{
    AcceptedEnd, CHUNK_BYTES_MAX, CutReason, OutputAppendError, OutputEnd, OutputReadError,
    OutputSyncError, spawn_writer,
};

#[tokio::test]
async fn only_output_that_continues_at_the_end_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(config(dir.path()));
    let id = attempt(1);
    let append = async |from, to| within(log.append(chunk(id, from, to))).await;

    assert_eq!(
        append(5, 9).await,
        Err(OutputAppendError::Gap { expected: 0 })
    );
    assert_eq!(
        (log.end(id), log.stats().attempts),
        (None, 0),
        "a refused chunk leaves nothing"
    );
    assert_eq!(append(0, 10).await, Ok(AcceptedEnd { end: 10 }));
    assert_eq!(
        append(0, 10).await,
        Ok(AcceptedEnd { end: 10 }),
        "duplicate"
    );
    assert_eq!(append(3, 7).await, Ok(AcceptedEnd { end: 10 }), "inside");
    assert_eq!(
        append(4, 20).await,
        Ok(AcceptedEnd { end: 20 }),
        "overlap: only the new tail"
    );
    assert_eq!(append(20, 20).await, Ok(AcceptedEnd { end: 20 }), "empty");
    assert_eq!(
        append(21, 30).await,
        Err(OutputAppendError::Gap { expected: 20 })
    );
    let far = OutputChunk {
        offset: u64::MAX,
        ..chunk(id, 0, 9)
    };
    assert_eq!(
        within(log.append(far)).await,
        Err(OutputAppendError::Gap { expected: 20 })
    );
    let len = CHUNK_BYTES_MAX + 1;
    assert_eq!(
        append(20, 20 + len as u64).await,
        Err(OutputAppendError::TooLarge { len })
    );
    let cut = |from, to| log.append_cut(id, from, to, CutReason::DaemonOverflow);
    assert_eq!(
        cut(25, 30).await,
        Err(OutputAppendError::Gap { expected: 20 })
    );
    assert_eq!(
        cut(20, 20).await,
        Err(OutputAppendError::EmptyCut { from: 20, to: 20 })
    );
    assert_eq!(
        cut(15, 30).await,
        Ok(AcceptedEnd { end: 30 }),
        "only the new tail is cut"
    );
    assert_eq!(append(30, 40).await, Ok(AcceptedEnd { end: 40 }));

    assert_eq!(
        within(log.wait_durable(id, 41)).await,
        Err(OutputSyncError::NotAccepted { end: 40 })
    );
    within(log.wait_durable(id, 40)).await.unwrap();
    assert_cut_output(&log, id);
}

fn assert_cut_output(log: &OutputLog, id: Uuid) {
    let end = OutputEnd {
        end: 40,
        durable: 40,
        after_control_seq: 3,
        cut_bytes: 10,
        open_bytes: 0,
        sealed: false,
    };
    assert_eq!(log.end(id), Some(end));
    assert_eq!(read_all(log, id), (40, vec![(20, 30, "daemon_overflow")]));
    assert_eq!(log.read(id, 40, 10).unwrap(), vec![], "nothing more yet");
    assert!(matches!(
        log.read(attempt(2), 0, 10),
        Err(OutputReadError::Unknown)
    ));
}

#[tokio::test]
async fn output_over_the_limit_becomes_one_growing_cut() {
    let dir = tempfile::tempdir().unwrap();
    let limited = || OutputConfig {
        attempt_bytes_max: 1_000,
        ..config(dir.path())
    };
    let (log, _) = open(limited());
    let id = attempt(1);
    for from in (0..3_000).step_by(300) {
        put(&log, id, from, from + 300).await;
    }
    let cut = vec![(1_000, 3_000, "attempt_limit")];
    assert_eq!(read_all(&log, id), (3_000, cut.clone()));
    assert_eq!(log.end(id).unwrap().cut_bytes, 2_000);
    assert_eq!(
        log.shared
            .index
            .with_attempt(id, |output| output.extents.len()),
        Some(2),
        "the cut stays one extent"
    );
    close(log).await;

    let (log, _) = open(limited());
    assert_eq!(read_all(&log, id), (3_000, cut));
    put(&log, id, 3_000, 3_100).await;
    assert_eq!(read_all(&log, id).1, vec![(1_000, 3_100, "attempt_limit")]);
    put(&log, attempt(2), 0, 900).await;
    assert_eq!(
        read_all(&log, attempt(2)),
        (900, vec![]),
        "the limit is per attempt"
    );
}

#[tokio::test]
async fn a_session_feed_reports_the_durable_ends_of_all_its_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(config(dir.path()));
    put(&log, attempt(1), 0, 10).await;
    let feed = log.ack_feed();
    (1..=3).for_each(|number| feed.watch(attempt(number)));
    let first = within(feed.changed()).await;
    assert_eq!(
        first
            .iter()
            .map(|(id, end)| (*id, end.durable))
            .collect::<Vec<_>>(),
        [(attempt(1), 10)]
    );
    let mut ends = std::collections::BTreeMap::new();
    for number in 1..=3 {
        let from = if number == 1 { 10 } else { 0 };
        within(log.append(chunk(attempt(number), from, 20)))
            .await
            .unwrap();
    }
    while ends.values().filter(|durable| **durable == 20).count() < 3 {
        for (id, end) in within(feed.changed()).await {
            let before = ends.insert(id, end.durable);
            assert!(
                before.is_none_or(|before| before <= end.durable),
                "ends only grow"
            );
        }
    }
    feed.watch(attempt(4));
    assert_eq!(log.stats().attempts, 4);
    drop(feed);
    assert_eq!(
        log.stats().attempts,
        3,
        "an entry that existed only for the feed is removed with it"
    );
}

#[tokio::test]
async fn a_sealed_attempt_accepts_no_output_and_an_empty_one_leaves_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(config(dir.path()));
    within(log.seal(attempt(9))).await.unwrap();
    assert_eq!(log.stats().attempts, 0);
    let id = attempt(1);
    within(log.append(chunk(id, 0, 10))).await.unwrap();
    let mut moves = log.subscribe(id);
    within(log.seal(id)).await.unwrap();
    within(log.seal(id)).await.unwrap();
    let end = log.end(id).unwrap();
    assert_eq!(
        (end.durable, end.sealed),
        (10, true),
        "the seal comes after the bytes"
    );
    within(moves.wait_for(|end| end.sealed)).await.unwrap();
    assert_eq!(
        within(log.append(chunk(id, 5, 20))).await,
        Err(OutputAppendError::Sealed { end: 10 })
    );
    assert_eq!(
        within(log.append(chunk(id, 0, 10))).await,
        Ok(AcceptedEnd { end: 10 }),
        "a replay is not an error"
    );
    within(log.forget(id)).await.unwrap();
    assert_eq!((log.end(id), log.stats().attempts), (None, 0));
    close(log).await;
    let (log, recovery) = open(config(dir.path()));
    assert_eq!(
        (log.end(id), recovery.attempts, recovery.open),
        (None, 0, vec![]),
        "still forgotten after a restart"
    );
}

#[tokio::test]
async fn a_full_disk_accepts_and_acknowledges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, mut writer, jobs) =
        OutputLog::prepare(config(dir.path()), NOW, no_abort()).unwrap();
    let faults = InjectedFault::default();
    writer.faults = faults.clone();
    spawn_writer(writer, jobs).unwrap();
    let id = attempt(1);
    put(&log, id, 0, 100).await;

    faults.set(ErrorKind::StorageFull);
    assert_eq!(
        within(log.append(chunk(id, 100, 200))).await,
        Ok(AcceptedEnd { end: 200 }),
        "accepted, not durable"
    );
    let sealed = within(log.seal(id)).await;
    assert!(
        matches!(sealed, Err(OutputAppendError::DiskFull)),
        "{sealed:?}"
    );
    let end = log.end(id).unwrap();
    assert_eq!((end.end, end.durable, end.sealed), (100, 100, false));
    assert!(log.stats().disk_full);
    assert_eq!(
        within(log.append(chunk(id, 100, 200))).await,
        Err(OutputAppendError::DiskFull)
    );
    assert_eq!(read_all(&log, id), (100, vec![]));

    within(log.tick(NOW)).await.unwrap();
    assert_eq!(
        within(log.append(chunk(id, 200, 300))).await,
        Err(OutputAppendError::Gap { expected: 100 })
    );
    put(&log, id, 100, 200).await;
    within(log.seal(id)).await.unwrap();
    close(log).await;
    let (log, recovery) = open(config(dir.path()));
    assert_eq!((recovery.torn_bytes, recovery.corrupt_frames), (0, 0));
    assert_eq!(read_all(&log, id), (200, vec![]));
}

#[tokio::test]
async fn any_other_write_error_calls_the_abort_hook() {
    let dir = tempfile::tempdir().unwrap();
    let (abort_sender, abort_called) = tokio::sync::oneshot::channel();
    let abort_sender = Mutex::new(Some(abort_sender));
    let abort: AbortHook = Arc::new(move |error| {
        abort_sender
            .lock()
            .unwrap()
            .take()
            .unwrap()
            .send(error.kind())
            .unwrap();
    });
    let (log, _, mut writer, jobs) = OutputLog::prepare(config(dir.path()), NOW, abort).unwrap();
    let faults = InjectedFault::default();
    writer.faults = faults.clone();
    spawn_writer(writer, jobs).unwrap();
    faults.set(ErrorKind::InvalidData);
    within(log.append(chunk(attempt(1), 0, 100))).await.unwrap();
    assert_eq!(within(abort_called).await.unwrap(), ErrorKind::InvalidData);
    assert_eq!(
        log.end(attempt(1)).unwrap().durable,
        0,
        "nothing was acknowledged"
    );
    assert_eq!(
        within(log.append(chunk(attempt(1), 100, 110))).await,
        Err(OutputAppendError::Closed)
    );
}
