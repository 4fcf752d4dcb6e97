//! How much one holder may have on its way to the disk. The loop takes whatever arrives, and the store makes it wait at its
//! hard limit; so whoever tells of work, and could do so as fast as the wire carries it, is made to wait before.
//!
//! | who | on its way at once | beyond that |
//! |---|---|---|
//! | one daemon's stream | 1,024 control frames, of which a word about the goal counts 32 | its stream is not read |
//! | one credential, by calls | 32 words about the goal | 1,024 calls wait in turn, more are refused |
//! | all of them together | 128 words about the goal | they wait in turn |
//!
//! Something is on its way until its commit is durable. Words about the goal count for more because each of them stores the
//! whole progress of its task, up to some 500 KiB, in an append of its own. Heartbeats, holds and output are in no window.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::ids::TokenId;
use baton_core::io::session_input::FrameBody;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const FRAMES_IN_FLIGHT: u32 = 1_024;
const GOAL_UPDATE_WEIGHT: u32 = 32;
const GOAL_UPDATES_PER_CALLER: usize = 32;
const CALLS_PER_CALLER: usize = 1_024;
const GOAL_UPDATES_TOTAL: usize = 128;

/// Shared by all who speak to one loop.
#[derive(Clone, Debug)]
pub(crate) struct InFlightLimits {
    goal_updates: Arc<Semaphore>,
    callers: Arc<Mutex<HashMap<TokenId, CallerLimits>>>,
}

#[derive(Debug)]
struct CallerLimits {
    goal_updates: Arc<Semaphore>,
    calls: usize,
}

/// One daemon's stream.
#[derive(Debug)]
pub(crate) struct FrameWindow {
    frames: Arc<Semaphore>,
    goal_updates: Arc<Semaphore>,
}

/// The right to have something on its way; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    _own: Option<OwnedSemaphorePermit>,
    _goal_update: Option<OwnedSemaphorePermit>,
    _call: Option<CountedCall>,
}

/// A caller's call, waiting or on its way.
#[derive(Debug)]
struct CountedCall {
    limits: InFlightLimits,
    token: TokenId,
}

/// Too many calls of this caller wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyCalls;

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            goal_updates: Arc::new(Semaphore::new(GOAL_UPDATES_TOTAL)),
            callers: Arc::default(),
        }
    }
}

impl InFlightLimits {
    pub(crate) fn frame_window(&self) -> FrameWindow {
        FrameWindow {
            frames: Arc::new(Semaphore::new(FRAMES_IN_FLIGHT as usize)),
            goal_updates: Arc::clone(&self.goal_updates),
        }
    }

    /// Waits for its turn to say something about a goal. Safe to drop.
    pub(crate) async fn acquire_call(
        &self,
        token: TokenId,
    ) -> Result<InFlightPermit, TooManyCalls> {
        let (call, own) = self.count_call(token)?;
        // Neither is ever closed.
        let own = own.acquire_owned().await.ok();
        let word = Arc::clone(&self.goal_updates).acquire_owned().await.ok();
        Ok(InFlightPermit {
            _own: own,
            _goal_update: word,
            _call: Some(call),
        })
    }

    fn count_call(&self, token: TokenId) -> Result<(CountedCall, Arc<Semaphore>), TooManyCalls> {
        let mut callers = self.lock();
        let caller = callers.entry(token).or_insert_with(|| CallerLimits {
            goal_updates: Arc::new(Semaphore::new(GOAL_UPDATES_PER_CALLER)),
            calls: 0,
        });
        if caller.calls >= CALLS_PER_CALLER {
            return Err(TooManyCalls);
        }
        caller.calls += 1;
        let pace = self.clone();
        Ok((
            CountedCall {
                limits: pace,
                token,
            },
            Arc::clone(&caller.goal_updates),
        ))
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, HashMap<TokenId, CallerLimits>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let mut callers = self.limits.lock();
        if let Some(caller) = callers.get_mut(&self.token) {
            caller.calls -= 1;
            if caller.calls == 0 {
                callers.remove(&self.token);
            }
        }
    }
}

