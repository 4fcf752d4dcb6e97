//! Opening after crashes and damage: unacknowledged bytes are truncated; acknowledged bytes are
//! readable or become a counted cut.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::output::segment::file::{SEGMENT_HEADER, index_path, segment_path};
use crate::output::segment::frame::FRAME_HEADER;
use crate::output::spawn_writer;

const PAYLOAD: u64 = 40;
const FRAME: usize = FRAME_HEADER + PAYLOAD as usize;

/// A closed log with `frames` frames of one attempt, each synced as its own group.
async fn write_frames(dir: &Path, frames: u64) -> Vec<u8> {
    let (log, _) = open(config(dir));
    for frame in 0..frames {
        put(&log, attempt(1), frame * PAYLOAD, (frame + 1) * PAYLOAD).await;
    }
    close(log).await;
    fs::read(segment_path(dir, 1)).unwrap()
}

fn frame_at(frame: usize) -> usize {
    SEGMENT_HEADER as usize + frame * FRAME
}

fn reopen(raw: &[u8]) -> (tempfile::TempDir, OutputLog, OutputRecovery) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(segment_path(dir.path(), 1), raw).unwrap();
    let (log, recovery) = open(config(dir.path()));
    (dir, log, recovery)
}

/// The file after a crash before the synced length was written.
fn clear_synced_slot(raw: &[u8]) -> Vec<u8> {
    let mut raw = raw.to_vec();
    raw[32..40].fill(0);
    raw
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let raw = write_frames(dir.path(), 3).await;
    assert_eq!(raw.len(), frame_at(3));
    for len in frame_at(2)..raw.len() {
        let (_dir, log, recovery) = reopen(&clear_synced_slot(&raw[..len]));
        assert_eq!(recovery.torn_bytes as usize, len - frame_at(2));
        assert_eq!(
            (recovery.corrupt_frames, recovery.open),
            (0, vec![attempt(1)])
        );
        assert_eq!(read_all(&log, attempt(1)), (2 * PAYLOAD, vec![]));
        put(&log, attempt(1), 2 * PAYLOAD, 3 * PAYLOAD).await;
        assert_eq!(read_all(&log, attempt(1)), (3 * PAYLOAD, vec![]));
        close(log).await;

        let (_dir, log, recovery) = reopen(&raw[..len]);
        assert_eq!(
            recovery.corrupt_frames, 1,
            "synced bytes that are missing are damage"
        );
        assert_eq!(log.end(attempt(1)).unwrap().end, 2 * PAYLOAD);
        close(log).await;
    }
    for len in 0..=SEGMENT_HEADER as usize {
        let (_dir, log, recovery) = reopen(&clear_synced_slot(&raw)[..len]);
        assert_eq!(
            (recovery.attempts, recovery.corrupt_frames),
            (0, 0),
            "a file of {len} bytes has no frame yet"
        );
        put(&log, attempt(1), 0, PAYLOAD).await;
        close(log).await;
    }
}

#[tokio::test]
async fn intact_frames_after_a_torn_frame_of_the_same_group_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _, writer, jobs) = OutputLog::prepare(config(dir.path()), NOW, no_abort()).unwrap();
    for frame in 0..3 {
        within(log.append(chunk(attempt(1), frame * PAYLOAD, (frame + 1) * PAYLOAD)))
            .await
            .unwrap();
    }
    spawn_writer(writer, jobs).unwrap();
    within(log.wait_durable(attempt(1), 3 * PAYLOAD))
        .await
        .unwrap();
    assert_eq!(log.stats().groups, 1);
    close(log).await;
    let mut raw = clear_synced_slot(&fs::read(segment_path(dir.path(), 1)).unwrap());
    raw[frame_at(1) + FRAME_HEADER] ^= 1;
    let (_dir, log, recovery) = reopen(&raw);
    assert_eq!(
        (recovery.torn_bytes as usize, recovery.corrupt_frames),
        (2 * FRAME, 0),
        "unacknowledged, so the daemon sends them again"
    );
    assert_eq!(log.end(attempt(1)).unwrap().durable, PAYLOAD);
    put(&log, attempt(1), PAYLOAD, 3 * PAYLOAD).await;
    assert_eq!(read_all(&log, attempt(1)), (3 * PAYLOAD, vec![]));
}

#[tokio::test]
async fn damage_in_the_middle_is_counted_and_read_as_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let raw = write_frames(dir.path(), 4).await;
    let whole_cut = vec![(PAYLOAD, 2 * PAYLOAD, "corrupt")];
    for at in frame_at(1)..frame_at(2) {
        let mut raw = raw.clone();
        raw[at] ^= 0x20;
        let (dir, log, recovery) = reopen(&raw);
        assert_eq!(
            (recovery.corrupt_frames, recovery.torn_bytes),
            (1, 0),
            "byte {at}"
        );
        assert_eq!(
            read_all(&log, attempt(1)),
            (4 * PAYLOAD, whole_cut.clone()),
            "byte {at}"
        );
        assert_eq!(log.end(attempt(1)).unwrap().cut_bytes, PAYLOAD);
        put(&log, attempt(1), 4 * PAYLOAD, 5 * PAYLOAD).await;
        close(log).await;
        let (log, _) = open(config(dir.path()));
        assert_eq!(
            read_all(&log, attempt(1)),
            (5 * PAYLOAD, whole_cut.clone()),
            "after another start"
        );
        close(log).await;
    }
}

