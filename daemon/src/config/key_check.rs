//! Checks the keys of a `daemon.toml`. An unknown key is an error with its line and the most
//! similar known key: a misspelled limit or variable would otherwise be missing without notice.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::process::{VariableNameError, check_variable_name};

const TOP_LEVEL_KEYS: [&str; 3] = ["agents", "roots", "limits"];
const ROOT_KEYS: [&str; 4] = ["path", "mode", "keep", "made_in"];
const LIMITS_KEYS: [&str; 3] = [
    "memory_floor_percent",
    "attempt_memory_mib",
    "attempt_processes",
];
const AGENT_KEYS: [&str; 5] = ["kind", "program", "args", "env", "task_env"];
const CODEX_KEYS: [&str; 6] = ["kind", "program", "args", "env", "task_env", "protocol"];

/// A key that is not allowed where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ConfigKeyError {
    /// Counted from 1.
    pub line: usize,
    pub what: ConfigKeyProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigKeyProblem {
    #[error("unknown key {key:?}{}", nearest.map(|known| format!("; did you mean {known:?}?")).unwrap_or_default())]
    Unknown {
        key: String,
        nearest: Option<&'static str>,
    },
    #[error("{key} cannot be set: {why}")]
    Variable { key: String, why: VariableNameError },
}

type KeyProblemAt = (usize, ConfigKeyProblem);

/// `table` is the parsed form of `text`.
pub(super) fn check_keys(text: &str, table: &DeTable<'_>) -> Result<(), ConfigKeyError> {
    check_tables(table).map_err(|(offset, what)| {
        let before = text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        ConfigKeyError { line, what }
    })
}

fn check_tables(table: &DeTable<'_>) -> Result<(), KeyProblemAt> {
    check_known_keys("", table, &TOP_LEVEL_KEYS)?;
    for (name, agent) in named_tables(table, "agents") {
        let is_codex = agent.get("kind").and_then(as_text) == Some("codex");
        let keys: &[&str] = if is_codex { &CODEX_KEYS } else { &AGENT_KEYS };
        check_known_keys(&format!("agents.{name}."), agent, keys)?;
        if let Some(variables) = agent.get("env").and_then(as_table) {
            check_variables(name, variables)?;
        }
    }
    for (name, root) in named_tables(table, "roots") {
        check_known_keys(&format!("roots.{name}."), root, &ROOT_KEYS)?;
    }
    match table.get("limits").and_then(as_table) {
        Some(limits) => check_known_keys("limits.", limits, &LIMITS_KEYS),
        None => Ok(()),
    }
}

fn as_text<'a>(value: &'a Spanned<DeValue<'_>>) -> Option<&'a str> {
    value.get_ref().as_str()
}

fn as_table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    value.get_ref().as_table()
}

fn named_tables<'a, 'i>(
    table: &'a DeTable<'i>,
    key: &str,
) -> impl Iterator<Item = (&'a str, &'a DeTable<'i>)> {
    let entries = table.get(key).and_then(as_table).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.get_ref().as_ref(), as_table(value)?)))
}

fn check_known_keys(
    place: &str,
    table: &DeTable<'_>,
    keys: &[&'static str],
) -> Result<(), KeyProblemAt> {
    for name in table.keys() {
        let key_name: &str = name.get_ref().as_ref();
        if !keys.contains(&key_name) {
            let what = ConfigKeyProblem::Unknown {
                key: format!("{place}{key_name}"),
                nearest: nearest_key(key_name, keys),
            };
            return Err((name.span().start, what));
        }
    }
    Ok(())
}

fn check_variables(agent: &str, variables: &DeTable<'_>) -> Result<(), KeyProblemAt> {
    for name in variables.keys() {
        check_variable_name(name.get_ref()).map_err(|why| {
            let key = format!("agents.{agent}.env.{}", name.get_ref());
            (name.span().start, ConfigKeyProblem::Variable { key, why })
        })?;
    }
    Ok(())
}

/// The known key with the fewest changes, if those are less than half of its letters.
fn nearest_key(key_name: &str, known: &[&'static str]) -> Option<&'static str> {
    let distances = known
        .iter()
        .map(|known| (edit_distance(key_name, known), *known));
    let (changes, nearest) = distances.min()?;
    (changes * 2 < key_name.len().max(nearest.len())).then_some(nearest)
}

/// The number of letters to insert, remove, replace, or exchange with their neighbor.
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..other.len() {
            let replaced = last[j] + usize::from(one[i] != other[j]);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            let exchanged = i > 0 && j > 0 && one[i] == other[j - 1] && one[i - 1] == other[j];
            if exchanged {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}
