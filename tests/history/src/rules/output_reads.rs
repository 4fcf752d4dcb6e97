//! S10: what is read of an attempt's output is what its child wrote, from the beginning, without a hole; what is missing is said by a cut, and of a
//! completed attempt nothing is missing.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::LocatedLine;
use crate::history_line::Observation;
use crate::verdict::RuleViolation;

/// How far one reading has come.
#[derive(Clone, Copy, Debug, Default)]
struct ReadPosition {
    offset: u64,
}

pub(super) fn check(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let written = written_output(case);
    let mut readings: BTreeMap<(&str, u64), ReadPosition> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in &case.history.located_lines {
        let who = seen.line.who.as_str();
        match &seen.line.observation {
            Observation::Read {
                reading,
                attempt,
                offset,
                text,
                ..
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(case, seen, attempt, place.offset, *offset));
                found.extend(different_text(case, seen, attempt, *offset, text, &written));
                place.offset = offset + text.len() as u64;
            }
            Observation::ReadCut {
                reading,
                attempt,
                offset,
                length,
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(case, seen, attempt, place.offset, *offset));
                place.offset = offset + length;
            }
            Observation::ReadEnd {
                reading,
                attempt,
                offset,
                complete,
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(output_gap(case, seen, attempt, place.offset, *offset));
                found.extend(truncated_output(
                    case, seen, attempt, *offset, *complete, &written,
                ));
            }
            _ => {}
        }
    }
    found
}

type WrittenOutput<'a> = BTreeMap<&'a str, String>;

fn written_output<'a>(case: &IndexedHistory<'a>) -> WrittenOutput<'a> {
    let mut written = WrittenOutput::new();
    for seen in &case.history.located_lines {
        if let Observation::Wrote { attempt, text } = &seen.line.observation {
            written.entry(attempt).or_default().push_str(text);
        }
    }
    written
}

fn output_gap(
    case: &IndexedHistory<'_>,
    seen: &LocatedLine,
    attempt: &str,
    at: u64,
    offset: u64,
) -> Option<RuleViolation> {
    let what = format!("output of {attempt} goes on at {offset} after {at}");
    (at != offset).then(|| RuleViolation::new("S10", case.task_of(attempt), what, &[seen]))
}

/// Only where the child wrote down what it wrote.
fn different_text(
    case: &IndexedHistory<'_>,
    seen: &LocatedLine,
    attempt: &str,
    offset: u64,
    text: &str,
    written: &WrittenOutput<'_>,
) -> Option<RuleViolation> {
    let written = written.get(attempt)?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let same = written.get(from..from.saturating_add(text.len())) == Some(text);
    let what = format!("output of {attempt} at {offset} is not what its child wrote");
    (!same).then(|| RuleViolation::new("S10", case.task_of(attempt), what, &[seen]))
}

fn truncated_output(
    case: &IndexedHistory<'_>,
    seen: &LocatedLine,
    attempt: &str,
    offset: u64,
    complete: bool,
    written: &WrittenOutput<'_>,
) -> Option<RuleViolation> {
    let (_, one) = case.final_attempt(attempt)?;
    let wrote = written.get(attempt)?.len() as u64;
    if one.state != "completed" || (complete && offset == wrote) {
        return None;
    }
    let what = format!("output of {attempt} ends at {offset} of {wrote}, and it is completed");
    Some(RuleViolation::new(
        "S10",
        case.task_of(attempt),
        what,
        &[seen],
    ))
}

#[cfg(test)]
mod tests {
    use crate::sample_run;
    use crate::sample_run::{expect_violation, read, read_end};

    #[test]
    fn a_hole_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn text_that_nobody_wrote_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 0, "eno\n"));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn output_that_is_short_without_a_word_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(read(8, "t1", "a1", 0, "one\n"));
        run.client.push(read_end(8, "a1", 4));
        expect_violation(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn a_cut_is_no_hole() {
        let mut run = sample_run::sound_run();
        run.client.push(sample_run::read_cut(8, "a1", 0, 4));
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        run.client.push(read_end(8, "a1", 8));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }
}
