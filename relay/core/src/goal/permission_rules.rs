//! Permission rules of a task: which rule answers a permission request, and how.
//!
//! The first rule that matches decides; without one, a person is asked. A rule names tools and,
//! optionally, a pattern for the arguments of the tool. `*` matches any characters, everything
//! else matches itself.
//!
//! Arguments are compared in two ways, so that in doubt a person is asked:
//! - `deny` and `ask` match if the pattern matches the whole arguments as the agent wrote them,
//!   or any one text in them.
//! - `allow` matches if the pattern equals the whole arguments, or if it matches all arguments
//!   that state the action (`SUBJECTS`, at any depth), of which there must be at least one. A
//!   shell command with an operator that the pattern does not contain is not matched: neither
//!   `git *` nor `*git status*` allows `git status; rm -r .`, and a description with a matching
//!   text allows nothing.
//!
//! This compares texts. It understands neither shells nor file systems, and it is not a
//! sandbox.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::task::spec::{PermissionEffect, PermissionRule};

/// Longer arguments are compared with no pattern, because that would delay the core's loop. A
/// person is asked instead.
const MAX_COMPARED_BYTES: usize = 64 * 1024;
/// The limit for one request and all its rules together, for the same reason.
const MAX_REQUEST_BYTES: usize = 1024 * 1024;

/// Names of arguments that state what a tool does, as the supported agents use them.
const SUBJECTS: [&str; 8] = [
    "command",
    "cmd",
    "file_path",
    "notebook_path",
    "path",
    "url",
    "query",
    "pattern",
];
const SHELL_SUBJECTS: [&str; 2] = ["command", "cmd"];
const SHELL_OPERATORS: [char; 10] = [';', '&', '|', '<', '>', '$', '`', '(', ')', '\n'];

/// The rule that answers a request: its number, from 1, and its effect. `Ask` has the same
/// result as no rule.
pub(crate) fn find_rule(
    rules: &[PermissionRule],
    tool: &str,
    arguments: &[u8],
) -> Option<(u32, PermissionEffect)> {
    let (mut parsed, mut budget) = (None, MAX_REQUEST_BYTES);
    for (number, rule) in (1..).zip(rules) {
        if !matches(&rule.tool, tool) {
            continue;
        }
        if rule.pattern.is_empty() || mutant!(PatternIgnored) {
            return Some((number, rule.effect));
        }
        let parsed = parsed.get_or_insert_with(|| PermissionArguments::read(arguments));
        let left = parsed
            .as_ref()
            .and_then(|parsed| budget.checked_sub(parsed.bytes()));
        match (parsed, left) {
            (Some(parsed), Some(_)) if parsed.match_rule(rule) => {
                return Some((number, rule.effect));
            }
            (Some(_), Some(left)) => budget = left,
            (None, _) | (_, None) => return Some((number, PermissionEffect::Ask)),
        }
    }
    None
}

/// The arguments of a tool call, as rules compare them.
struct PermissionArguments<'a> {
    whole: Cow<'a, str>,
    argument_texts: ArgumentTexts,
}

/// The texts in arguments that are JSON.
#[derive(Default)]
struct ArgumentTexts {
    /// Texts at any depth, each with the name of the member that contains it.
    texts: Vec<(String, String)>,
    /// An argument that states the action is not a text, or the arguments are not valid JSON:
    /// no `allow` pattern can match them.
    is_opaque: bool,
}

impl<'a> PermissionArguments<'a> {
    /// `None` if the arguments are too long to compare.
    fn read(arguments: &'a [u8]) -> Option<Self> {
        if arguments.len() > MAX_COMPARED_BYTES {
            return None;
        }
        let mut found = ArgumentTexts::default();
        let mut json = serde_json::Deserializer::from_slice(arguments);
        let read = TextCollector::at("", &mut found).deserialize(&mut json);
        found.is_opaque |= read.and_then(|()| json.end()).is_err();
        Some(Self {
            whole: String::from_utf8_lossy(arguments),
            argument_texts: found,
        })
    }

    /// The bytes that one comparison reads.
    fn bytes(&self) -> usize {
        let texts = self.argument_texts.texts.iter().map(|(_, text)| text.len());
        self.whole.len() + texts.sum::<usize>()
    }

    fn match_rule(&self, rule: &PermissionRule) -> bool {
        let pattern = rule.pattern.as_str();
        match rule.effect {
            PermissionEffect::Deny | PermissionEffect::Ask => {
                let mut texts = self.argument_texts.texts.iter();
                matches(pattern, &self.whole) || texts.any(|(_, text)| matches(pattern, text))
            }
            PermissionEffect::Allow if *self.whole == *pattern => true,
            PermissionEffect::Allow => {
                !self.argument_texts.is_opaque && self.subjects_match(pattern)
            }
        }
    }

