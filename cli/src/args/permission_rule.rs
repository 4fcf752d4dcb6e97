//! Permission rules on the command line: `TOOL` or `TOOL:PATTERN`, and their order in the task.

use baton_proto::v1::{PermissionEffect, PermissionRule};

/// One rule without its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolPattern {
    tool: String,
    pattern: String,
}

pub(crate) fn parse(text: &str) -> Result<ToolPattern, String> {
    let (tool, pattern) = text.split_once(':').unwrap_or((text, ""));
    if tool.trim().is_empty() {
        return Err(
            "the tool is missing; write it like Bash or 'Bash:git *' (* is any tool)".to_owned(),
        );
    }
    if text.contains(':') && pattern.is_empty() {
        return Err("the pattern is empty; omit the colon to match every call".to_owned());
    }
    Ok(ToolPattern {
        tool: tool.to_owned(),
        pattern: pattern.to_owned(),
    })
}

/// The first matching rule decides, so the most restrictive rules come first.
pub(crate) fn ordered_rules(
    deny: Vec<ToolPattern>,
    ask: Vec<ToolPattern>,
    allow: Vec<ToolPattern>,
) -> Vec<PermissionRule> {
    let groups = [
        (PermissionEffect::Deny, deny),
        (PermissionEffect::Ask, ask),
        (PermissionEffect::Allow, allow),
    ];
    let rules = groups.into_iter().flat_map(|(effect, rules)| {
        rules.into_iter().map(move |rule| PermissionRule {
            effect: effect.into(),
            tool: rule.tool,
            pattern: rule.pattern,
        })
    });
    rules.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_tool_and_a_pattern_after_the_first_colon() {
        let rule = parse("Fetch:https://a/*").unwrap();
        assert_eq!(
            (rule.tool.as_str(), rule.pattern.as_str()),
            ("Fetch", "https://a/*")
        );
        assert_eq!(parse("Bash").unwrap().pattern, "");
        for bad in ["", ":x", "Bash:"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
