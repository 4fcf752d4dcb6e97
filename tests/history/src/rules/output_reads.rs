//! S10: output that is read from an attempt equals what its child wrote, from the beginning,
//! without a gap. Missing bytes are reported by a cut, and a completed attempt has all of its
//! output.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::LocatedLine;
use crate::history_line::Observation;
use crate::verdict::RuleViolation;

/// The position of one reading.
#[derive(Clone, Copy, Debug, Default)]
struct ReadPosition {
    offset: u64,
}

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let written = written_output(indexed);
    let mut readings: BTreeMap<(&str, u64), ReadPosition> = BTreeMap::new();
    let mut found = Vec::new();
    for located in &indexed.history.located_lines {
        let who = located.line.who.as_str();
        match &located.line.observation {
            Observation::Read {
                reading,
                attempt,
                offset,
                text,
                ..
            } => {
                let position = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(
                    indexed,
                    located,
                    attempt,
                    position.offset,
                    *offset,
                ));
                found.extend(different_text(
                    indexed, located, attempt, *offset, text, &written,
                ));
                position.offset = offset + text.len() as u64;
            }
            Observation::ReadCut {
                reading,
                attempt,
                offset,
                length,
            } => {
                let position = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(
                    indexed,
                    located,
                    attempt,
                    position.offset,
                    *offset,
                ));
                position.offset = offset + length;
            }
            Observation::ReadEnd {
                reading,
                attempt,
                offset,
                complete,
            } => {
                let position = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(
                    indexed,
                    located,
                    attempt,
                    position.offset,
                    *offset,
                ));
                found.extend(truncated_output(
                    indexed, located, attempt, *offset, *complete, &written,
                ));
            }
            _ => {}
        }
    }
    found
}

type WrittenOutput<'a> = BTreeMap<&'a str, String>;

fn written_output<'a>(indexed: &IndexedHistory<'a>) -> WrittenOutput<'a> {
    let mut written = WrittenOutput::new();
    for located in &indexed.history.located_lines {
        if let Observation::Wrote { attempt, text } = &located.line.observation {
            written.entry(attempt).or_default().push_str(text);
        }
    }
    written
}

fn output_gap(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    attempt: &str,
    at: u64,
    offset: u64,
) -> Option<RuleViolation> {
    let what = format!("output of {attempt} continues at {offset} after {at}");
    (at != offset).then(|| RuleViolation::new("S10", indexed.task_of(attempt), what, &[located]))
}

/// Only if the child recorded its output.
fn different_text(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    attempt: &str,
    offset: u64,
    text: &str,
    written: &WrittenOutput<'_>,
) -> Option<RuleViolation> {
    let written = written.get(attempt)?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let same = written.get(from..from.saturating_add(text.len())) == Some(text);
    let what = format!("output of {attempt} at {offset} is not what its child wrote");
    (!same).then(|| RuleViolation::new("S10", indexed.task_of(attempt), what, &[located]))
}

fn truncated_output(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    attempt: &str,
    offset: u64,
    complete: bool,
    written: &WrittenOutput<'_>,
) -> Option<RuleViolation> {
    let (_, one) = indexed.final_attempt(attempt)?;
    let wrote = written.get(attempt)?.len() as u64;
    if one.state != "completed" || (complete && offset == wrote) {
        return None;
    }
    let what = format!("output of {attempt} ends at {offset} of {wrote}, but it is completed");
    Some(RuleViolation::new(
        "S10",
        indexed.task_of(attempt),
        what,
        &[located],
    ))
}

#[cfg(test)]
mod tests {
    use crate::sample_run;
    use crate::sample_run::{expect_violation, read, read_end};

    #[test]
    fn an_output_gap_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn text_that_the_child_did_not_write_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 0, "eno\n"));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn truncated_output_without_a_cut_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 0, "one\n"));
        run.client.push(read_end(8, "a1", 4));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn a_cut_is_not_a_gap() {
        let mut run = sample_run::sound_run();
        run.client.push(sample_run::read_cut(8, "a1", 0, 4));
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        run.client.push(read_end(8, "a1", 8));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }
}