impl FrameWindow {
    /// Waits until this frame may go on. Safe to drop.
    pub(crate) async fn acquire(&self, body: &FrameBody) -> InFlightPermit {
        let is_word = is_goal_update(body);
        let counts = if is_word { GOAL_UPDATE_WEIGHT } else { 1 };
        // Neither is ever closed.
        let own = Arc::clone(&self.frames)
            .acquire_many_owned(counts)
            .await
            .ok();
        let word = match is_word {
            true => Arc::clone(&self.goal_updates).acquire_owned().await.ok(),
            false => None,
        };
        InFlightPermit {
            _own: own,
            _goal_update: word,
            _call: None,
        }
    }
}

fn is_goal_update(body: &FrameBody) -> bool {
    match body {
        FrameBody::Goal(_) => true,
        FrameBody::Accepted
        | FrameBody::Rejected { .. }
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Released { .. }
        | FrameBody::Completed(_)
        | FrameBody::Errored(_)
        | FrameBody::Canceled(_)
        | FrameBody::Receipt { .. }
        | FrameBody::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use baton_core::goal::progress::{GoalReport, ProgressUpdate, SanitizedText};
    use uuid::Uuid;

    use super::*;

    fn poll_now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    fn goal_update() -> FrameBody {
        FrameBody::Goal(GoalReport::Progress(SanitizedText::new(
            ProgressUpdate::default(),
        )))
    }

    fn token(n: u128) -> TokenId {
        TokenId(Uuid::from_u128(n))
    }

    #[test]
    fn a_stream_waits_for_its_own_words_and_nobody_elses() {
        let pace = InFlightLimits::default();
        let (busy, other) = (pace.frame_window(), pace.frame_window());
        let mut passes: Vec<InFlightPermit> = (0..32)
            .map_while(|_| poll_now(busy.acquire(&goal_update())))
            .collect();
        assert_eq!(passes.len(), 32);
        assert!(poll_now(busy.acquire(&goal_update())).is_none());
        assert!(
            poll_now(busy.acquire(&FrameBody::Started)).is_none(),
            "behind its words, in their order"
        );
        let theirs =
            poll_now(other.acquire(&goal_update())).expect("another stream's word goes on");
        assert!(poll_now(other.acquire(&FrameBody::Started)).is_some());
        drop((passes.pop(), theirs));
        assert!(poll_now(busy.acquire(&FrameBody::Started)).is_some());
    }

    #[test]
    fn all_streams_together_wait_for_words_and_for_nothing_else() {
        let pace = InFlightLimits::default();
        let windows: Vec<FrameWindow> = (0..GOAL_UPDATES_TOTAL)
            .map(|_| pace.frame_window())
            .collect();
        let passes: Vec<InFlightPermit> = windows
            .iter()
            .filter_map(|window| poll_now(window.acquire(&goal_update())))
            .collect();
        assert_eq!(passes.len(), GOAL_UPDATES_TOTAL);
        let late = pace.frame_window();
        assert!(poll_now(late.acquire(&goal_update())).is_none());
        assert!(poll_now(late.acquire(&FrameBody::Started)).is_some());
        drop(passes);
        assert!(poll_now(late.acquire(&goal_update())).is_some());
    }

    #[test]
    fn a_callers_calls_wait_in_turn_and_too_many_of_them_are_refused() {
        let pace = InFlightLimits::default();
        let mut at_once: Vec<InFlightPermit> = (0..GOAL_UPDATES_PER_CALLER)
            .map(|_| poll_now(pace.acquire_call(token(1))).unwrap().unwrap())
            .collect();
        let mut waiting: Vec<_> = (GOAL_UPDATES_PER_CALLER..CALLS_PER_CALLER)
            .map(|_| Box::pin(pace.acquire_call(token(1))))
            .collect();
        assert!(waiting.iter_mut().all(|call| poll_now(call).is_none()));
        assert_eq!(
            poll_now(pace.acquire_call(token(1))).unwrap().unwrap_err(),
            TooManyCalls
        );
        assert!(poll_now(pace.acquire_call(token(2))).unwrap().is_ok());
        at_once.pop();
        assert!(poll_now(&mut waiting[0]).is_some(), "the first that waited");
        drop((at_once, waiting));
        assert!(pace.lock().is_empty(), "who has gone takes no memory");
    }
}
