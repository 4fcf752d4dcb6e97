//! Limits on what one daemon or caller may have in flight to the disk. The loop accepts
//! everything that arrives, and the store blocks the loop at its hard limit. So senders of
//! frames and goal updates, which could be as fast as the network, wait here before that.
//!
//! | sender | in flight at once | beyond that |
//! |---|---|---|
//! | one daemon's stream | 1,024 frames; a goal update counts as 32 | its stream is not read |
//! | calls of one credential | 32 goal updates | up to 1,024 calls wait, more are refused |
//! | all together | 128 goal updates | they wait in order |
//!
//! A message is in flight until its commit is durable. A goal update counts more because it
//! stores the whole progress of its task, up to about 500 KiB, in its own append. Heartbeats,
//! lease extensions and output are not limited here.

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

/// The limits of one dispatch loop. Clones share them.
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

/// The limit of one daemon's stream.
#[derive(Debug)]
pub(crate) struct FrameWindow {
    frames: Arc<Semaphore>,
    goal_updates: Arc<Semaphore>,
}

/// Permission to have one message in flight; released on drop.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    _own: Option<OwnedSemaphorePermit>,
    _goal_update: Option<OwnedSemaphorePermit>,
    _call: Option<CountedCall>,
}

/// One call of a caller, waiting or in flight.
#[derive(Debug)]
struct CountedCall {
    limits: InFlightLimits,
    token: TokenId,
}

/// The limit of waiting calls of one caller is reached.
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

    /// Waits until a goal update of this caller may be sent. Cancel-safe.
    pub(crate) async fn acquire_call(
        &self,
        token: TokenId,
    ) -> Result<InFlightPermit, TooManyCalls> {
        let (call, own) = self.count_call(token)?;
        // The semaphores are never closed.
        let own = own.acquire_owned().await.ok();
        let goal_update = Arc::clone(&self.goal_updates).acquire_owned().await.ok();
        Ok(InFlightPermit {
            _own: own,
            _goal_update: goal_update,
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
        let call = CountedCall {
            limits: self.clone(),
            token,
        };
        Ok((call, Arc::clone(&caller.goal_updates)))
    }

    // A poisoned lock is usable: no change can panic halfway.
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
    /// Waits until this frame may be sent to the loop. Cancel-safe.
    pub(crate) async fn acquire(&self, body: &FrameBody) -> InFlightPermit {
        let is_goal_update = is_goal_update(body);
        let weight = if is_goal_update {
            GOAL_UPDATE_WEIGHT
        } else {
            1
        };
        // The semaphores are never closed.
        let own = Arc::clone(&self.frames)
            .acquire_many_owned(weight)
            .await
            .ok();
        let goal_update = match is_goal_update {
            true => Arc::clone(&self.goal_updates).acquire_owned().await.ok(),
            false => None,
        };
        InFlightPermit {
            _own: own,
            _goal_update: goal_update,
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
    fn a_stream_waits_only_for_its_own_goal_updates() {
        let limits = InFlightLimits::default();
        let (busy, other) = (limits.frame_window(), limits.frame_window());
        let mut permits: Vec<InFlightPermit> = (0..32)
            .map_while(|_| poll_now(busy.acquire(&goal_update())))
            .collect();
        assert_eq!(permits.len(), 32);
        assert!(poll_now(busy.acquire(&goal_update())).is_none());
        assert!(
            poll_now(busy.acquire(&FrameBody::Started)).is_none(),
            "other frames wait behind the goal updates, in order"
        );
        let other_permit =
            poll_now(other.acquire(&goal_update())).expect("the other stream does not wait");
        assert!(poll_now(other.acquire(&FrameBody::Started)).is_some());
        drop((permits.pop(), other_permit));
        assert!(poll_now(busy.acquire(&FrameBody::Started)).is_some());
    }

    #[test]
    fn all_streams_share_one_limit_for_goal_updates_only() {
        let limits = InFlightLimits::default();
        let windows: Vec<FrameWindow> = (0..GOAL_UPDATES_TOTAL)
            .map(|_| limits.frame_window())
            .collect();
        let permits: Vec<InFlightPermit> = windows
            .iter()
            .filter_map(|window| poll_now(window.acquire(&goal_update())))
            .collect();
        assert_eq!(permits.len(), GOAL_UPDATES_TOTAL);
        let late = limits.frame_window();
        assert!(poll_now(late.acquire(&goal_update())).is_none());
        assert!(poll_now(late.acquire(&FrameBody::Started)).is_some());
        drop(permits);
        assert!(poll_now(late.acquire(&goal_update())).is_some());
    }

    #[test]
    fn calls_of_one_caller_wait_in_order_and_too_many_are_refused() {
        let limits = InFlightLimits::default();
        let mut in_flight: Vec<InFlightPermit> = (0..GOAL_UPDATES_PER_CALLER)
            .map(|_| poll_now(limits.acquire_call(token(1))).unwrap().unwrap())
            .collect();
        let mut waiting: Vec<_> = (GOAL_UPDATES_PER_CALLER..CALLS_PER_CALLER)
            .map(|_| Box::pin(limits.acquire_call(token(1))))
            .collect();
        assert!(waiting.iter_mut().all(|call| poll_now(call).is_none()));
        assert_eq!(
            poll_now(limits.acquire_call(token(1)))
                .unwrap()
                .unwrap_err(),
            TooManyCalls
        );
        assert!(poll_now(limits.acquire_call(token(2))).unwrap().is_ok());
        in_flight.pop();
        assert!(
            poll_now(&mut waiting[0]).is_some(),
            "the oldest waiting call proceeds"
        );
        drop((in_flight, waiting));
        assert!(limits.lock().is_empty(), "an idle caller uses no memory");
    }
}
