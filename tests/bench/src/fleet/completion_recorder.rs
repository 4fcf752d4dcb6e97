//! Counts what the simulated daemons observe: durable completions with their latency, and attempts
//! that the relay revoked. The time of the submit is sent with the task (as its channel id), so no
//! table of open tasks is needed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock;
use crate::measure::latency::LatencySamples;

#[derive(Debug)]
pub(crate) struct CompletionRecorder {
    epoch: Instant,
    completed: AtomicU64,
    running: AtomicU64,
    offered: AtomicU64,
    revoked: AtomicU64,
    reruns: AtomicU64,
    samples: Mutex<LatencySamples>,
    progressed: Notify,
}

impl CompletionRecorder {
    pub(crate) fn new() -> Self {
        Self {
            epoch: clock::instant(),
            completed: AtomicU64::new(0),
            running: AtomicU64::new(0),
            offered: AtomicU64::new(0),
            revoked: AtomicU64::new(0),
            reruns: AtomicU64::new(0),
            samples: Mutex::new(LatencySamples::default()),
            progressed: Notify::new(),
        }
    }

    /// A time as text that fits into an id of a task or an event.
    pub(crate) fn encode_time(&self, at: Instant) -> String {
        at.saturating_duration_since(self.epoch)
            .as_micros()
            .to_string()
    }

    /// Time since [`Self::encode_time`] made this stamp.
    pub(crate) fn elapsed_since(&self, stamp: &str) -> Option<Duration> {
        let made = self.epoch + Duration::from_micros(stamp.parse().ok()?);
        Some(clock::instant().saturating_duration_since(made))
    }

    /// Counts an offered attempt. One that is not the first of its task repeats work.
    pub(super) fn record_offered(&self, attempt_number: u32) {
        self.offered.fetch_add(1, Ordering::Relaxed);
        if attempt_number > 1 {
            self.reruns.fetch_add(1, Ordering::Relaxed);
        }
        self.progressed.notify_waiters();
    }

    /// Counts an attempt whose start the relay has acknowledged as durable.
    pub(super) fn record_running(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.progressed.notify_waiters();
    }

    /// Counts an attempt whose completion the relay has acknowledged as durable.
    pub(super) fn record_completed(&self, stamp: &str) {
        if let Some(latency) = self.elapsed_since(stamp) {
            self.samples
                .lock()
                .expect("no code panics under this lock")
                .add(latency);
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
        self.progressed.notify_waiters();
    }

    /// Counts an attempt that the relay has revoked.
    pub(super) fn record_revoked(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn completed_count(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Attempts that were fenced, killed, revoked or repeated.
    pub(crate) fn lost_count(&self) -> u64 {
        self.revoked.load(Ordering::Relaxed) + self.reruns.load(Ordering::Relaxed)
    }

    /// Returns the latencies recorded so far and clears them.
    pub(crate) fn take_samples(&self) -> LatencySamples {
        std::mem::take(&mut *self.samples.lock().expect("no code panics under this lock"))
    }

    /// Waits until `count` completions are durable.
    pub(crate) async fn wait_until_completed(&self, count: u64) {
        self.wait_until(&self.completed, count).await;
    }

    /// Waits until the start of `count` attempts is durable.
    pub(crate) async fn wait_until_running(&self, count: u64) {
        self.wait_until(&self.running, count).await;
    }

    /// Waits until `count` attempts were offered.
    pub(crate) async fn wait_until_offered(&self, count: u64) {
        self.wait_until(&self.offered, count).await;
    }

    async fn wait_until(&self, counter: &AtomicU64, count: u64) {
        loop {
            let progressed = self.progressed.notified();
            if counter.load(Ordering::Relaxed) >= count {
                return;
            }
            progressed.await;
        }
    }
}
