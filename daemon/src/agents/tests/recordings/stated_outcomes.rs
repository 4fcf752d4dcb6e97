//! How each scenario ended according to the report on the recordings: by the scenario's name
//! and the program, independent of any adapter. A scenario without an entry ends as its own
//! last message states.

use super::turn_facts::StatedOutcome;

/// Scenarios, the programs they apply to (by the beginning of the name; empty for all), and the
/// outcome of the turn that the scenario is named after.
const STATED_OUTCOMES: [(&[&str], &str, &str); 24] = [
    // All programs: the provider's answer. "e429once" is retried and succeeds.
    (&["e401", "e403", "noauth"], "", "provider_auth"),
    // gemini retries these forever and is killed by the harness; the others report them.
    (&["e429", "e500", "e529"], "gemini", "agent_exit"),
    (&["e429"], "", "provider_quota"),
    (&["e500", "e529"], "", "provider_overloaded"),
    // 0.10: codex exec never ends without a server and is killed; claude gives up.
    (&["conn_refused"], "codex-0", "agent_exit"),
    (&["conn_refused"], "", "provider_overloaded"),
    // 0.11: detected after 300 s; claude retries once without streaming and may succeed.
    (&["stall_long"], "codex", "provider_overloaded"),
    // 0.9: an unknown conversation.
    (
        &[
            "resume_unknown",
            "resume_notuuid",
            "resume_name",
            "load_unknown",
        ],
        "",
        "resume_failed",
    ),
    // Section 4: loading is advertised and fails, resuming is not implemented.
    (&["load", "load_tool", "resume"], "gemini", "resume_failed"),
    (&["badmethod"], "", "resume_failed"),
    // Section 1: claude's own limits, and starts that only exit with code 1.
    (&["max_turns"], "claude", "no_result"),
    (&["max_budget"], "claude", "provider_quota"),
    (&["empty_stdin"], "claude", "no_result"),
    (
        &["noverbose", "tool_bypass_root", "session_id_in_use"],
        "claude",
        "agent_exit",
    ),
    (&["badconfig"], "codex", "agent_exit"),
    (&["nogit"], "codex", "bad_cwd"),
    // Section 1: interrupted by a request, by a denial with an interrupt, or by SIGINT (a
    // result line, then exit code 0).
    (
        &[
            "interrupt_tool",
            "tool_perm_interrupt",
            "tool_deny_interrupt",
        ],
        "",
        "interrupted",
    ),
    (&["sigint_stall", "sigint_tool"], "claude", "interrupted"),
    (&["tool_cancel"], "codex-app-server", "interrupted"),
    (&["cancel_tool", "tool_perm_cancel"], "", "interrupted"),
    // Section 4: a denied permission ends the turn of codex-acp as cancelled, although it was
    // not canceled.
    (&["tool_deny"], "codex-acp", "no_result"),
    // 0.3: these exit with code 0 at EOF and on TERM, in the middle of a turn.
    (
        &["eof_stall", "sigterm_stall", "sigterm_tool"],
        "codex-app-server",
        "no_result",
    ),
    (
        &["eof_stall", "sigterm_stall", "sigterm_tool"],
        "claude-agent-acp",
        "no_result",
    ),
    (&["sigterm_stall", "sigterm_tool"], "gemini", "no_result"),
];

/// The outcome of the turn that the scenario is named after. A later turn ends as its own
/// message states.
pub(super) fn stated_outcome(program: &str, scenario: &str) -> Option<StatedOutcome> {
    // The first turn is interrupted, the second one succeeds.
    if matches!(scenario, "interrupt" | "cancel") {
        return Some(StatedOutcome::Interrupted);
    }
    let entry = STATED_OUTCOMES
        .iter()
        .find(|(scenarios, of, _)| scenarios.contains(&scenario) && program.starts_with(of));
    let signaled = || {
        let idle = scenario.ends_with("_idle");
        (scenario.starts_with("sig") && !idle).then_some("agent_exit")
    };
    let outcome = entry.map(|(_, _, outcome)| *outcome).or_else(signaled)?;
    Some(match outcome {
        "interrupted" => StatedOutcome::Interrupted,
        code => StatedOutcome::Failed(code.to_owned()),
    })
}
