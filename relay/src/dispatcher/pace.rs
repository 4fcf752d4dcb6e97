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

use baton_core::id::TokenId;
use baton_core::input::FrameBody;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const FRAMES: u32 = 1_024;
const WORD_COUNTS: u32 = 32;
const WORDS_OF_A_CALLER: usize = 32;
const CALLS_OF_A_CALLER: usize = 1_024;
const WORDS_OF_ALL: usize = 128;

/// Shared by all who speak to one loop.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    words: Arc<Semaphore>,
    callers: Arc<Mutex<HashMap<TokenId, Caller>>>,
}

#[derive(Debug)]
struct Caller {
    words: Arc<Semaphore>,
    calls: usize,
}

/// One daemon's stream.
#[derive(Debug)]
pub(crate) struct Window {
    own: Arc<Semaphore>,
    words: Arc<Semaphore>,
}

/// The right to have something on its way; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    _own: Option<OwnedSemaphorePermit>,
    _word: Option<OwnedSemaphorePermit>,
    _call: Option<Call>,
}

/// A caller's call, waiting or on its way.
#[derive(Debug)]
struct Call {
    pace: Pace,
    token: TokenId,
}

/// Too many calls of this caller wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

impl Default for Pace {
    fn default() -> Self {
        Self {
            words: Arc::new(Semaphore::new(WORDS_OF_ALL)),
            callers: Arc::default(),
        }
    }
}

impl Pace {
    pub(crate) fn window(&self) -> Window {
        Window {
            own: Arc::new(Semaphore::new(FRAMES as usize)),
            words: Arc::clone(&self.words),
        }
    }

    /// Waits for its turn to say something about a goal. Safe to drop.
    pub(crate) async fn call(&self, token: TokenId) -> Result<Pass, Crowded> {
        let (call, own) = self.enter(token)?;
        // Neither is ever closed.
        let own = own.acquire_owned().await.ok();
        let word = Arc::clone(&self.words).acquire_owned().await.ok();
        Ok(Pass {
            _own: own,
            _word: word,
            _call: Some(call),
        })
    }

    fn enter(&self, token: TokenId) -> Result<(Call, Arc<Semaphore>), Crowded> {
        let mut callers = self.lock();
        let caller = callers.entry(token).or_insert_with(|| Caller {
            words: Arc::new(Semaphore::new(WORDS_OF_A_CALLER)),
            calls: 0,
        });
        if caller.calls >= CALLS_OF_A_CALLER {
            return Err(Crowded);
        }
        caller.calls += 1;
        let pace = self.clone();
        Ok((Call { pace, token }, Arc::clone(&caller.words)))
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, HashMap<TokenId, Caller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut callers = self.pace.lock();
        if let Some(caller) = callers.get_mut(&self.token) {
            caller.calls -= 1;
            if caller.calls == 0 {
                callers.remove(&self.token);
            }
        }
    }
}

impl Window {
    /// Waits until this frame may go on. Safe to drop.
    pub(crate) async fn pass(&self, body: &FrameBody) -> Pass {
        let is_word = is_word(body);
        let counts = if is_word { WORD_COUNTS } else { 1 };
        // Neither is ever closed.
        let own = Arc::clone(&self.own).acquire_many_owned(counts).await.ok();
        let word = match is_word {
            true => Arc::clone(&self.words).acquire_owned().await.ok(),
            false => None,
        };
        Pass {
            _own: own,
            _word: word,
            _call: None,
        }
    }
}

fn is_word(body: &FrameBody) -> bool {
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

    use baton_core::goal::{Clean, GoalWord, ProgressUpdate};
    use uuid::Uuid;

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    fn word() -> FrameBody {
        FrameBody::Goal(GoalWord::Progress(Clean::new(ProgressUpdate::default())))
    }

    fn token(n: u128) -> TokenId {
        TokenId(Uuid::from_u128(n))
    }

    #[test]
    fn a_stream_waits_for_its_own_words_and_nobody_elses() {
        let pace = Pace::default();
        let (busy, other) = (pace.window(), pace.window());
        let mut passes: Vec<Pass> = (0..32).map_while(|_| now(busy.pass(&word()))).collect();
        assert_eq!(passes.len(), 32);
        assert!(now(busy.pass(&word())).is_none());
        assert!(
            now(busy.pass(&FrameBody::Started)).is_none(),
            "behind its words, in their order"
        );
        let theirs = now(other.pass(&word())).expect("another stream's word goes on");
        assert!(now(other.pass(&FrameBody::Started)).is_some());
        drop((passes.pop(), theirs));
        assert!(now(busy.pass(&FrameBody::Started)).is_some());
    }

    #[test]
    fn all_streams_together_wait_for_words_and_for_nothing_else() {
        let pace = Pace::default();
        let windows: Vec<Window> = (0..WORDS_OF_ALL).map(|_| pace.window()).collect();
        let passes: Vec<Pass> = windows
            .iter()
            .filter_map(|window| now(window.pass(&word())))
            .collect();
        assert_eq!(passes.len(), WORDS_OF_ALL);
        let late = pace.window();
        assert!(now(late.pass(&word())).is_none());
        assert!(now(late.pass(&FrameBody::Started)).is_some());
        drop(passes);
        assert!(now(late.pass(&word())).is_some());
    }

    #[test]
    fn a_callers_calls_wait_in_turn_and_too_many_of_them_are_refused() {
        let pace = Pace::default();
        let mut at_once: Vec<Pass> = (0..WORDS_OF_A_CALLER)
            .map(|_| now(pace.call(token(1))).unwrap().unwrap())
            .collect();
        let mut waiting: Vec<_> = (WORDS_OF_A_CALLER..CALLS_OF_A_CALLER)
            .map(|_| Box::pin(pace.call(token(1))))
            .collect();
        assert!(waiting.iter_mut().all(|call| now(call).is_none()));
        assert_eq!(now(pace.call(token(1))).unwrap().unwrap_err(), Crowded);
        assert!(now(pace.call(token(2))).unwrap().is_ok());
        at_once.pop();
        assert!(now(&mut waiting[0]).is_some(), "the first that waited");
        drop((at_once, waiting));
        assert!(pace.lock().is_empty(), "who has gone takes no memory");
    }
}
