//! Usage of one turn. Some agents count per turn and some per conversation; these types always
//! hold the turn's own usage.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Token counts. `input` excludes tokens from a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenCounts {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
}

impl TokenCounts {
    pub(crate) fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// Growth of a running total. A total that was reset counts as zero and never wraps.
    pub(crate) fn since(self, before: Self) -> Self {
        self.combine(before, u64::saturating_sub)
    }

    fn combine(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            input: join(self.input, other.input),
            output: join(self.output, other.output),
            cache_read: join(self.cache_read, other.cache_read),
            cache_write: join(self.cache_write, other.cache_write),
        }
    }

    /// Reads the counts under the names that the agent uses.
    pub(crate) fn from_json(value: &Value, names: [&str; 4]) -> Self {
        let [input, output, cache_read, cache_write] =
            names.map(|name| value.get(name).and_then(Value::as_u64).unwrap_or(0));
        Self {
            input,
            output,
            cache_read,
            cache_write,
        }
    }

    /// Reads the counts of an agent whose input includes cached tokens.
    pub(crate) fn read_with_cached_input(value: &Value, names: [&str; 4]) -> Self {
        Self::from_json(value, names).without_cached_input()
    }

    fn without_cached_input(self) -> Self {
        Self {
            input: self
                .input
                .saturating_sub(self.cache_read)
                .saturating_sub(self.cache_write),
            ..self
        }
    }

    /// For an agent that also reports a total: which sum equals the total shows whether its
    /// input includes cached tokens and its output the thought tokens. If none does, the parts
    /// are used as reported.
    pub(crate) fn fitted_to_total(self, total: Option<u64>, thoughts: u64) -> Self {
        let apart = self.input.saturating_add(self.output);
        let cached = self.cache_read.saturating_add(self.cache_write);
        let with_thoughts = Self {
            output: self.output.saturating_add(thoughts),
            ..self
        };
        let sums = [
            (apart.saturating_add(cached), self),
            (
                apart.saturating_add(cached).saturating_add(thoughts),
                with_thoughts,
            ),
            (apart, self.without_cached_input()),
            (
                apart.saturating_add(thoughts),
                with_thoughts.without_cached_input(),
            ),
        ];
        let fits = sums.into_iter().find(|(sum, _)| Some(*sum) == total);
        fits.map_or(self, |(_, tokens)| tokens)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TurnUsage {
    pub(crate) tokens: TokenCounts,
    /// Absent when the agent reports no cost.
    pub(crate) cost: Option<DollarAmount>,
    pub(crate) model: Option<String>,
    /// Requests to the model, if the agent counts them.
    pub(crate) turns: u32,
}

impl TurnUsage {
    /// Sum of several turns, as far as their usage is known.
    pub(crate) fn sum(earlier: Option<Self>, this: Option<Self>) -> Option<Self> {
        let (earlier, this) = match (earlier, this) {
            (Some(earlier), Some(this)) => (earlier, this),
            (known, None) | (None, known) => return known,
        };
        Some(Self {
            tokens: earlier.tokens.plus(this.tokens),
            cost: match (earlier.cost, this.cost) {
                (Some(earlier), Some(this)) => Some(earlier.plus(this)),
                (known, None) | (None, known) => known,
            },
            model: this.model.or(earlier.model),
            turns: earlier.turns.saturating_add(this.turns),
        })
    }
}

/// An amount in US dollars, exact to the trillionth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DollarAmount {
    trillionths: u64,
}

const TRILLION: u64 = 1_000_000_000_000;

impl DollarAmount {
    /// Reads a JSON number. Negative and overflowing amounts are refused.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let number = value.as_f64().filter(|number| number.is_finite())?;
        // Rust prints the shortest decimal that means this number, without an exponent.
        let text = number.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let fraction: String = fraction
            .chars()
            .chain("0".repeat(12).chars())
            .take(12)
            .collect();
        let whole: u64 = whole.parse().ok()?;
        let fraction: u64 = fraction.parse().ok()?;
        let trillionths = whole.checked_mul(TRILLION)?.checked_add(fraction)?;
        Some(Self { trillionths })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            trillionths: self.trillionths.saturating_add(other.trillionths),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            trillionths: self.trillionths.saturating_sub(before.trillionths),
        }
    }
}

