//! S11: a watch returns each event of its task once, in order, from the revision it was opened
//! at.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history_line::Observation;
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut watches = BTreeMap::new();
    for located in &indexed.history.located_lines {
        let who = located.line.who.as_str();
        match &located.line.observation {
            Observation::WatchOpened {
                watch, task, after, ..
            } => {
                watches.insert((who, *watch), (task.as_str(), *after, located));
            }
            Observation::Watched { watch, event } => {
                let Some((task, at, last)) = watches.get_mut(&(who, *watch)) else {
                    let what = format!("watch {watch} returns an event but was never opened");
                    found.push(RuleViolation::new("S11", "", what, &[located]));
                    continue;
                };
                if event.revision != *at + 1 {
                    let what = format!("a watch returns revision {} after {at}", event.revision);
                    found.push(RuleViolation::new("S11", task, what, &[last, located]));
                }
                *at = event.revision;
                *last = located;
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
    fn a_gap_in_a_watch_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(watch_opened(3, "acme", "t1", 0));
        run.client
            .push(watched(3, 1, "submitted", "", "", "queued"));
        run.client
            .push(watched(3, 3, "confirmed", "a1", "accepted", "running"));
        expect_violation(&run, "S11", "t1", "client.jsonl");
    }

    #[test]
    fn a_repeated_event_is_found() {
        let mut run = sample_run::sound_run();
        run.client.push(watch_opened(3, "acme", "t1", 1));
        for _ in 0..2 {
            run.client
                .push(watched(3, 2, "offered", "a1", "offered", "queued"));
        }
        expect_violation(&run, "S11", "t1", "client.jsonl");
    }
}
