//! Retention by size and by age, with concurrent readers, and what is known afterwards.

use tokio_stream::StreamExt;

use super::*;
use crate::output::{DroppedSegments, OutputReadError};

const PAYLOAD: u64 = 1_000;

fn small(dir: &Path) -> OutputConfig {
    OutputConfig {
        segment_bytes: 4_300,
        retention_bytes: 20_000,
        ..config(dir)
    }
}

#[tokio::test]
async fn the_oldest_segments_are_dropped_and_readers_see_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(small(dir.path()));
    let (quiet, ended, busy) = (attempt(1), attempt(2), attempt(3));
    put(&log, quiet, 0, 500).await;
    put(&log, ended, 0, 500).await;
    within(log.seal(ended)).await.unwrap();
    for chunk in 0..40 {
        put(&log, busy, chunk * PAYLOAD, (chunk + 1) * PAYLOAD).await;
    }
    let stats = log.stats();
    assert!(
        stats.bytes <= 20_000 + 4_300,
        "retention must not need a tick: {stats:?}"
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        2 * stats.segments - 1,
        "the files must be removed too"
    );

    let (end, cuts) = read_all(&log, busy);
    assert_eq!(
        (end, cuts.len(), cuts[0].0, cuts[0].2),
        (40 * PAYLOAD, 1, 0, "retention")
    );
    assert_eq!(log.end(busy).unwrap().cut_bytes, cuts[0].1);
    assert_eq!(
        read_all(&log, quiet),
        (500, vec![(0, 500, "retention")]),
        "a running attempt keeps its end"
    );
    assert!(
        matches!(log.read(ended, 0, 10), Err(OutputReadError::Unknown)),
        "nothing of a sealed attempt is left"
    );
    assert_eq!(stats.attempts, 2);
    close(log).await;

    let (log, recovery) = open(small(dir.path()));
    assert_eq!((recovery.corrupt_frames, recovery.attempts), (0, 2));
    assert_eq!(read_all(&log, busy), (40 * PAYLOAD, cuts));
    assert_eq!(read_all(&log, quiet), (500, vec![(0, 500, "retention")]));
    put(&log, quiet, 500, 700).await;
    assert_eq!(
        read_all(&log, quiet),
        (700, vec![(0, 500, "retention")]),
        "the attempt continues at its old end"
    );
}

#[tokio::test]
async fn old_segments_are_dropped_and_an_idle_segment_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let aged = || OutputConfig {
        retention_age: Duration::from_millis(4 * HOUR_MS),
        ..config(dir.path())
    };
    let (log, _) = open(aged());
    put(&log, attempt(1), 0, 100).await;
    let tick =
        async |log: &OutputLog, hours| within(log.tick(NOW + hours * HOUR_MS)).await.unwrap();
    assert_eq!(tick(&log, 0).await, DroppedSegments::default());
    assert_eq!(
        (tick(&log, 1).await, log.stats().segments),
        (DroppedSegments::default(), 2)
    );
    put(&log, attempt(2), 0, 100).await;
    assert_eq!(tick(&log, 4).await, DroppedSegments::default());
    close(log).await;

    let (log, _) = open(aged());
    assert_eq!(tick(&log, 5).await.segments, 1);
    assert_eq!(
        read_all(&log, attempt(1)),
        (100, vec![(0, 100, "retention")])
    );
    assert_eq!(read_all(&log, attempt(2)), (100, vec![]));
    assert_eq!(log.stats().attempts, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_reader_overtaken_by_retention_sees_a_cut_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(small(dir.path()));
    let id = attempt(7);
    let chunks = 600;
    let readers: Vec<_> = (0..3u32)
        .map(|pace| {
            let mut stream = log.follow_output(id, 0);
            tokio::spawn(async move {
                let (mut at, mut cuts) = (0, Vec::new());
                while let Some(piece) = within(stream.next()).await {
                    cuts.extend(check(id, &mut at, &[piece.unwrap()]));
                    for _ in 0..pace * 100 {
                        tokio::task::yield_now().await;
                    }
                }
                assert!(cuts.iter().all(|cut| cut.2 == "retention"), "{cuts:?}");
                at
            })
        })
        .collect();
    for chunk_number in 0..chunks {
        let from = chunk_number * PAYLOAD;
        within(log.append(chunk(id, from, from + PAYLOAD)))
            .await
            .unwrap();
    }
    within(log.seal(id)).await.unwrap();
    for reader in readers {
        assert_eq!(within(reader).await.unwrap(), chunks * PAYLOAD);
    }
}
