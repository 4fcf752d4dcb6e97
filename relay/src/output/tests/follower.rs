//! Followers beside a concurrent writer, and the entries they leave.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_stream::StreamExt;

use super::*;
use crate::output::{CutReason, OutputReadError};

const LENGTH: u64 = 300_000;

/// Writes LENGTH bytes in chunks of random size, some replayed, some cut, and seals.
async fn write_all_output(
    log: OutputLog,
    id: Uuid,
    mut random: StdRng,
) -> Vec<(u64, u64, &'static str)> {
    let (mut end, mut cuts) = (0, Vec::new());
    while end < LENGTH {
        let to = (end + random.random_range(1..=9_000)).min(LENGTH);
        if random.random_ratio(1, 20) {
            within(log.append_cut(id, end, to, CutReason::DaemonOverflow))
                .await
                .unwrap();
            cuts.push((end, to, "daemon_overflow"));
            end = to;
            continue;
        }
        let from = end - random.random_range(0..=end.min(3_000));
        // A replay that reaches back into a cut would contain the cut bytes; the order rules
        // ignore that part.
        end = within(log.append(chunk(id, from, to))).await.unwrap().end;
        if random.random_ratio(1, 50) {
            within(log.wait_durable(id, end)).await.unwrap();
        }
    }
    within(log.seal(id)).await.unwrap();
    cuts
}

async fn follow_all(
    log: OutputLog,
    id: Uuid,
    from: u64,
    slow: bool,
) -> Vec<(u64, u64, &'static str)> {
    let mut stream = log.follow_output(id, from);
    let (mut at, mut cuts) = (from, Vec::new());
    while let Some(piece) = within(stream.next()).await {
        cuts.extend(check(id, &mut at, &[piece.unwrap()]));
        if slow {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    }
    assert_eq!(at, LENGTH, "the stream ends with the last byte");
    cuts
}

/// Adjacent cuts may be read joined or separately.
fn joined(cuts: &[(u64, u64, &'static str)], from: u64) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end, _) in cuts.iter().filter(|cut| cut.1 > from) {
        match joined.last_mut() {
            Some(last) if last.1 == *start => last.1 = *end,
            Some(_) | None => joined.push((*start.max(&from), *end)),
        }
    }
    joined
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn followers_see_history_then_live_without_gap_or_duplicate() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = open(OutputConfig {
            segment_bytes: 50_000,
            ..config(dir.path())
        });
        let mut random = StdRng::seed_from_u64(seed);
        let mut writers = Vec::new();
        let mut followers = Vec::new();
        for number in 0..3 {
            let (id, own) = (attempt(number), StdRng::seed_from_u64(random.random()));
            writers.push(tokio::spawn(write_all_output(log.clone(), id, own)));
            for reader in 0..4 {
                let from = random.random_range(0..=LENGTH / 2) * u64::from(reader > 0);
                let follower = follow_all(log.clone(), id, from, reader == 3);
                followers.push((number, from, tokio::spawn(follower)));
            }
        }
        let mut cuts = Vec::new();
        for writer in writers {
            cuts.push(within(writer).await.unwrap());
        }
        for (number, from, follower) in followers {
            let seen = within(follower).await.unwrap();
            assert_eq!(
                joined(&seen, from),
                joined(&cuts[number as usize], from),
                "seed {seed}"
            );
        }
        for number in 0..3 {
            let late = follow_all(log.clone(), attempt(number), 0, false).await;
            assert_eq!(
                joined(&late, 0),
                joined(&cuts[number as usize], 0),
                "seed {seed}: from disk"
            );
            let live = log
                .shared
                .index
                .with_attempt(attempt(number), |output| output.listeners.is_some());
            assert_eq!(live, Some(false), "an ended attempt keeps no listeners");
        }
        assert!(
            log.stats().segments > 10,
            "the output must span many segments"
        );
    }
}

#[tokio::test]
async fn a_follower_waits_for_the_first_byte_and_leaves_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(config(dir.path()));
    let mut none = log.follow_output(attempt(1), 0);
    let waiting = log.follow_output(attempt(2), 0);
    let mut dropped = log.follow_output(attempt(3), 0);
    let mut forgotten = log.follow_output(attempt(4), 0);
    let mut closed = log.follow_output(attempt(5), 0);
    let read = tokio::spawn(async move { waiting.map(Result::unwrap).collect::<Vec<_>>().await });
    put(&log, attempt(2), 0, 10).await;
    within(log.seal(attempt(2))).await.unwrap();
    check(attempt(2), &mut 0, &within(read).await.unwrap());

    within(log.seal(attempt(1))).await.unwrap();
    assert!(within(none.next()).await.is_none(), "sealed without a byte");
    put(&log, attempt(3), 0, 10).await;
    assert!(within(dropped.next()).await.unwrap().is_ok());
    put(&log, attempt(4), 0, 10).await;
    within(log.forget(attempt(4))).await.unwrap();
    assert!(matches!(
        within(forgotten.next()).await,
        Some(Err(OutputReadError::Unknown))
    ));
    drop((none, dropped, forgotten));
    assert_eq!(
        log.stats().attempts,
        3,
        "two with output and one with a waiting follower"
    );

    within(log.close()).await;
    assert!(matches!(
        within(closed.next()).await,
        Some(Err(OutputReadError::Closed))
    ));
    assert!(within(closed.next()).await.is_none());
    drop(closed);
    assert_eq!(log.stats().attempts, 2);
}
