//! Limits the concurrent tool calls of one attempt. Some calls wait long, for large files or
//! for a disconnected relay, and one attempt must not use up the connections of all attempts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use baton_proto::worker::ToolCall;

/// Open calls by the capability that they present. A call with an invalid capability is refused
/// at once and uses no slot for long.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolCallLimiter(Arc<Mutex<HashMap<String, usize>>>);

/// One slot, kept while a call is answered.
#[derive(Debug)]
pub(super) struct ToolCallPermit {
    limiter: ToolCallLimiter,
    capability: String,
}

impl ToolCallLimiter {
    pub(super) const MAX_CALLS_PER_ATTEMPT: usize = 8;

    /// `None` when the attempt has as many open calls as it may have.
    pub(super) fn try_acquire(&self, call: &ToolCall) -> Option<ToolCallPermit> {
        let presented = call.capability.as_ref();
        let capability = presented.map_or(String::new(), |presented| presented.value.clone());
        let mut open_calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open_calls.entry(capability.clone()).or_default();
        if *count >= Self::MAX_CALLS_PER_ATTEMPT {
            return None;
        }
        *count += 1;
        Some(ToolCallPermit {
            limiter: self.clone(),
            capability,
        })
    }
}

impl Drop for ToolCallPermit {
    fn drop(&mut self) {
        let mut open_calls = self
            .limiter
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let remaining = open_calls
            .get(&self.capability)
            .map_or(0, |count| count - 1);
        if remaining == 0 {
            open_calls.remove(&self.capability);
        } else {
            open_calls.insert(self.capability.clone(), remaining);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_frees_its_slot_and_leaves_no_entry() {
        let limiter = ToolCallLimiter::default();
        let call = ToolCall::default();
        let mut open_calls: Vec<ToolCallPermit> = (0..ToolCallLimiter::MAX_CALLS_PER_ATTEMPT)
            .filter_map(|_| limiter.try_acquire(&call))
            .collect();
        assert!(
            open_calls.len() == ToolCallLimiter::MAX_CALLS_PER_ATTEMPT
                && limiter.try_acquire(&call).is_none()
        );
        open_calls.pop();
        open_calls.extend(limiter.try_acquire(&call));
        assert!(limiter.try_acquire(&call).is_none());
        drop(open_calls);
        assert!(limiter.0.lock().unwrap().is_empty());
    }
}
