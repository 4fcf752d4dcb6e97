//! What is known of the peer of one connection: whether it ever showed a credential, and whether a call of its own is under
//! way without one. The listener ends connections of strangers by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Of one connection; clones share it. It is among the extensions of each of the connection's requests.
#[derive(Clone, Debug, Default)]
pub struct Peer(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    known: AtomicBool,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    under_way: usize,
    /// Who waits for the last of them.
    waiting: Option<Waker>,
}

/// One call of a stranger; over when it is dropped.
#[derive(Debug)]
pub(crate) struct StrangersCall(Peer);

impl Peer {
    /// It showed a credential that is good.
    pub(crate) fn is_met(&self) {
        self.0.known.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.known.load(Ordering::Relaxed)
    }

    pub(crate) fn calls(&self) -> StrangersCall {
        self.lock().under_way += 1;
        StrangersCall(self.clone())
    }

    /// Ready when no call is under way; else the last of them wakes.
    pub(crate) fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        let mut calls = self.lock();
        if calls.under_way == 0 {
            return Poll::Ready(());
        }
        calls.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StrangersCall {
    fn drop(&mut self) {
        let mut calls = self.0.lock();
        calls.under_way -= 1;
        if calls.under_way == 0
            && let Some(waiting) = calls.waiting.take()
        {
            waiting.wake();
        }
    }
}
