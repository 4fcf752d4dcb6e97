//! S11: a watch tells each event of its task once, in order, from where it was opened.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history_line::Observation;
use crate::verdict::RuleViolation;

pub(super) fn check(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut watches = BTreeMap::new();
    for seen in &case.history.located_lines {
        let who = seen.line.who.as_str();
        match &seen.line.observation {
            Observation::WatchOpened {
                watch, task, after, ..
            } => {
                watches.insert((who, *watch), (task.as_str(), *after, seen));
            }
            Observation::Watched { watch, event } => {
                let Some((task, at, last)) = watches.get_mut(&(who, *watch)) else {
                    let what = format!("watch {watch} tells something and was never opened");
                    found.push(RuleViolation::new("S11", "", what, &[seen]));
                    continue;
                };
                if event.revision != *at + 1 {
                    let what = format!("a watch tells revision {} after {at}", event.revision);
                    found.push(RuleViolation::new("S11", task, what, &[last, seen]));
                }
                *at = event.revision;
                *last = seen;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::sample_run;
    use crate::sample_run::{expect_violation, watch_opened, watched};

    #[test]
    fn a_gap_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(watch_opened(3, "acme", "t1", 0));
        run.client
            .push(watched(3, 1, "submitted", "", "", "queued"));
        run.client
            .push(watched(3, 3, "confirmed", "a1", "accepted", "running"));
        expect_violation(&run, "S11", "t1", "client.jsonl");
    }

    #[test]
    fn an_event_that_comes_twice_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(watch_opened(3, "acme", "t1", 1));
        for _ in 0..2 {
            run.client
                .push(watched(3, 2, "offered", "a1", "offered", "queued"));
        }
        expect_violation(&run, "S11", "t1", "client.jsonl");
    }
}
