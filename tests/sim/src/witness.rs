//! A seed's history in the words of `baton-history`, from the places of its clients, daemons, children and relay: the same judge looks at it as at
//! real processes. Off unless somebody asks for a history; it changes nothing of what happens.

use std::collections::BTreeMap;

use baton_core::effects::{Downstream, Reply};
use baton_core::id::{AttemptId, RequestId, TaskId};
use baton_core::input::FrameBody;
use baton_core::record::{EventKind, TaskRecord, TimelineEvent};
use baton_core::reject::Rejection;
use baton_history::{Event, FinalAttempt, History, Line, Op, Outcome, Saw};

use crate::clients::Asked;
use crate::ghosts::Said;
use crate::options::Options;
use crate::world::World;

/// What was seen so far, and which watch of a task is open.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    lines: BTreeMap<String, Vec<Line>>,
    watches: BTreeMap<TaskId, u64>,
    opened: u64,
}

/// What everybody saw under this seed. None for seeds in which data of an earlier time take the place of the relay's: what was acknowledged
/// in between may be gone then, and a history does not say how much.
pub fn history(seed: u64) -> Option<History> {
    let options = Options::of(seed);
    if options.imports {
        return None;
    }
    let mut world = World::new(seed, options, false);
    world.witness = Some(Witness::default());
    world.run();
    let mut history = History::default();
    for (who, lines) in world.witness.unwrap_or_default().lines {
        history.add(&format!("{who}.jsonl"), lines);
    }
    Some(history)
}

impl World {
    pub(crate) fn saw(&mut self, who: &str, saw: impl FnOnce() -> Saw) {
        let at = self.now;
        if let Some(witness) = &mut self.witness {
            let lines = witness.lines.entry(who.to_owned()).or_default();
            let who = who.to_owned();
            let saw = saw();
            lines.push(Line { at, who, saw });
        }
    }

    pub(crate) fn saw_call(&mut self, request: RequestId, asked: &Asked) {
        let (op, task) = match asked {
            Asked::Submit(_) | Asked::Conflict(_) => (Op::Submit, None),
            Asked::Cancel(task) => (Op::Cancel, Some(task.to_string())),
            Asked::Operated(task) => (Op::Force, Some(task.to_string())),
            Asked::Resume(task, _) => (Op::Resume, Some(task.to_string())),
            Asked::Block(task) => (Op::Block, Some(task.to_string())),
            Asked::Progress(task, _) => (Op::Progress, Some(task.to_string())),
            // What agents ask is written down where they do.
            Asked::Foreign
            | Asked::Answer(..)
            | Asked::Agent(_)
            | Asked::Daemons
            | Asked::Other => return,
        };
        let spec = match asked {
            Asked::Submit(spec) | Asked::Conflict(spec) => Some(spec),
            _ => None,
        };
        let tenant = match (spec, asked) {
            (Some(spec), _) => Some(spec.tenant.clone()),
            (
                None,
                Asked::Cancel(task)
                | Asked::Operated(task)
                | Asked::Resume(task, _)
                | Asked::Block(task)
                | Asked::Progress(task, _),
            ) => self
                .relay
                .store
                .view
                .record(*task)
                .map(|record| record.tenant.clone()),
            (None, _) => None,
        };
        let call = Saw::Call {
            call: request.0,
            op,
            tenant: tenant.map(|tenant| tenant.to_string()).unwrap_or_default(),
            task,
            key: spec.and_then(|spec| spec.idempotency_key.clone()),
            body: match asked {
                Asked::Progress(_, item) => Some(item.to_string()),
                _ => spec.map(|spec| spec.prompt.clone()),
            },
        };
        self.saw("clients", || call);
    }

    pub(crate) fn saw_answer(
        &mut self,
        request: RequestId,
        asked: &Asked,
        outcome: &Result<Reply, Rejection>,
    ) {
        let (outcome, record, already, code) = match (asked, outcome) {
            (Asked::Submit(_) | Asked::Conflict(_), Ok(Reply::Submitted { record, created })) => {
                (Outcome::Ok, Some(record), !created, None)
            }
            (
                Asked::Cancel(_) | Asked::Operated(_) | Asked::Resume(..),
                Ok(Reply::Task(record)),
            )
            | (Asked::Block(_) | Asked::Progress(..), Ok(Reply::Progressed { record, .. })) => {
                (Outcome::Ok, Some(record), false, None)
            }
            (Asked::Cancel(_), Ok(Reply::Finished(record))) => {
                (Outcome::Ok, Some(record), true, None)
            }
            (
                Asked::Submit(_)
                | Asked::Conflict(_)
                | Asked::Cancel(_)
                | Asked::Operated(_)
                | Asked::Resume(..)
                | Asked::Block(_)
                | Asked::Progress(..),
                Err(code),
            ) => (Outcome::Fail, None, false, Some(code.as_str().to_owned())),
            _ => return,
        };
        let answer = answer(request.0, outcome, record.map(AsRef::as_ref), code, already);
        self.saw("clients", || answer);
        if let (Asked::Resume(..), Some(newest)) = (asked, record.and_then(|r| r.newest())) {
            let (call, made) = (request.0, newest.id.to_string());
            self.saw("clients", || Saw::Made { call, made });
        }
    }

