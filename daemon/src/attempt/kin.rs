//! Whom a shim that an earlier daemon started was seen to have. Its orphans do not come to this daemon, and an emptied
//! environment hides them: once the shim is dead only this memory finds them. It is looked at from time to time, so what
//! was started since the last look is not in it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::clock::Moment;
use crate::process::{ProcessId, descendants_of, signal_one, still_below};

/// Between two looks. A look reads a few files for each process of the attempt.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Kin {
    /// Nobody leaves a shim's descendants but by dying, so the newest look is enough.
    seen: Arc<Mutex<BTreeSet<ProcessId>>>,
    looking: Option<JoinHandle<()>>,
    next: Option<Moment>,
}

impl Kin {
    /// When the next look is due.
    pub(super) fn look_at(&self, shim: Option<ProcessId>) -> Option<Moment> {
        self.next.filter(|_| shim.is_some())
    }

    /// Looks, when that is due and the look before is over. Waits for nothing.
    pub(super) fn look(&mut self, shim: Option<ProcessId>, now: Moment) {
        let Some(shim) = shim else { return };
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now.after(LOOK_EVERY));
        if self
            .looking
            .as_ref()
            .is_some_and(|look| !look.is_finished())
        {
            return;
        }
        let seen = self.seen.clone();
        self.looking = Some(tokio::task::spawn_blocking(move || {
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
            let living = still_below(&seen).unwrap_or_default();
            for id in &living {
                signal_one(*id, Signal::KILL);
            }
            living.len()
        });
        let killed = killed.await.expect("looking at /proc does not panic");
        u32::try_from(killed).unwrap_or(u32::MAX)
    }
}
