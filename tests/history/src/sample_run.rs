//! A valid history of a few lines, for tests that break it at one point each.

use crate::history::History;
use crate::history_line::{
    CallOutcome, ClientOperation, FinalAttempt, HistoryEvent, HistoryLine, Observation,
};
use crate::rules::check_history;
use crate::verdict::HistoryVerdict;

/// The lines of each participant.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleRun {
    pub(crate) client: Vec<HistoryLine>,
    pub(crate) daemon: Vec<HistoryLine>,
    pub(crate) children: Vec<HistoryLine>,
    pub(crate) relay: Vec<HistoryLine>,
    pub(crate) other: Vec<HistoryLine>,
}

impl SampleRun {
    pub(crate) fn verdict(&self) -> HistoryVerdict {
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
        check_history(&history)
    }
}

/// Expects this rule to be violated, for this task and at these lines.
pub(crate) fn expect_violation(run: &SampleRun, rule: &str, task: &str, lines: &str) {
    let verdict = run.verdict();
    let own = verdict.violations.iter().find(|one| one.rule == rule);
    let message = own.map(ToString::to_string).unwrap_or_default();
    let named = message.starts_with(&format!("{rule} task {task}: ")) && message.contains(lines);
    assert!(named, "expected {rule} of {task} at {lines}: {verdict}");
}

/// One task of acme: submitted, offered, run, completed, watched and read.
pub(crate) fn sound_run() -> SampleRun {
    SampleRun {
        client: vec![
            submit_with_key(1, "acme", "first", "b"),
            answer(1, CallOutcome::Ok, Some("t1"), 1, "queued"),
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
                Observation::Confirmed {
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
        ..SampleRun::default()
    }
}

pub(crate) fn line(who: &str, saw: Observation) -> HistoryLine {
    HistoryLine {
        at: 0,
        who: who.into(),
        observation: saw,
    }
}

pub(crate) fn call(
    call: u64,
    op: ClientOperation,
    tenant: &str,
    task: Option<&str>,
) -> HistoryLine {
    let saw = Observation::Call {
        call,
        op,
        tenant: tenant.into(),
        task: task.map(Into::into),
        key: None,
        body: None,
    };
    HistoryLine {
        at: call * 10,
        who: "client".into(),
        observation: saw,
    }
}

pub(crate) fn submit_with_key(number: u64, tenant: &str, with: &str, meaning: &str) -> HistoryLine {
    let mut line = call(number, ClientOperation::Submit, tenant, None);
    if let Observation::Call { key, body, .. } = &mut line.observation {
        (*key, *body) = (Some(with.into()), Some(meaning.into()));
    }
    line
}

pub(crate) fn answer(
    call: u64,
    outcome: CallOutcome,
    task: Option<&str>,
    revision: u64,
    state: &str,
) -> HistoryLine {
    let saw = Observation::Answer {
        call,
        outcome,
        task: task.map(Into::into),
        revision: (revision > 0).then_some(revision),
        state: (revision > 0).then(|| state.into()),
        code: None,
        already: false,
    };
    HistoryLine {
        at: call * 10 + 5,
        who: "client".into(),
        observation: saw,
    }
}

fn event(revision: u64, kind: &str, attempt: &str, state: &str, task_state: &str) -> HistoryEvent {
    HistoryEvent {
        revision,
        kind: kind.into(),
        attempt: attempt.into(),
        state: state.into(),
        task_state: task_state.into(),
    }
}

pub(crate) fn watch_opened(watch: u64, tenant: &str, task: &str, after: u64) -> HistoryLine {
    let saw = Observation::WatchOpened {
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
) -> HistoryLine {
    let event = event(revision, kind, attempt, state, task_state);
    line("client", Observation::Watched { watch, event })
}

pub(crate) fn timeline(
    task: &str,
    revision: u64,
    kind: &str,
    attempt: &str,
    state: &str,
    task_state: &str,
) -> HistoryLine {
    let event = event(revision, kind, attempt, state, task_state);
    let task = task.into();
    line("relay", Observation::Timeline { task, event })
}

pub(crate) fn record(
    tenant: &str,
    task: &str,
    state: &str,
    attempts: &[(&str, u32, &str)],
) -> HistoryLine {
    let attempts = attempts
        .iter()
        .map(|(attempt, number, state)| FinalAttempt {
            attempt: (*attempt).into(),
            number: *number,
            state: (*state).into(),
        });
    let saw = Observation::Record {
        tenant: tenant.into(),
        task: task.into(),
        revision: 4,
        state: state.into(),
        attempts: attempts.collect(),
    };
    line("relay", saw)
}

pub(crate) fn offered(tenant: &str, task: &str, attempt: &str) -> HistoryLine {
    let saw = Observation::Offered {
        tenant: tenant.into(),
        task: task.into(),
        attempt: attempt.into(),
    };
    line("daemon", saw)
}

pub(crate) fn sent(task: &str, attempt: &str) -> HistoryLine {
    let saw = Observation::Sent {
        task: task.into(),
        attempt: attempt.into(),
        seq: 3,
        word: "complete".into(),
    };
    line("daemon", saw)
}

pub(crate) fn acked(attempt: &str) -> HistoryLine {
    let attempt = attempt.into();
    line("daemon", Observation::Acked { attempt, seq: 3 })
}

pub(crate) fn began(attempt: &str, pid: u32) -> HistoryLine {
    let attempt = attempt.into();
    let started = u64::from(pid);
    line(
        "children",
        Observation::Began {
            attempt,
            pid,
            started,
        },
    )
}

pub(crate) fn ended(attempt: &str, pid: u32) -> HistoryLine {
    let attempt = attempt.into();
    let started = u64::from(pid);
    line(
        "children",
        Observation::Ended {
            attempt,
            pid,
            started,
        },
    )
}

fn wrote(text: &str) -> HistoryLine {
    let saw = Observation::Wrote {
        attempt: "a1".into(),
        text: text.into(),
    };
    line("children", saw)
}

pub(crate) fn read(
    reading: u64,
    task: &str,
    attempt: &str,
    offset: u64,
    text: &str,
) -> HistoryLine {
    let saw = Observation::Read {
        reading,
        tenant: "acme".into(),
        task: task.into(),
        attempt: attempt.into(),
        offset,
        text: text.into(),
    };
    line("client", saw)
}

pub(crate) fn read_cut(reading: u64, attempt: &str, offset: u64, length: u64) -> HistoryLine {
    let saw = Observation::ReadCut {
        reading,
        attempt: attempt.into(),
        offset,
        length,
    };
    line("client", saw)
}

pub(crate) fn read_end(reading: u64, attempt: &str, offset: u64) -> HistoryLine {
    let saw = Observation::ReadEnd {
        reading,
        attempt: attempt.into(),
        offset,
        complete: true,
    };
    line("client", saw)
}
