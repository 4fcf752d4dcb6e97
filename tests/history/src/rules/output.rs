//! S10: what is read of an attempt's output is what its child wrote, from the beginning, without a hole; what is missing is said by a cut, and of a
//! completed attempt nothing is missing.

use std::collections::BTreeMap;

use super::Case;
use crate::history::Seen;
use crate::line::Saw;
use crate::verdict::Violation;

/// How far one reading has come.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: u64,
}

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let written = written(case);
    let mut readings: BTreeMap<(&str, u64), Reading> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in &case.history.seen {
        let who = seen.line.who.as_str();
        match &seen.line.saw {
            Saw::Read {
                reading,
                attempt,
                offset,
                text,
                ..
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(hole(case, seen, attempt, place.at, *offset));
                found.extend(other_text(case, seen, attempt, *offset, text, &written));
                place.at = offset + text.len() as u64;
            }
            Saw::ReadCut {
                reading,
                attempt,
                offset,
                length,
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(hole(case, seen, attempt, place.at, *offset));
                place.at = offset + length;
            }
            Saw::ReadEnd {
                reading,
                attempt,
                offset,
                complete,
            } => {
                let place = readings.entry((who, *reading)).or_default();
                found.extend(hole(case, seen, attempt, place.at, *offset));
                found.extend(short(case, seen, attempt, *offset, *complete, &written));
            }
            _ => {}
        }
    }
    found
}

type Written<'a> = BTreeMap<&'a str, String>;

fn written<'a>(case: &Case<'a>) -> Written<'a> {
    let mut written = Written::new();
    for seen in &case.history.seen {
        if let Saw::Wrote { attempt, text } = &seen.line.saw {
            written.entry(attempt).or_default().push_str(text);
        }
    }
    written
}

fn hole(case: &Case<'_>, seen: &Seen, attempt: &str, at: u64, offset: u64) -> Option<Violation> {
    let what = format!("output of {attempt} goes on at {offset} after {at}");
    (at != offset).then(|| Violation::new("S10", case.task(attempt), what, &[seen]))
}

/// Only where the child wrote down what it wrote.
fn other_text(
    case: &Case<'_>,
    seen: &Seen,
    attempt: &str,
    offset: u64,
    text: &str,
    written: &Written<'_>,
) -> Option<Violation> {
    let written = written.get(attempt)?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let same = written.get(from..from.saturating_add(text.len())) == Some(text);
    let what = format!("output of {attempt} at {offset} is not what its child wrote");
    (!same).then(|| Violation::new("S10", case.task(attempt), what, &[seen]))
}

fn short(
    case: &Case<'_>,
    seen: &Seen,
    attempt: &str,
    offset: u64,
    complete: bool,
    written: &Written<'_>,
) -> Option<Violation> {
    let (_, one) = case.attempt(attempt)?;
    let wrote = written.get(attempt)?.len() as u64;
    if one.state != "completed" || (complete && offset == wrote) {
        return None;
    }
    let what = format!("output of {attempt} ends at {offset} of {wrote}, and it is completed");
    Some(Violation::new("S10", case.task(attempt), what, &[seen]))
}

#[cfg(test)]
mod tests {
    use crate::samples::{self, expect, read, read_end};

    #[test]
    fn a_hole_is_found() {
        let mut run = samples::sound();
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        expect(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn text_that_nobody_wrote_is_found() {
        let mut run = samples::sound();
        run.client.push(read(8, "t1", "a1", 0, "eno\n"));
        expect(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn output_that_is_short_without_a_word_is_found() {
        let mut run = samples::sound();
        run.client.push(read(8, "t1", "a1", 0, "one\n"));
        run.client.push(read_end(8, "a1", 4));
        expect(&run, "S10", "t1", "client.jsonl");
    }

    #[test]
    fn a_cut_is_no_hole() {
        let mut run = samples::sound();
        run.client.push(samples::read_cut(8, "a1", 0, 4));
        run.client.push(read(8, "t1", "a1", 4, "two\n"));
        run.client.push(read_end(8, "a1", 8));
        assert!(run.judged().holds(), "{}", run.judged());
    }
}
