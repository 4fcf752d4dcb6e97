//! Token usage of one turn, derived from Codex's totals of the whole thread.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::json_rpc::text_at;
use crate::agents::outcome::turn_usage::TokenCounts;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ThreadTotals {
    /// The thread's total before this turn, and now.
    used: Option<(TokenCounts, TokenCounts)>,
    /// The last reported total of the thread.
    #[serde(default)]
    total: Option<TokenCounts>,
    /// The model has answered in this turn.
    #[serde(default)]
    answered: bool,
}

impl ThreadTotals {
    pub(super) fn begin_turn(&mut self) {
        self.used = None;
        self.answered = false;
    }

    pub(super) fn on_item(&mut self, item: &Value) {
        self.answered |= text_at(item, "/type") != "userMessage";
    }

    /// Updates the usage. When a thread is resumed, its earlier total is reported before the
    /// turn or, by older versions, first in it. Otherwise the usage of the first request is
    /// reported with the total.
    pub(super) fn on_usage(&mut self, params: &Value, this_turn: bool, resumed: bool) {
        let read = |name| {
            let names = [
                "inputTokens",
                "outputTokens",
                "cachedInputTokens",
                "cacheWriteInputTokens",
            ];
            let usage = params.pointer(name).unwrap_or(&Value::Null);
            TokenCounts::read_with_cached_input(usage, names)
        };
        let total = read("/tokenUsage/total");
        let reported = self.total.replace(total);
        if !this_turn {
            return;
        }
        let before = match (self.used, reported) {
            (Some((before, _)), _) | (None, Some(before)) => before,
            (None, None) if resumed && !self.answered => total,
            (None, None) => total.since(read("/tokenUsage/last")),
        };
        self.used = Some((before, total));
    }

    /// This turn's usage, if any was reported.
    pub(super) fn end_turn(&mut self) -> Option<TokenCounts> {
        self.used.take().map(|(before, now)| now.since(before))
    }
}
