//! Tests of the output log with real files: shared set-up, and injected disk faults.

mod append_order;
mod follower;
mod recovery;
mod retention;

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::{AbortHook, OutputChunk, OutputConfig, OutputLog, OutputPiece, OutputRecovery};

/// Makes the next group fail with this error.
#[derive(Debug, Clone, Default)]
pub(crate) struct InjectedFault(Arc<Mutex<Option<io::ErrorKind>>>);

impl InjectedFault {
    pub(crate) fn strike(&self) -> io::Result<()> {
        let fault = self.0.lock().unwrap().take();
        fault.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn set(&self, kind: io::ErrorKind) {
        *self.0.lock().unwrap() = Some(kind);
    }
}

const NOW: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;

fn attempt(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn config(dir: &Path) -> OutputConfig {
    OutputConfig::new(dir.to_path_buf())
}

fn no_abort() -> AbortHook {
    Arc::new(|error| panic!("the abort hook was called: {error}"))
}

fn open(config: OutputConfig) -> (OutputLog, OutputRecovery) {
    OutputLog::open(config, NOW, no_abort()).unwrap()
}

/// Limits every wait for an event.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("the event must occur within 20 seconds")
}

/// The bytes of an attempt are a function of their offset, so a misplaced byte is detected.
fn expected_bytes(attempt: Uuid, from: u64, to: u64) -> Bytes {
    let seed = u64::from(attempt.as_bytes()[15]);
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed) >> 56) as u8;
    (from..to).map(byte).collect()
}

fn chunk(attempt: Uuid, from: u64, to: u64) -> OutputChunk {
    OutputChunk {
        attempt,
        offset: from,
        after_control_seq: from / 10,
        kind: 1,
        observed_at_ms: NOW + from,
        bytes: expected_bytes(attempt, from, to),
    }
}

/// Appends and waits for the sync, so that each call is its own group.
async fn put(log: &OutputLog, attempt: Uuid, from: u64, to: u64) {
    within(log.append(chunk(attempt, from, to))).await.unwrap();
    within(log.wait_durable(attempt, to)).await.unwrap();
}

/// Checks that the pieces continue from `at` without gap or overlap and have the right bytes.
/// Returns the cuts as (from, to, code).
fn check(attempt: Uuid, at: &mut u64, pieces: &[OutputPiece]) -> Vec<(u64, u64, &'static str)> {
    let mut cuts = Vec::new();
    for piece in pieces {
        assert_eq!(piece.start(), *at, "pieces must follow each other");
        assert!(piece.end() > *at, "a piece must not be empty");
        match piece {
            OutputPiece::Bytes {
                offset,
                bytes,
                kind,
                ..
            } => {
                assert_eq!(*bytes, expected_bytes(attempt, *offset, piece.end()));
                assert_eq!(*kind, 1);
            }
            OutputPiece::Cut { from, to, reason } => cuts.push((*from, *to, reason.code())),
        }
        *at = piece.end();
    }
    cuts
}

/// Reads everything in small steps; returns the end and the cuts.
fn read_all(log: &OutputLog, attempt: Uuid) -> (u64, Vec<(u64, u64, &'static str)>) {
    let (mut at, mut cuts) = (0, Vec::new());
    loop {
        let pieces = log.read(attempt, at, 1000).unwrap();
        if pieces.is_empty() {
            return (at, cuts);
        }
        cuts.extend(check(attempt, &mut at, &pieces));
    }
}

/// Ends the writer thread, like a stop of the relay.
async fn close(log: OutputLog) {
    within(log.close()).await;
}
