//! The progress that the store's threads share. One lock, kept for a few instructions. The two
//! background threads are woken only when there is work for them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::CommitSeq;

#[derive(Debug, Default)]
pub(crate) struct CommitProgress {
    state: Mutex<ProgressState>,
    applier: Condvar,
    marker: Condvar,
}

#[derive(Debug, Default)]
struct ProgressState {
    durable: CommitSeq,
    /// Enough changes have gathered to apply them before their time.
    apply_now: bool,
    /// The applier waits until this number is durable.
    applier_waits_for: Option<CommitSeq>,
    /// The watermark is up to date and its thread waits for a commit.
    marker_idle: bool,
    applier_stops: bool,
    marker_stops: bool,
    failed: bool,
}

/// Why a background thread woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadWake {
    Work(CommitSeq),
    /// Finish the remaining work, then end.
    Stop(CommitSeq),
    /// A write failed in another thread: end at once.
    Failed,
}

impl CommitProgress {
    pub(crate) fn starting_at(durable: CommitSeq) -> Self {
        let state = ProgressState {
            durable,
            ..ProgressState::default()
        };
        Self {
            state: Mutex::new(state),
            ..Self::default()
        }
    }

    /// Makes `seq` the durable number, and runs `acknowledge` unless the store has failed
    /// meanwhile.
    pub(crate) fn publish(
        &self,
        seq: CommitSeq,
        apply_now: bool,
        acknowledge: impl FnOnce(),
    ) -> bool {
        let mut state = self.lock();
        if state.failed {
            return false;
        }
        state.durable = seq;
        state.apply_now |= apply_now;
        if state.apply_now || state.applier_waits_for.is_some_and(|wanted| wanted <= seq) {
            self.applier.notify_one();
        }
        if state.marker_idle {
            self.marker.notify_one();
        }
        acknowledge();
        true
    }

    /// Marks the store as failed. True for the first caller, which reports the failure.
    pub(crate) fn fail(&self) -> bool {
        let mut state = self.lock();
        let first = !state.failed;
        state.failed = true;
        self.applier.notify_one();
        self.marker.notify_one();
        first
    }

    pub(crate) fn failed(&self) -> bool {
        self.lock().failed
    }

    pub(crate) fn stop_applier(&self) {
        self.lock().applier_stops = true;
        self.applier.notify_one();
    }

    pub(crate) fn stop_watermark_writer(&self) {
        self.lock().marker_stops = true;
        self.marker.notify_one();
    }

    /// Waits between two apply cycles: until enough has gathered, at most `longest`.
    pub(crate) fn wait_for_apply(&self, longest: Duration) -> ThreadWake {
        let state = self.lock();
        let idle =
            |state: &mut ProgressState| !(state.apply_now || state.applier_stops || state.failed);
        let waited = self.applier.wait_timeout_while(state, longest, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.apply_now = false;
        state.wake(state.applier_stops)
    }

    /// Waits until `seq` is durable; false if the store failed.
    pub(crate) fn wait_for(&self, seq: CommitSeq) -> bool {
        let mut state = self.lock();
        state.applier_waits_for = Some(seq);
        let pending = |state: &mut ProgressState| state.durable < seq && !state.failed;
        let waited = self.applier.wait_while(state, pending);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.applier_waits_for = None;
        !state.failed
    }

    /// Waits until something newer than `marked` is durable.
    pub(crate) fn wait_for_mark(&self, marked: CommitSeq) -> ThreadWake {
        let mut state = self.lock();
        state.marker_idle = true;
        let idle = |state: &mut ProgressState| {
            state.durable <= marked && !state.marker_stops && !state.failed
        };
        let waited = self.marker.wait_while(state, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.marker_idle = false;
        state.wake(state.marker_stops)
    }

    /// Pauses after a write, which limits the write rate.
    pub(crate) fn pause_watermark_writer(&self, pause: Duration) {
        let busy = |state: &mut ProgressState| !state.marker_stops && !state.failed;
        drop(self.marker.wait_timeout_while(self.lock(), pause, busy));
    }

    // Each change to the state is complete before a panic can occur, so a poisoned lock is
    // safe.
    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgressState {
    fn wake(&self, stops: bool) -> ThreadWake {
        match (self.failed, stops) {
            (true, _) => ThreadWake::Failed,
            (false, true) => ThreadWake::Stop(self.durable),
            (false, false) => ThreadWake::Work(self.durable),
        }
    }
}
