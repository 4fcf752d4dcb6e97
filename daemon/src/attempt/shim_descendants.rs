//! Whom a shim that an earlier daemon started was seen to have. Its orphans do not come to this daemon, and an emptied
//! environment hides them: once the shim is dead only this memory finds them. It is looked at from time to time, so what
//! was started since the last look is not in it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::clock::BootTime;
use crate::process::{ProcessId, descendants_of, signal_one, surviving_tree};

/// Between two looks. A look reads a few files for each process of the attempt.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct ShimDescendants {
    /// Nobody leaves a shim's descendants but by dying, so the newest look is enough.
    seen: Arc<Mutex<BTreeSet<ProcessId>>>,
    scan_job: Option<JoinHandle<()>>,
    next_scan: Option<BootTime>,
}

impl ShimDescendants {
    /// When the next look is due.
    pub(super) fn next_scan_at(&self, shim: Option<ProcessId>) -> Option<BootTime> {
        self.next_scan.filter(|_| shim.is_some())
    }

    /// Looks, when that is due and the look before is over. Waits for nothing.
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
            // Of a look that failed, or of a shim that is gone, the one before stays.
            if let Ok(family) = descendants_of(shim)
                && !family.is_empty()
            {
                let family = family.iter().map(|stat| stat.id).collect();
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = family;
            }
        }));
    }

    /// Kills those of the last look that still live, with all below them; how many that were.
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
