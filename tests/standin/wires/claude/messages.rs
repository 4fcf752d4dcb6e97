//! The longer messages of Claude Code, with every field of the real program.

use serde_json::{Value, json};

use crate::stdio_pipes::StdioPipes;
use crate::text_at;

pub(super) const MODEL: &str = "standin-1";
/// Reported usage (input, output, cache reads and cache writes) and cost of each model request.
pub(super) const USAGE_PER_REQUEST: [u64; 4] = [12, 7, 200, 100];
pub(super) const PRICE_PER_REQUEST: f64 = 0.000_728;

pub(super) fn usage_of_request(output: u64) -> Value {
    json!({
        "input_tokens": USAGE_PER_REQUEST[0], "cache_creation_input_tokens": USAGE_PER_REQUEST[3],
        "cache_read_input_tokens": USAGE_PER_REQUEST[2], "output_tokens": output, "service_tier": "standard",
    })
}

pub(super) fn usage_of_model(requests: u32) -> Value {
    let [input, output, read, write] = USAGE_PER_REQUEST.map(|used| used * u64::from(requests));
    json!({
        "inputTokens": input, "outputTokens": output, "cacheReadInputTokens": read,
        "cacheCreationInputTokens": write, "webSearchRequests": 0,
        "costUSD": round_price(PRICE_PER_REQUEST * f64::from(requests)), "contextWindow": 200_000,
    })
}

/// Prices are rounded to a millionth.
pub(super) fn round_price(dollars: f64) -> f64 {
    (dollars * 1e6).round() / 1e6
}

pub(super) fn init_message() -> Value {
    let cwd = std::env::current_dir().unwrap_or_default();
    json!({
        "subtype": "init", "cwd": cwd, "original_cwd": cwd, "tools": ["Bash"], "mcp_servers": [],
        "model": MODEL, "permissionMode": "default", "slash_commands": [], "terminal_slash_commands": [],
        "apiKeySource": "none", "claude_code_version": "2.1.325", "output_style": "default", "agents": [],
        "skills": [], "plugins": [], "capabilities": [], "analytics_disabled": true,
        "product_feedback_disabled": true, "memory_paths": {"auto": ""}, "additional_directories": [],
        "messaging_socket_path": "", "fast_mode_state": "off",
        "fast_mode_disabled_reason": "sdk_opt_in_required", "per_turn_effort_active": false,
        "ultrathink_available": true, "ultrathink_typed_raises": false, "view_mode": "default",
    })
}

pub(super) fn empty_result() -> Value {
    json!({
        "duration_api_ms": 0, "duration_ms": 0, "stop_reason": "end_turn", "total_cost_usd": 0,
        "usage": {
            "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
            "service_tier": "standard",
            "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
            "inference_geo": "", "iterations": [], "speed": "standard", "fallback_credit": null,
        },
        "modelUsage": {}, "permission_denials": [], "terminal_reason": "completed",
        "fast_mode_state": "off", "fast_mode_disabled_reason": "sdk_opt_in_required",
        "subagent_stats": {
            "spawned": 0, "requested": {"background": 0, "foreground": 0, "unset": 0},
            "started_in_background": 0, "max_depth": 0, "spawned_by_subagents": 0, "completed": 0,
            "failed": 0, "killed": {"parent": 0, "user": 0, "system": 0},
            "refused": {"depth_limit": 0, "concurrency_limit": 0, "budget": 0}, "by_type": {},
        },
        "safety_stops": 0, "is_error": false, "num_turns": 0, "api_error_status": null,
        "queued_turn_count": 0, "result_index": 0,
    })
}

/// A fixed time; it is never checked.
pub(super) const FIXED_TIME: &str = "2026-01-01T00:00:00.000Z";

pub(super) const USAGE_FIELDS: [&str; 4] = [
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
];

pub(super) fn prompt_text(message: &Value) -> String {
    match message.pointer("/message/content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let text: Vec<&str> = blocks.iter().map(|block| text_at(block, "/text")).collect();
            text.join("\n")
        }
        Some(_) | None => String::new(),
    }
}

pub(super) fn send_control_response(id: &str, response: Value, pipes: &mut StdioPipes) {
    let response = json!({"subtype": "success", "request_id": id, "response": response});
    pipes.send_message(&json!({"type": "control_response", "response": response}));
}