/// With at least two decimals.
impl fmt::Display for DollarAmount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:012}", self.trillionths % TRILLION);
        let shown = fraction.trim_end_matches('0').len().max(2);
        write!(
            out,
            "{}.{}",
            self.trillionths / TRILLION,
            &fraction[..shown]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dollar_amounts_are_exact() {
        let dollars = |value: Value| DollarAmount::from_json(&value);
        let shown = |value: Value| dollars(value).map(|dollars| dollars.to_string());
        assert_eq!(shown(json!(0)).as_deref(), Some("0.00"));
        assert_eq!(shown(json!(0.000728)).as_deref(), Some("0.000728"));
        assert_eq!(shown(json!(7.28e-6)).as_deref(), Some("0.00000728"));
        assert_eq!(shown(json!(12.5)).as_deref(), Some("12.50"));
        for nonsense in [json!(-1), json!("1"), json!(null), json!(1e300)] {
            assert_eq!(shown(nonsense), None);
        }
        let twice = dollars(json!(0.001456)).unwrap();
        let once = twice.since(dollars(json!(0.000728)).unwrap());
        assert_eq!(once.to_string(), "0.000728");
        assert_eq!(once.plus(once), twice);
        assert_eq!(once.since(twice), DollarAmount::default());
    }

    #[test]
    fn the_usage_of_turns_is_summed_as_far_as_known() {
        let used = |input, cost: Option<f64>| TurnUsage {
            tokens: TokenCounts {
                input,
                ..TokenCounts::default()
            },
            cost: cost.and_then(|cost| DollarAmount::from_json(&json!(cost))),
            model: Some("m".to_owned()),
            turns: 2,
        };
        let both = TurnUsage::sum(Some(used(3, Some(0.5))), Some(used(4, Some(0.25)))).unwrap();
        assert_eq!(both, used(7, Some(0.75)).with_turns(4));
        let half = TurnUsage::sum(Some(used(3, None)), Some(used(4, Some(0.25)))).unwrap();
        assert_eq!(half, used(7, Some(0.25)).with_turns(4));
        assert_eq!(
            TurnUsage::sum(Some(used(3, None)), None),
            Some(used(3, None))
        );
        assert_eq!(
            TurnUsage::sum(None, Some(used(3, None))),
            Some(used(3, None))
        );
        assert_eq!(TurnUsage::sum(None, None), None);
    }

    impl TurnUsage {
        fn with_turns(self, turns: u32) -> Self {
            Self { turns, ..self }
        }
    }

    #[test]
    fn a_reset_total_does_not_wrap() {
        let names = ["i", "o", "r", "w"];
        let before = TokenCounts::from_json(&json!({"i": 5, "o": 5}), names);
        let after = TokenCounts::from_json(&json!({"i": 9, "o": 1, "r": "x"}), names);
        let grown = after.since(before);
        assert_eq!((grown.input, grown.output, grown.cache_read), (4, 0, 0));
        let cached = TokenCounts::read_with_cached_input(&json!({"i": 312, "r": 200}), names);
        assert_eq!((cached.input, cached.cache_read), (112, 200));
    }

    #[test]
    fn the_total_shows_which_counts_include_which() {
        let named = TokenCounts {
            input: 150,
            output: 25,
            cache_read: 40,
            cache_write: 10,
        };
        let counted = |total| {
            let tokens = named.fitted_to_total(total, 3);
            (tokens.input, tokens.output)
        };
        assert_eq!(counted(Some(225)), (150, 25));
        assert_eq!(counted(Some(228)), (150, 28));
        assert_eq!(counted(Some(175)), (100, 25));
        assert_eq!(counted(Some(178)), (100, 28));
        for nonsense in [None, Some(0), Some(u64::MAX)] {
            assert_eq!(counted(nonsense), (150, 25));
        }
    }
}
