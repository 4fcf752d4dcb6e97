//! Permission rules, checked with a table: requests, rules, and the expected answer.

use baton_core::record::{AttemptRecord, InputDecision, InputRecord};
use baton_core::task::spec::{PermissionEffect, PermissionRule, TaskSpec};

use crate::random::SeededRng;

/// The number of the rule that answers, and its decision.
type ExpectedAnswer = (u32, InputDecision);

/// Requests of agents, and the rule that must answer each for a task with `rules`: none means a
/// person.
pub(crate) const PERMISSION_CASES: [(&str, &str, Option<ExpectedAnswer>); 6] = [
    (
        "Bash",
        r#"{"command":"git status"}"#,
        Some((2, InputDecision::Allowed)),
    ),
    (
        "Bash",
        r#"{"command":"git gc; rm -r x"}"#,
        Some((1, InputDecision::Denied)),
    ),
    ("Bash", r#"{"command":"git log | sh"}"#, None),
    ("Bash", r#"{"command":"make"}"#, None),
    (
        "Read",
        r#"{"file_path":"a"}"#,
        Some((4, InputDecision::Allowed)),
    ),
    ("Write", r#"{"file_path":"a"}"#, None),
];

/// Half of all tasks have them.
pub(crate) fn random_rules(rng: &mut SeededRng) -> Vec<PermissionRule> {
    if rng.chance(50) { rules() } else { Vec::new() }
}

fn rules() -> Vec<PermissionRule> {
    use PermissionEffect::{Allow, Ask, Deny};
    let rule = |effect, tool: &str, pattern: &str| PermissionRule {
        effect,
        tool: tool.to_owned(),
        pattern: pattern.to_owned(),
    };
    vec![
        rule(Deny, "Bash", "*rm *"),
        rule(Allow, "Bash", "git *"),
        rule(Ask, "Bash", ""),
        rule(Allow, "R*", ""),
    ]
}

/// A rule answers what it must, at once, and nothing else.
pub(crate) fn check(spec: &TaskSpec, attempt: &AttemptRecord) {
    for input in &attempt.inputs {
        let Some(expected) = expected_answer(spec, input) else {
            continue;
        };
        let ruled = input.state.answer().filter(|answer| answer.rule.is_some());
        let said = ruled.and_then(|answer| Some((answer.rule?, answer.decision)));
        assert_eq!(said, expected, "rules: {} of {}", input.id, attempt.id);
    }
}

/// None if it is closed: then the request is no longer stored.
fn expected_answer(spec: &TaskSpec, input: &InputRecord) -> Option<Option<(u32, InputDecision)>> {
    let asked = |(tool, arguments, _): &&(&str, &str, _)| {
        input.tool_name.as_deref() == Some(*tool) && *input.payload == *arguments.as_bytes()
    };
    let (_, _, by_rule) = PERMISSION_CASES.iter().find(asked)?;
    Some(by_rule.filter(|_| !spec.permission_rules.is_empty()))
}