#[tokio::test]
async fn damage_that_appears_while_running_is_read_as_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(config(dir.path()));
    for frame in 0..3 {
        put(&log, attempt(1), frame * PAYLOAD, (frame + 1) * PAYLOAD).await;
        put(&log, attempt(2), frame * PAYLOAD, (frame + 1) * PAYLOAD).await;
    }
    let path = segment_path(dir.path(), 1);
    let whole = fs::read(&path).unwrap();
    for (at, cuts) in [
        (frame_at(2), vec![(PAYLOAD, 2 * PAYLOAD, "corrupt")]),
        (
            frame_at(4) + FRAME_HEADER,
            vec![(2 * PAYLOAD, 3 * PAYLOAD, "corrupt")],
        ),
        (frame_at(1), vec![]),
    ] {
        let mut raw = whole.clone();
        raw[at] ^= 1;
        fs::write(&path, raw).unwrap();
        let before = log.stats().corrupt_reads;
        assert_eq!(read_all(&log, attempt(1)), (3 * PAYLOAD, cuts.clone()));
        assert_eq!(log.stats().corrupt_reads > before, !cuts.is_empty());
    }
    fs::write(&path, &whole[..frame_at(3)]).unwrap();
    assert_eq!(
        read_all(&log, attempt(1)),
        (3 * PAYLOAD, vec![(2 * PAYLOAD, 3 * PAYLOAD, "corrupt")])
    );
}

/// Many attempts over several segments; every third is sealed.
async fn write_many_attempts(dir: &Path) -> OutputConfig {
    let config = OutputConfig {
        segment_bytes: 4_000,
        ..config(dir)
    };
    let (log, _) = open(config.clone());
    for round in 0..10 {
        for number in 0..9 {
            within(log.append(chunk(
                attempt(number),
                round * PAYLOAD,
                (round + 1) * PAYLOAD,
            )))
            .await
            .unwrap();
        }
        within(log.wait_durable(attempt(8), (round + 1) * PAYLOAD))
            .await
            .unwrap();
    }
    for number in (0..9).step_by(3) {
        within(log.seal(attempt(number))).await.unwrap();
    }
    assert!(log.stats().segments >= 3);
    close(log).await;
    config
}

fn check_many_segments(log: &OutputLog, recovery: &OutputRecovery) {
    assert_eq!(
        (
            recovery.attempts,
            recovery.corrupt_frames,
            recovery.torn_bytes
        ),
        (9, 0, 0)
    );
    let mut open = recovery.open.clone();
    open.sort();
    assert_eq!(open, [1, 2, 4, 5, 7, 8].map(attempt));
    for number in 0..9 {
        assert_eq!(read_all(log, attempt(number)), (10 * PAYLOAD, vec![]));
        let end = log.end(attempt(number)).unwrap();
        assert_eq!(
            (end.after_control_seq, end.sealed),
            (9 * PAYLOAD / 10, number % 3 == 0)
        );
    }
}

#[tokio::test]
async fn a_saved_index_is_used_and_a_bad_one_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let config = write_many_attempts(dir.path()).await;
    let (log, recovery) = open(config.clone());
    assert_eq!(recovery.indexes_rebuilt, 0);
    check_many_segments(&log, &recovery);
    close(log).await;

    let damage: [(u32, fn(PathBuf)); 2] = [
        (1, |path| fs::remove_file(path).unwrap()),
        (2, |path| {
            let mut raw = fs::read(&path).unwrap();
            let middle = raw.len() / 2;
            raw[middle] ^= 4;
            fs::write(path, raw).unwrap();
        }),
    ];
    let whole = fs::read(index_path(dir.path(), 1)).unwrap();
    for (number, damage) in damage {
        damage(index_path(dir.path(), number));
    }
    let (log, recovery) = open(config.clone());
    assert_eq!(recovery.indexes_rebuilt, 2);
    check_many_segments(&log, &recovery);
    close(log).await;
    assert_eq!(
        fs::read(index_path(dir.path(), 1)).unwrap().len(),
        whole.len(),
        "the rebuilt index is saved again"
    );
    let (log, recovery) = open(config);
    assert_eq!(recovery.indexes_rebuilt, 0);
    check_many_segments(&log, &recovery);
}

#[tokio::test]
async fn a_lost_segment_is_a_cut_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let config = write_many_attempts(dir.path()).await;
    let mut raw = fs::read(segment_path(dir.path(), 2)).unwrap();
    raw[3] ^= 1;
    fs::write(segment_path(dir.path(), 2), raw).unwrap();
    let (log, recovery) = open(config.clone());
    assert_eq!(recovery.corrupt_frames, 0, "the saved index has the salt");
    check_many_segments(&log, &recovery);
    close(log).await;

    fs::remove_file(index_path(dir.path(), 2)).unwrap();
    let (log, recovery) = open(config);
    assert_eq!(recovery.corrupt_frames, 1);
    assert!(
        segment_path(dir.path(), 2).with_extension("bad").exists(),
        "the file is kept for an operator"
    );
    for number in 0..9 {
        let (end, cuts) = read_all(&log, attempt(number));
        assert_eq!((end, cuts.len()), (10 * PAYLOAD, 1));
        assert_eq!(cuts[0].2, "corrupt");
    }
}
