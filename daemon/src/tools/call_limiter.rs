//! How many calls of one attempt are answered at a time: some of them wait long, for files that are large or for a relay that is
//! away, and one attempt is not to wait in the places of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use baton_proto::worker::ToolCall;

/// By the capability that they show. One that is none is refused at once, and holds no place for long.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolCallLimiter(Arc<Mutex<HashMap<String, usize>>>);

/// Held while a call is answered.
#[derive(Debug)]
pub(super) struct ToolCallPermit {
    limiter: ToolCallLimiter,
    capability: String,
}

impl ToolCallLimiter {
    pub(super) const MAX_CALLS_PER_ATTEMPT: usize = 8;

    /// None when the attempt has all that it may have.
    pub(super) fn try_acquire(&self, call: &ToolCall) -> Option<ToolCallPermit> {
        let shown = call.capability.as_ref();
        let capability = shown.map_or(String::new(), |shown| shown.value.clone());
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(capability.clone()).or_default();
        if *count >= Self::MAX_CALLS_PER_ATTEMPT {
            return None;
        }
        *count += 1;
        let shares = self.clone();
        Some(ToolCallPermit {
            limiter: shares,
            capability,
        })
    }
}

impl Drop for ToolCallPermit {
    fn drop(&mut self) {
        let mut taken = self
            .limiter
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&self.capability).map_or(0, |count| count - 1);
        if left == 0 {
            taken.remove(&self.capability);
        } else {
            taken.insert(self.capability.clone(), left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_comes_back_and_nothing_is_kept_of_those_who_left() {
        let shares = ToolCallLimiter::default();
        let call = ToolCall::default();
        let mut taken: Vec<ToolCallPermit> = (0..ToolCallLimiter::MAX_CALLS_PER_ATTEMPT)
            .filter_map(|_| shares.try_acquire(&call))
            .collect();
        assert!(
            taken.len() == ToolCallLimiter::MAX_CALLS_PER_ATTEMPT
                && shares.try_acquire(&call).is_none()
        );
        taken.pop();
        taken.extend(shares.try_acquire(&call));
        assert!(shares.try_acquire(&call).is_none());
        drop(taken);
        assert!(shares.0.lock().unwrap().is_empty());
    }
}
