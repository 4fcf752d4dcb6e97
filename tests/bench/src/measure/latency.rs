//! Latencies as plain samples: exact percentiles from a sorted vector, without histogram buckets.

use std::time::Duration;

use serde_json::{Value, json};

/// Samples in microseconds, in any order.
#[derive(Clone, Debug, Default)]
pub struct LatencySamples(Vec<u32>);

impl LatencySamples {
    pub fn add(&mut self, latency: Duration) {
        self.0
            .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    pub(crate) fn merge(&mut self, other: LatencySamples) {
        self.0.extend(other.0);
    }

    pub fn summary(mut self) -> LatencySummary {
        self.0.sort_unstable();
        let at = |q: f64| percentile_ms(&self.0, q);
        LatencySummary {
            count: self.0.len(),
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Percentiles in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySummary {
    pub count: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl LatencySummary {
    pub(crate) fn json(self) -> Value {
        json!({
            "count": self.count,
            "p50Ms": self.p50,
            "p90Ms": self.p90,
            "p99Ms": self.p99,
            "maxMs": self.max,
        })
    }
}

/// Nearest rank: the smallest sample such that at least the share `q` of all samples is not above
/// it.
fn percentile_ms(sorted: &[u32], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    let sample = sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0);
    f64::from(sample) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples = LatencySamples::default();
        for ms in (1..=100).rev() {
            samples.add(Duration::from_millis(ms));
        }
        let summary = samples.summary();
        assert_eq!((summary.p50, summary.p99, summary.max), (50.0, 99.0, 100.0));
        assert_eq!(LatencySamples::default().summary().p99, 0.0);
    }
}