    pub(crate) fn saw_message(&mut self, daemon: usize, message: &Downstream) {
        let who = format!("daemon-{daemon}");
        match message {
            Downstream::Dispatch(dispatch) => self.saw(&who, || Saw::Offered {
                // Which daemons may serve whom is judged at each offer.
                tenant: "*".to_owned(),
                task: dispatch.to.task.to_string(),
                attempt: dispatch.to.attempt.to_string(),
            }),
            Downstream::LeaseConfirmed { to, .. } => self.saw(&who, || Saw::Confirmed {
                task: to.task.to_string(),
                attempt: to.attempt.to_string(),
            }),
            Downstream::Ack {
                attempt,
                control_seq,
            } => self.saw(&who, || Saw::Acked {
                attempt: attempt.to_string(),
                seq: *control_seq,
            }),
            Downstream::FrameRejected {
                attempt,
                control_seq,
                code,
                ..
            } => self.saw(&who, || Saw::Refused {
                attempt: attempt.to_string(),
                seq: *control_seq,
                code: code.as_str().to_owned(),
            }),
            Downstream::Welcome { .. }
            | Downstream::HeartbeatAck { .. }
            | Downstream::HoldAck { .. }
            | Downstream::Cancel { .. }
            | Downstream::Answer { .. }
            | Downstream::Abandon { .. }
            | Downstream::Drain { .. } => {}
        }
    }

    pub(crate) fn saw_said(&mut self, daemon: usize, said: &Said) {
        let word = match said.body {
            FrameBody::Completed(_) => "complete",
            FrameBody::Errored(_) => "error",
            FrameBody::Canceled(_) => "canceled",
            _ => return,
        };
        self.saw(&format!("daemon-{daemon}"), || Saw::Sent {
            task: said.re.task.to_string(),
            attempt: said.re.attempt.to_string(),
            seq: said.control_seq,
            word: word.to_owned(),
        });
    }

    pub(crate) fn saw_life(&mut self, attempt: AttemptId, begins: bool) {
        let attempt = attempt.to_string();
        let (pid, started) = (1, 0);
        self.saw("children", || {
            if begins {
                Saw::Began {
                    attempt,
                    pid,
                    started,
                }
            } else {
                Saw::Ended {
                    attempt,
                    pid,
                    started,
                }
            }
        });
    }

    /// A relay that went away ends all watches.
    pub(crate) fn saw_watches_end(&mut self) {
        if let Some(witness) = &mut self.witness {
            witness.watches.clear();
        }
    }

    pub(crate) fn saw_event(&mut self, record: &TaskRecord, told: &TimelineEvent, after: u64) {
        let Some(witness) = &mut self.witness else {
            return;
        };
        let known = witness.watches.get(&record.task).copied();
        let watch = known.unwrap_or(witness.opened + 1);
        if known.is_none() {
            witness.opened = watch;
            witness.watches.insert(record.task, watch);
            let (tenant, task) = (record.tenant.to_string(), record.task.to_string());
            self.saw("watchers", || Saw::WatchOpened {
                watch,
                tenant,
                task,
                after,
            });
        }
        let event = event(told);
        self.saw("watchers", || Saw::Watched { watch, event });
    }

    /// What is durable in the end.
    pub(crate) fn saw_records(&mut self) {
        if self.witness.is_none() {
            return;
        }
        let durable = &self.relay.store.durable;
        let removed: Vec<TaskId> = durable.removed.keys().copied().collect();
        let records = durable.live.values().chain(durable.done.values());
        let records: Vec<_> = records.cloned().collect();
        for task in removed {
            let task = task.to_string();
            self.saw("relay", || Saw::Removed { task });
        }
        for record in records {
            for told in &record.timeline.events {
                let task = record.task.to_string();
                self.saw("relay", || Saw::Timeline {
                    task,
                    event: event(told),
                });
            }
            self.saw("relay", || last(&record));
            let goal = self.goal_of(&record);
            self.saw("relay", || goal);
        }
    }
}

/// What came of a call, in whosever's words.
pub(crate) fn answer(
    call: u64,
    outcome: Outcome,
    record: Option<&TaskRecord>,
    code: Option<String>,
    already: bool,
) -> Saw {
    Saw::Answer {
        call,
        outcome,
        task: record.map(|record| record.task.to_string()),
        revision: record.map(|record| record.revision),
        state: record.map(|record| record.state.as_str().to_owned()),
        code,
        already,
    }
}

fn last(record: &TaskRecord) -> Saw {
    let attempts = record.attempts.iter().map(|attempt| FinalAttempt {
        attempt: attempt.id.to_string(),
        number: attempt.number,
        state: attempt.state.name().as_str().to_owned(),
    });
    Saw::Record {
        tenant: record.tenant.to_string(),
        task: record.task.to_string(),
        revision: record.revision,
        state: record.state.as_str().to_owned(),
        attempts: attempts.collect(),
    }
}

fn event(told: &TimelineEvent) -> Event {
    let kind = match &told.kind {
        EventKind::Phase(_) => "phase",
        other => other.as_str(),
    };
    Event {
        revision: told.revision,
        kind: kind.to_owned(),
        attempt: told.attempt.map(|id| id.to_string()).unwrap_or_default(),
        state: told
            .state
            .map(|s| s.as_str().to_owned())
            .unwrap_or_default(),
        task_state: told.task_state.as_str().to_owned(),
    }
}