    fn subjects_match(&self, pattern: &str) -> bool {
        let is_subject = |name: &str| SUBJECTS.contains(&name);
        let texts = self.argument_texts.texts.iter();
        let mut subjects = texts.filter(|(name, _)| is_subject(name)).peekable();
        subjects.peek().is_some()
            && subjects.all(|(name, text)| {
                let shell = SHELL_SUBJECTS.contains(&name.as_str());
                matches(pattern, text) && !(shell && has_extra_operator(text, pattern))
            })
    }
}

/// Whether a command has a shell operator that the pattern does not contain.
fn has_extra_operator(command: &str, pattern: &str) -> bool {
    SHELL_OPERATORS
        .iter()
        .any(|operator| command.contains(*operator) && !pattern.contains(*operator))
        && !mutant!(OperatorsAllowed)
}

/// Collects the texts of one value. All members of the same name are collected, because it is
/// unknown which of them the agent uses.
struct TextCollector<'a> {
    name: &'a str,
    found: &'a mut ArgumentTexts,
}

impl<'a> TextCollector<'a> {
    fn at(name: &'a str, found: &'a mut ArgumentTexts) -> Self {
        Self { name, found }
    }

    fn mark_opaque(&mut self) {
        self.found.is_opaque |= SUBJECTS.contains(&self.name);
    }
}

impl<'de> DeserializeSeed<'de> for TextCollector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextCollector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let named = (self.name.to_owned(), text.to_owned());
        self.found.texts.push(named);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.mark_opaque();
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(TextCollector::at(&name, self.found))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        self.mark_opaque();
        while seq
            .next_element_seed(TextCollector::at(self.name, self.found))?
            .is_some()
        {}
        Ok(())
    }

    fn visit_bool<E>(mut self, _: bool) -> Result<(), E> {
        self.mark_opaque();
        Ok(())
    }

    fn visit_i64<E>(mut self, _: i64) -> Result<(), E> {
        self.mark_opaque();
        Ok(())
    }

    fn visit_u64<E>(mut self, _: u64) -> Result<(), E> {
        self.mark_opaque();
        Ok(())
    }

    fn visit_f64<E>(mut self, _: f64) -> Result<(), E> {
        self.mark_opaque();
        Ok(())
    }

    fn visit_unit<E>(mut self) -> Result<(), E> {
        self.mark_opaque();
        Ok(())
    }
}

/// Whether the pattern matches the whole text. One pass is enough: taking the leftmost match of
/// each piece between stars finds a match whenever there is one.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut left) = text.strip_prefix(first) else {
        return false;
    };
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        let Some(at) = left.find(piece) else {
            return false;
        };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last)
}

