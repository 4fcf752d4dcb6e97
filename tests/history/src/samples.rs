//! A sound history in a few lines, for tests that break it in one place each.

use crate::history::History;
use crate::line::{Event, FinalAttempt, Line, Op, Outcome, Saw};
use crate::rules::judge;
use crate::verdict::Verdict;

/// What each participant wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) client: Vec<Line>,
    pub(crate) daemon: Vec<Line>,
    pub(crate) children: Vec<Line>,
    pub(crate) relay: Vec<Line>,
    pub(crate) other: Vec<Line>,
}

impl Run {
    pub(crate) fn judged(&self) -> Verdict {
        let mut history = History::default();
        for (file, lines) in [
            ("client.jsonl", &self.client),
            ("daemon.jsonl", &self.daemon),
            ("children.jsonl", &self.children),
            ("relay.jsonl", &self.relay),
            ("other.jsonl", &self.other),
        ] {
            history.add(file, lines.iter().cloned());
        }
        judge(&history)
    }
}

/// The rule is named, with the task and the lines that show it, and nothing else is found.
pub(crate) fn expect(run: &Run, rule: &str, task: &str, lines: &str) {
    let verdict = run.judged();
    let own = verdict.violations.iter().find(|one| one.rule == rule);
    let told = own.map(ToString::to_string).unwrap_or_default();
    let named = told.starts_with(&format!("{rule} task {task}: ")) && told.contains(lines);
    assert!(named, "wanted {rule} of {task} at {lines}: {verdict}");
}

/// One task of acme: submitted, offered, run, completed, watched and read.
pub(crate) fn sound() -> Run {
    Run {
        client: vec![
            keyed(1, "acme", "first", "b"),
            answer(1, Outcome::Ok, Some("t1"), 1, "queued"),
            watch_opened(1, "acme", "t1", 0),
            watched(1, 1, "submitted", "", "", "queued"),
            watched(1, 2, "offered", "a1", "offered", "queued"),
            read(1, "t1", "a1", 0, "one\n"),
            read(1, "t1", "a1", 4, "two\n"),
            read_end(1, "a1", 8),
        ],
        daemon: vec![
            offered("acme", "t1", "a1"),
            line(
                "daemon",
                Saw::Confirmed {
                    task: "t1".into(),
                    attempt: "a1".into(),
                },
            ),
            sent("t1", "a1"),
            acked("a1"),
        ],
        children: vec![
            began("a1", 7),
            wrote("one\n"),
            wrote("two\n"),
            ended("a1", 7),
        ],
        relay: vec![
            record("acme", "t1", "completed", &[("a1", 1, "completed")]),
            timeline("t1", 1, "submitted", "", "", "queued"),
            timeline("t1", 2, "offered", "a1", "offered", "queued"),
            timeline("t1", 3, "confirmed", "a1", "accepted", "running"),
            timeline("t1", 4, "ended", "a1", "completed", "completed"),
        ],
        ..Run::default()
    }
}

pub(crate) fn line(who: &str, saw: Saw) -> Line {
    Line {
        at: 0,
        who: who.into(),
        saw,
    }
}

pub(crate) fn call(call: u64, op: Op, tenant: &str, task: Option<&str>) -> Line {
    let saw = Saw::Call {
        call,
        op,
        tenant: tenant.into(),
        task: task.map(Into::into),
        key: None,
        body: None,
    };
    Line {
        at: call * 10,
        who: "client".into(),
        saw,
    }
}

pub(crate) fn keyed(number: u64, tenant: &str, with: &str, meaning: &str) -> Line {
    let mut line = call(number, Op::Submit, tenant, None);
    if let Saw::Call { key, body, .. } = &mut line.saw {
        (*key, *body) = (Some(with.into()), Some(meaning.into()));
    }
    line
}

pub(crate) fn answer(
    call: u64,
    outcome: Outcome,
    task: Option<&str>,
    revision: u64,
    state: &str,
) -> Line {
    let saw = Saw::Answer {
        call,
        outcome,
        task: task.map(Into::into),
        revision: (revision > 0).then_some(revision),
        state: (revision > 0).then(|| state.into()),
        code: None,
        already: false,
    };
    Line {
        at: call * 10 + 5,
        who: "client".into(),
        saw,
    }
}

