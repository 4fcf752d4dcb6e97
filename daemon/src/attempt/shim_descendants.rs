//! Processes that were seen below a shim that an earlier daemon started. Its orphans are not
//! reparented to this daemon, and a process that empties its environment has no marker: once
//! the shim is dead, only this record finds them. The scan runs from time to time, so processes
//! that were started after the last one are missing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::clock::BootTime;
use crate::process::{ProcessId, descendants_of, signal_one, surviving_tree};

/// Between two scans. A scan reads a few files for each process of the attempt.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct ShimDescendants {
    /// A process leaves a shim's descendants only by dying, so the latest scan is enough.
    seen: Arc<Mutex<BTreeSet<ProcessId>>>,
    scan_job: Option<JoinHandle<()>>,
    next_scan: Option<BootTime>,
}

impl ShimDescendants {
    /// When the next scan is due.
    pub(super) fn next_scan_at(&self, shim: Option<ProcessId>) -> Option<BootTime> {
        self.next_scan.filter(|_| shim.is_some())
    }

    /// Starts a scan when it is due and the one before has finished. Does not wait.
    pub(super) fn scan(&mut self, shim: Option<ProcessId>, now: BootTime) {
        let Some(shim) = shim else { return };
        if self.next_scan.is_some_and(|next| now < next) {
            return;
        }
        self.next_scan = Some(now.after(SCAN_INTERVAL));
        if self
            .scan_job
            .as_ref()
            .is_some_and(|look| !look.is_finished())
        {
            return;
        }
        let seen = self.seen.clone();
        self.scan_job = Some(tokio::task::spawn_blocking(move || {
            // After a failed scan, or when the shim is gone, the earlier result is kept.
            if let Ok(family) = descendants_of(shim)
                && !family.is_empty()
            {
                let family = family.iter().map(|stat| stat.id).collect();
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = family;
            }
        }));
    }

    /// Kills the processes of the last scan that are still alive, with all below them; returns
    /// their number.
    pub(super) async fn kill_seen(&self) -> u32 {
        let seen: Vec<ProcessId> = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.iter().copied().collect()
        };
        let killed = tokio::task::spawn_blocking(move || {
            let living = surviving_tree(&seen).unwrap_or_default();
            for id in &living {
                signal_one(*id, Signal::KILL);
            }
            living.len()
        });
        let killed = killed.await.expect("looking at /proc does not panic");
        u32::try_from(killed).unwrap_or(u32::MAX)
    }
}
