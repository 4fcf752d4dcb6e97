//! The result of a check: the counts, and each violated rule with the lines that show it.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{LineLocation, LocatedLine};

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// Its id: those of docs/simulation.md, or `vacuous`.
    pub rule: &'static str,
    /// The task; empty if it concerns the whole run.
    pub task: String,
    pub message: String,
    pub locations: Vec<LineLocation>,
}

impl RuleViolation {
    pub(crate) fn new(
        rule: &'static str,
        task: &str,
        what: impl Into<String>,
        lines: &[&LocatedLine],
    ) -> Self {
        Self {
            rule,
            task: task.to_owned(),
            message: what.into(),
            locations: lines
                .iter()
                .map(|located| located.location.clone())
                .collect(),
        }
    }
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rule)?;
        if !self.task.is_empty() {
            write!(f, " task {}", self.task)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.locations.is_empty() {
            let places: Vec<String> = self.locations.iter().map(ToString::to_string).collect();
            write!(f, " ({})", places.join(", "))?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub struct HistoryVerdict {
    /// Counted lines, by name.
    pub counts: BTreeMap<String, u64>,
    pub violations: Vec<RuleViolation>,
}

impl HistoryVerdict {
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Zero for a name that was not counted.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// Number of violations that are shown; one cause often has many.
const VIOLATIONS_SHOWN: usize = 20;

impl fmt::Display for HistoryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "counts:")?;
        for (name, count) in &self.counts {
            writeln!(f, "  {count:>9} {name}")?;
        }
        if self.is_clean() {
            return write!(f, "no rule violated");
        }
        writeln!(f, "{} violations:", self.violations.len())?;
        for violation in self.violations.iter().take(VIOLATIONS_SHOWN) {
            writeln!(f, "  {violation}")?;
        }
        Ok(())
    }
}
