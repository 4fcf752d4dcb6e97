//! What the simulated daemons saw completed: a count that the load reads, and latencies from submit to durable completion.
//! The moment of submission travels with the task (as its channel), so that no table of open tasks is needed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::latency::Samples;
use crate::clock;

#[derive(Debug)]
pub(crate) struct Completions {
    epoch: Instant,
    count: AtomicU64,
    samples: Mutex<Samples>,
    progressed: Notify,
}

impl Completions {
    pub(crate) fn new() -> Self {
        Self {
            epoch: clock::instant(),
            count: AtomicU64::new(0),
            samples: Mutex::new(Samples::default()),
            progressed: Notify::new(),
        }
    }

    /// The channel id of a task that is submitted at `at`.
    pub(crate) fn stamp(&self, at: Instant) -> String {
        at.saturating_duration_since(self.epoch)
            .as_micros()
            .to_string()
    }

    /// One completion is durable.
    pub(crate) fn record(&self, stamp: &str) {
        if let Ok(micros) = stamp.parse() {
            let submitted = self.epoch + Duration::from_micros(micros);
            let latency = clock::instant().saturating_duration_since(submitted);
            self.samples
                .lock()
                .expect("no holder of this lock panics")
                .add(latency);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.progressed.notify_waiters();
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes the latencies recorded so far and starts afresh.
    pub(crate) fn take_samples(&self) -> Samples {
        std::mem::take(&mut *self.samples.lock().expect("no holder of this lock panics"))
    }

    /// Waits until `count` completions were seen.
    pub(crate) async fn reach(&self, count: u64) {
        loop {
            let progressed = self.progressed.notified();
            if self.count() >= count {
                return;
            }
            progressed.await;
        }
    }
}
