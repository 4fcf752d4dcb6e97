//! State of the peer of one connection: whether it ever sent a valid credential, and whether it
//! has a public call open. The listener uses it to close connections that stay unauthenticated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// State of one connection. Clones share it. It is in the extensions of every request of the
/// connection.
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
    /// Woken when the last running call ends.
    waker: Option<Waker>,
}

/// One call without a credential. It counts as open until this value is dropped.
#[derive(Debug)]
pub(crate) struct UnauthenticatedCall(ConnectionPeer);

impl ConnectionPeer {
    /// Records that the peer sent a valid credential.
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

    /// Ready when no call is open. Otherwise the end of the last call wakes the task.
    pub(crate) fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        let mut calls = self.lock();
        if calls.running == 0 {
            return Poll::Ready(());
        }
        calls.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    // A poisoned lock is safe to use: every change is complete before a panic can happen.
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
