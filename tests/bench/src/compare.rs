//! Two builds in one interleaved run: A B A B on the same machine with the same load generator, so
//! that other load on the machine affects both alike. Reports median and range of every figure and
//! leaves the judgement to the reader.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::error::BenchError;
use crate::progress::BenchProgress;

#[derive(Clone, Debug)]
pub struct CompareBenchPlan {
    /// The baton executable whose load generator runs every round.
    pub baton: PathBuf,
    pub a: PathBuf,
    pub b: PathBuf,
    pub rounds: usize,
    /// The bench and its flags.
    pub arguments: Vec<String>,
}

/// Every figure of one build: its path in the report, and its value in each round.
type FiguresByPath = BTreeMap<String, Vec<f64>>;

#[derive(Clone, Debug)]
pub struct BuildComparison {
    a: FiguresByPath,
    b: FiguresByPath,
}

/// One figure of both builds.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedFigure {
    pub path: String,
    pub a: FigureSpread,
    pub b: FigureSpread,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FigureSpread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

pub async fn run(
    plan: &CompareBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BuildComparison, BenchError> {
    let (mut a, mut b) = (FiguresByPath::new(), FiguresByPath::new());
    for round in 1..=plan.rounds {
        for (name, program, figures) in [("A", &plan.a, &mut a), ("B", &plan.b, &mut b)] {
            progress.note(&format!("round {round} of {}: {name}", plan.rounds));
            let report = run_bench(plan, program).await?;
            collect_figures(&report["phases"], "", figures);
        }
    }
    Ok(BuildComparison { a, b })
}

/// Runs the bench once against the relay of one build.
async fn run_bench(plan: &CompareBenchPlan, program: &Path) -> Result<Value, BenchError> {
    let output = Command::new(&plan.baton)
        .arg("bench")
        .args(&plan.arguments)
        .arg("--json")
        .arg("--relay-program")
        .arg(program)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| BenchError::local("start the bench", error))?;
    if !output.status.success() {
        return Err(BenchError::local(
            format!("the bench failed with {}", program.display()),
            output.status,
        ));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| BenchError::local("read the bench's report", error))
}

/// Adds every number below `value` under its path; a phase is identified by its name.
fn collect_figures(value: &Value, path: &str, figures: &mut FiguresByPath) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match value {
        Value::Number(number) => {
            let figure = number.as_f64().unwrap_or(f64::NAN);
            figures.entry(path.to_owned()).or_default().push(figure);
        }
        Value::Array(phases) => {
            for phase in phases {
                collect_figures(
                    phase,
                    &below(phase["phase"].as_str().unwrap_or("?")),
                    figures,
                );
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                collect_figures(value, &below(key), figures);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn spread(values: &[f64]) -> FigureSpread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = if sorted.len().is_multiple_of(2) && middle > 0 {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted.get(middle).copied().unwrap_or(0.0)
    };
    let end = |value: Option<&f64>| value.copied().unwrap_or(0.0);
    FigureSpread {
        median,
        min: end(sorted.first()),
        max: end(sorted.last()),
    }
}

impl BuildComparison {
    /// The figures that both builds reported.
    pub fn figures(&self) -> impl Iterator<Item = ComparedFigure> {
        self.a.iter().filter_map(|(path, a)| {
            Some(ComparedFigure {
                path: path.clone(),
                a: spread(a),
                b: spread(self.b.get(path)?),
            })
        })
    }

    pub fn json(&self) -> Value {
        serde_json::json!({ "a": figures_json(&self.a), "b": figures_json(&self.b) })
    }
}

fn figures_json(figures: &FiguresByPath) -> Value {
    let entries = figures.iter().map(|(path, values)| {
        let FigureSpread { median, min, max } = spread(values);
        let entry = serde_json::json!({ "median": median, "min": min, "max": max, "runs": values });
        (path.clone(), entry)
    });
    Value::Object(entries.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_by_phase_with_the_median_of_all_runs() {
        let mut figures = FiguresByPath::new();
        for rate in [3.0, 1.0, 2.0] {
            let report = serde_json::json!([
                { "phase": "steady", "tasksPerSecond": rate, "submit": { "p99Ms": 2.0 * rate } }
            ]);
            collect_figures(&report, "", &mut figures);
        }
        let expected = |median, min, max| FigureSpread { median, min, max };
        assert_eq!(
            spread(&figures["steady.tasksPerSecond"]),
            expected(2.0, 1.0, 3.0)
        );
        assert_eq!(
            spread(&figures["steady.submit.p99Ms"]),
            expected(4.0, 2.0, 6.0)
        );
        assert_eq!(spread(&[1.0, 2.0]).median, 1.5);
    }
}
