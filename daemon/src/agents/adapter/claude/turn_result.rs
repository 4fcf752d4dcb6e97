//! The line that ends a turn of Claude. `subtype: success` does not mean success, the exit code
//! means even less, and its totals are those of the whole conversation.

use serde_json::{Map, Value};

use super::super::agent_event::{AgentEvent, TurnOutcome};
use super::super::json_rpc::{list_at, text_at};
use super::super::turn_state::{MAX_RESULT_BYTES, truncate};
use super::ClaudeAdapter;
use crate::agents::outcome::failure::{FailureClass, TurnFailure, provider_failure};
use crate::agents::outcome::turn_usage::{DollarAmount, TokenCounts, TurnUsage};

/// The class of a failure before the turn began, if a reason is given.
fn startup_failure(reason: &str) -> Option<FailureClass> {
    let class = match reason {
        "" => return None,
        "cwd_unavailable" | "worktree_unverified" => FailureClass::BadCwd,
        "session_held_by_background" | "worktree_resume_refused" => FailureClass::ResumeFailed,
        "org_pin_api_key_conflict"
        | "provider_not_allowed"
        | "org_verify_failed"
        | "org_pin_mismatch"
        | "gateway_signin_required"
        | "gateway_access_denied"
        | "org_config_refused" => FailureClass::ProviderAuth,
        _ => FailureClass::SpawnFailed,
    };
    Some(class)
}

impl ClaudeAdapter {
    pub(super) fn on_result(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        self.turn.begin_if_not_begun(out);
        self.turn.mark_active(out);
        let usage = self.usage(message);
        let outcome = self.outcome(message);
        // A conversation that could not be resumed has no id to report.
        let has_no_conversation = matches!(&outcome, TurnOutcome::Failed(failure) if failure.class == FailureClass::ResumeFailed);
        if !has_no_conversation {
            self.turn
                .set_conversation(text_at(message, "/session_id"), out);
        }
        self.api_error.clear();
        self.tools.clear();
        self.turn.end_turn(outcome, Some(usage), out);
    }

    fn outcome(&self, message: &Value) -> TurnOutcome {
        let subtype = text_at(message, "/subtype");
        let failed = message.get("is_error") == Some(&Value::Bool(true)) || subtype != "success";
        let result = text_at(message, "/result");
        let failure = |class, message: &str| TurnOutcome::Failed(TurnFailure::new(class, message));
        match text_at(message, "/stop_reason") {
            "refusal" => return failure(FailureClass::Refusal, result),
            "model_context_window_exceeded" => {
                return failure(FailureClass::ContextOverflow, result);
            }
            _ => {}
        }
        if !failed {
            return TurnOutcome::Result(truncate(result, MAX_RESULT_BYTES).to_owned());
        }
        let errors: Vec<&str> = list_at(message, "/errors")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let errors = errors.join("; ");
        if let Some(class) = startup_failure(text_at(message, "/startup_failure_reason")) {
            return failure(class, &errors);
        }
        match (subtype, text_at(message, "/terminal_reason")) {
            (_, reason) if reason.starts_with("aborted") => TurnOutcome::Interrupted,
            (_, "api_error") | ("success", _) => {
                let status = message.get("api_error_status").and_then(Value::as_u64);
                let kind = format!("{} {}", text_at(message, "/api_error_type"), self.api_error);
                TurnOutcome::Failed(provider_failure(status, &kind, result))
            }
            ("error_max_turns", _) => failure(FailureClass::NoResult, &errors),
            ("error_max_budget_usd", _) => failure(FailureClass::ProviderQuota, &errors),
            ("error_max_structured_output_retries", _) => {
                failure(FailureClass::OutputInvalid, &errors)
            }
            _ if self.resuming && !self.initialized => failure(FailureClass::ResumeFailed, &errors),
            _ if self.turn.was_interrupted() => TurnOutcome::Interrupted,
            _ => {
                let message = if errors.is_empty() { result } else { &errors };
                failure(FailureClass::NoResult, message)
            }
        }
    }

    /// Usage per model since the last result, if it is reported. `usage` omits what was used
    /// before an interruption.
    fn usage(&mut self, message: &Value) -> TurnUsage {
        let total = message
            .get("total_cost_usd")
            .and_then(DollarAmount::from_json);
        let before = std::mem::replace(&mut self.cost, total);
        let num_turns = message
            .get("num_turns")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        let turns = u32::try_from(num_turns).unwrap_or(u32::MAX);
        let models = message
            .get("model_usage_since_last_result")
            .and_then(Value::as_object);
        let Some(models) = models else {
            let usage = message.get("usage").unwrap_or(&Value::Null);
            let tokens = TokenCounts::from_json(
                usage,
                [
                    "input_tokens",
                    "output_tokens",
                    "cache_read_input_tokens",
                    "cache_creation_input_tokens",
                ],
            );
            // For a conversation that is older than the process, some versions report the total
            // of the whole conversation and some only the new part. If the total's tokens equal
            // this turn's, it is the new part.
            let all = message.get("modelUsage").and_then(Value::as_object);
            let is_new_part = all.is_some_and(|all| by_model(all).0 == tokens)
                && tokens != TokenCounts::default();
            let before = before.or(is_new_part.then(DollarAmount::default));
            return TurnUsage {
                tokens,
                cost: total.zip(before).map(|(total, before)| total.since(before)),
                model: self.model.clone(),
                turns,
            };
        };
        let (tokens, cost) = by_model(models);
        TurnUsage {
            tokens,
            cost,
            model: self.model.clone().or_else(|| models.keys().next().cloned()),
            turns,
        }
    }
}

fn by_model(models: &Map<String, Value>) -> (TokenCounts, Option<DollarAmount>) {
    let mut tokens = TokenCounts::default();
    let mut cost = Some(DollarAmount::default());
    for usage in models.values() {
        tokens = tokens.plus(TokenCounts::from_json(
            usage,
            [
                "inputTokens",
                "outputTokens",
                "cacheReadInputTokens",
                "cacheCreationInputTokens",
            ],
        ));
        let own = usage.get("costUSD").and_then(DollarAmount::from_json);
        cost = cost.zip(own).map(|(sum, own)| sum.plus(own));
    }
    (tokens, cost)
}
