//! What is known of the peer of one connection: whether it ever showed a credential, and whether a call of its own is under
//! way without one. The listener ends connections of strangers by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Of one connection; clones share it. It is among the extensions of each of the connection's requests.
#[derive(Clone, Debug, Default)]
pub struct ConnectionPeer(Arc<PeerState>);

#[derive(Debug, Default)]
struct PeerState {
    authenticated: AtomicBool,
    calls: Mutex<OpenCalls>,
}

#[derive(Debug, Default)]
struct OpenCalls {
    running: usize,
    /// Who waits for the last of them.
    waker: Option<Waker>,
}

/// One call of a stranger; over when it is dropped.
#[derive(Debug)]
pub(crate) struct UnauthenticatedCall(ConnectionPeer);

impl ConnectionPeer {
    /// It showed a credential that is good.
    pub(crate) fn mark_authenticated(&self) {
        self.0.authenticated.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.0.authenticated.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_call(&self) -> UnauthenticatedCall {
        self.lock().running += 1;
        UnauthenticatedCall(self.clone())
    }

    /// Ready when no call is under way; else the last of them wakes.
    pub(crate) fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        let mut calls = self.lock();
        if calls.running == 0 {
            return Poll::Ready(());
        }
        calls.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, OpenCalls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnauthenticatedCall {
    fn drop(&mut self) {
        let mut calls = self.0.lock();
        calls.running -= 1;
        if calls.running == 0
            && let Some(waiting) = calls.waker.take()
        {
            waiting.wake();
        }
    }
}