fn event(revision: u64, kind: &str, attempt: &str, state: &str, task_state: &str) -> Event {
    Event {
        revision,
        kind: kind.into(),
        attempt: attempt.into(),
        state: state.into(),
        task_state: task_state.into(),
    }
}

pub(crate) fn watch_opened(watch: u64, tenant: &str, task: &str, after: u64) -> Line {
    let saw = Saw::WatchOpened {
        watch,
        tenant: tenant.into(),
        task: task.into(),
        after,
    };
    line("client", saw)
}

pub(crate) fn watched(
    watch: u64,
    revision: u64,
    kind: &str,
    attempt: &str,
    state: &str,
    task_state: &str,
) -> Line {
    let event = event(revision, kind, attempt, state, task_state);
    line("client", Saw::Watched { watch, event })
}

pub(crate) fn timeline(
    task: &str,
    revision: u64,
    kind: &str,
    attempt: &str,
    state: &str,
    task_state: &str,
) -> Line {
    let event = event(revision, kind, attempt, state, task_state);
    let task = task.into();
    line("relay", Saw::Timeline { task, event })
}

pub(crate) fn record(
    tenant: &str,
    task: &str,
    state: &str,
    attempts: &[(&str, u32, &str)],
) -> Line {
    let attempts = attempts
        .iter()
        .map(|(attempt, number, state)| FinalAttempt {
            attempt: (*attempt).into(),
            number: *number,
            state: (*state).into(),
        });
    let saw = Saw::Record {
        tenant: tenant.into(),
        task: task.into(),
        revision: 4,
        state: state.into(),
        attempts: attempts.collect(),
    };
    line("relay", saw)
}

pub(crate) fn offered(tenant: &str, task: &str, attempt: &str) -> Line {
    let saw = Saw::Offered {
        tenant: tenant.into(),
        task: task.into(),
        attempt: attempt.into(),
    };
    line("daemon", saw)
}

pub(crate) fn sent(task: &str, attempt: &str) -> Line {
    let saw = Saw::Sent {
        task: task.into(),
        attempt: attempt.into(),
        seq: 3,
        word: "complete".into(),
    };
    line("daemon", saw)
}

pub(crate) fn acked(attempt: &str) -> Line {
    let attempt = attempt.into();
    line("daemon", Saw::Acked { attempt, seq: 3 })
}

pub(crate) fn began(attempt: &str, pid: u32) -> Line {
    let attempt = attempt.into();
    let started = u64::from(pid);
    line(
        "children",
        Saw::Began {
            attempt,
            pid,
            started,
        },
    )
}

pub(crate) fn ended(attempt: &str, pid: u32) -> Line {
    let attempt = attempt.into();
    let started = u64::from(pid);
    line(
        "children",
        Saw::Ended {
            attempt,
            pid,
            started,
        },
    )
}

fn wrote(text: &str) -> Line {
    let saw = Saw::Wrote {
        attempt: "a1".into(),
        text: text.into(),
    };
    line("children", saw)
}

pub(crate) fn read(reading: u64, task: &str, attempt: &str, offset: u64, text: &str) -> Line {
    let saw = Saw::Read {
        reading,
        tenant: "acme".into(),
        task: task.into(),
        attempt: attempt.into(),
        offset,
        text: text.into(),
    };
    line("client", saw)
}

pub(crate) fn read_cut(reading: u64, attempt: &str, offset: u64, length: u64) -> Line {
    let saw = Saw::ReadCut {
        reading,
        attempt: attempt.into(),
        offset,
        length,
    };
    line("client", saw)
}

pub(crate) fn read_end(reading: u64, attempt: &str, offset: u64) -> Line {
    let saw = Saw::ReadEnd {
        reading,
        attempt: attempt.into(),
        offset,
        complete: true,
    };
    line("client", saw)
}