/// The rule as people write it, for the record of the answer.
impl fmt::Display for PermissionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            PermissionEffect::Allow => "allow",
            PermissionEffect::Deny => "deny",
            PermissionEffect::Ask => "ask",
        };
        write!(f, "{effect} {}", self.tool)?;
        if self.pattern.is_empty() {
            Ok(())
        } else {
            write!(f, ":{}", self.pattern)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PermissionEffect::{Allow, Ask, Deny};
    use super::*;

    fn rule(effect: PermissionEffect, tool: &str, pattern: &str) -> PermissionRule {
        PermissionRule {
            effect,
            tool: tool.into(),
            pattern: pattern.into(),
        }
    }

    fn effect_of(
        rules: &[PermissionRule],
        tool: &str,
        arguments: &str,
    ) -> Option<PermissionEffect> {
        find_rule(rules, tool, arguments.as_bytes()).map(|(_, effect)| effect)
    }

    fn command(text: &str) -> String {
        serde_json::json!({ "command": text, "description": "harmless, git status" }).to_string()
    }

    #[test]
    fn the_first_matching_rule_decides_and_is_reported_by_number() {
        let rules = [
            rule(Deny, "Bash", "*rm *"),
            rule(Allow, "Bash", "git *"),
            rule(Ask, "Bash", ""),
            rule(Allow, "*", ""),
        ];
        let by = |tool, arguments: &str| find_rule(&rules, tool, arguments.as_bytes());
        assert_eq!(by("Bash", &command("rm -r .")), Some((1, Deny)));
        assert_eq!(by("Bash", &command("git status")), Some((2, Allow)));
        assert_eq!(by("Bash", &command("ls")), Some((3, Ask)));
        assert_eq!(by("Read", "{}"), Some((4, Allow)));
        assert_eq!(find_rule(&rules[..2], "Read", b"{}"), None);
    }

    #[test]
    fn a_star_matches_any_characters_and_nothing_else_is_special() {
        for (pattern, text) in [
            ("*", ""),
            ("git *", "git log"),
            ("*.rs", "a/b.rs"),
            ("a*b*c", "a--b--b--c"),
            ("a*b*c", "abc"),
            ("mcp__*__read", "mcp__files__read"),
            ("**", "x"),
            ("[a]?.", "[a]?."),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("git", "git log"),
            ("git *", "git"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
            ("", "x"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn allow_rules_match_the_action_and_not_its_description() {
        let rules = [rule(Allow, "Bash", "git *")];
        assert_eq!(
            effect_of(&rules, "Bash", &command("git status")),
            Some(Allow)
        );
        for evasion in [
            command("rm -r ."),
            command("git status; rm -r ."),
            command("git log | sh"),
            command("git $(rm -r .)"),
            r#"{"description":"git status"}"#.to_owned(),
            r#"{"command":["sh","-c","git status"]}"#.to_owned(),
            r#"{"command":"rm -r .","command":"git status"}"#.to_owned(),
            r#"{"command":"git status","path":"/"}"#.to_owned(),
            r#"{"rawInput":{"command":"rm -r .","command":"git status"}}"#.to_owned(),
            r#"{"command":"git status","path":null}"#.to_owned(),
            r#"{"command":"git status"} {"command":"rm -r ."}"#.to_owned(),
            "git".to_owned(),
        ] {
            assert_eq!(effect_of(&rules, "Bash", &evasion), None, "{evasion}");
        }
        let spelled = [rule(Allow, "Bash", "git log | head")];
        assert_eq!(
            effect_of(&spelled, "Bash", &command("git log | head")),
            Some(Allow)
        );
        let nested = r#"{"kind":"execute","rawInput":{"command":"git log","timeout":5}}"#;
        assert_eq!(effect_of(&rules, "Bash", nested), Some(Allow));
        let edit = [rule(Allow, "Edit", "src/*")];
        let text = r#"{"file_path":"src/a.rs","old_string":"; rm"}"#;
        assert_eq!(effect_of(&edit, "Edit", text), Some(Allow));
        for wide in ["*git status*", "*status*"] {
            let rules = [rule(Allow, "Bash", wide)];
            assert_eq!(
                effect_of(&rules, "Bash", &command("git status")),
                Some(Allow)
            );
            for evasion in [
                command("git status; rm -r ."),
                r#"{"command":"rm -r .","description":"git status"}"#.to_owned(),
                r#"{"why":"git status"}"#.to_owned(),
                "rm -r . # git status".to_owned(),
            ] {
                assert_eq!(
                    effect_of(&rules, "Bash", &evasion),
                    None,
                    "{wide}: {evasion}"
                );
            }
        }
        let whole = [rule(Allow, "Bash", r#"{"command":"ls"}"#)];
        assert_eq!(
            effect_of(&whole, "Bash", r#"{"command":"ls"}"#),
            Some(Allow)
        );
    }

    #[test]
    fn deny_rules_match_any_text_even_when_escaped() {
        let rules = [rule(Deny, "Bash", "*secret*"), rule(Allow, "Bash", "")];
        for text in [
            r#"{"command":"cat secrets"}"#,
            r#"{"command":"cat \u0073ecrets"}"#,
            r#"{"env":{"A":["x","my secret"]}}"#,
            "no json, but a secret",
        ] {
            assert_eq!(effect_of(&rules, "Bash", text), Some(Deny), "{text}");
        }
        assert_eq!(
            effect_of(&rules, "Bash", r#"{"command":"ls"}"#),
            Some(Allow)
        );
    }

    #[test]
    fn arguments_too_long_to_compare_need_a_person() {
        let long = command(&"x".repeat(MAX_COMPARED_BYTES));
        let rules = [rule(Deny, "Bash", "*y*"), rule(Allow, "Bash", "")];
        assert_eq!(effect_of(&rules, "Bash", &long), Some(Ask));
        assert_eq!(effect_of(&rules[1..], "Bash", &long), Some(Allow));
    }

    /// The cost of one request is limited, however many rules there are.
    #[test]
    fn too_many_comparisons_for_one_request_need_a_person() {
        let long = command(&"x".repeat(MAX_COMPARED_BYTES / 2));
        let few = vec![rule(Deny, "Bash", "*y*"); 4];
        assert_eq!(effect_of(&few, "Bash", &long), None);
        let many = vec![rule(Deny, "Bash", "*y*"); 256];
        assert_eq!(effect_of(&many, "Bash", &long), Some(Ask));
        assert_eq!(effect_of(&many, "Bash", &command("ls")), None);
    }
}
