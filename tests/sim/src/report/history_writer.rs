//! A seed's history in the format of `baton-history`, from the views of its clients, daemons,
//! children and relay, so that the same checker applies as for real processes. Off unless a
//! history is requested; it does not affect the simulation.

use std::collections::BTreeMap;

use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::effects::DaemonMessage;
use baton_core::io::session_input::FrameBody;
use baton_core::record::{TaskRecord, TimelineEvent, TimelineEventKind};
use baton_history::{
    CallOutcome, ClientOperation, FinalAttempt, History, HistoryEvent, HistoryLine, Observation,
};

use crate::clients::sim_clients::SimClientRequest;
use crate::faults::replayed_frames::SentFrame;
use crate::options::SimulationOptions;
use crate::relay::sim_reply::{RequestId, SimOutcome, SimReply};
use crate::simulation::Simulation;

/// The observations so far, and the open watch of each task.
#[derive(Debug, Default)]
pub(crate) struct HistoryWriter {
    lines: BTreeMap<String, Vec<HistoryLine>>,
    watches: BTreeMap<TaskId, u64>,
    watches_opened: u64,
}

/// The observations of all participants under this seed. None for seeds with imports:
/// acknowledged data may be lost then, and a history does not record how much.
pub fn record_history(seed: u64) -> Option<History> {
    let options = SimulationOptions::from_seed(seed);
    if options.imports {
        return None;
    }
    let mut world = Simulation::new(seed, options, false);
    world.history_writer = Some(HistoryWriter::default());
    world.run();
    let mut history = History::default();
    for (who, lines) in world.history_writer.unwrap_or_default().lines {
        history.add(&format!("{who}.jsonl"), lines);
    }
    Some(history)
}

impl Simulation {
    pub(crate) fn record_observation(&mut self, who: &str, saw: impl FnOnce() -> Observation) {
        let at = self.now;
        if let Some(witness) = &mut self.history_writer {
            let lines = witness.lines.entry(who.to_owned()).or_default();
            let who = who.to_owned();
            let saw = saw();
            lines.push(HistoryLine {
                at,
                who,
                observation: saw,
            });
        }
    }

    pub(crate) fn record_client_call(&mut self, request: RequestId, asked: &SimClientRequest) {
        let (op, task) = match asked {
            SimClientRequest::Submit(_) | SimClientRequest::Conflict(_) => {
                (ClientOperation::Submit, None)
            }
            SimClientRequest::Cancel(task) => (ClientOperation::Cancel, Some(task.to_string())),
            SimClientRequest::Operate(task) => (ClientOperation::Force, Some(task.to_string())),
            SimClientRequest::Resume(task, _) => (ClientOperation::Resume, Some(task.to_string())),
            SimClientRequest::Block(task) => (ClientOperation::Block, Some(task.to_string())),
            SimClientRequest::Progress(task, _) => {
                (ClientOperation::Progress, Some(task.to_string()))
            }
            // Agents' calls are recorded separately.
            SimClientRequest::ForeignTask
            | SimClientRequest::Answer(..)
            | SimClientRequest::AgentCall(_)
            | SimClientRequest::ListDaemons
            | SimClientRequest::Other => return,
        };
        let spec = match asked {
            SimClientRequest::Submit(spec) | SimClientRequest::Conflict(spec) => Some(spec),
            _ => None,
        };
        let tenant = match (spec, asked) {
            (Some(spec), _) => Some(spec.tenant.clone()),
            (
                None,
                SimClientRequest::Cancel(task)
                | SimClientRequest::Operate(task)
                | SimClientRequest::Resume(task, _)
                | SimClientRequest::Block(task)
                | SimClientRequest::Progress(task, _),
            ) => self
                .relay
                .store
                .view
                .record(*task)
                .map(|record| record.tenant.clone()),
            (None, _) => None,
        };
        let call = Observation::Call {
            call: request.0,
            op,
            tenant: tenant.map(|tenant| tenant.to_string()).unwrap_or_default(),
            task,
            key: spec.and_then(|spec| spec.idempotency_key.clone()),
            body: match asked {
                SimClientRequest::Progress(_, item) => Some(item.to_string()),
                _ => spec.map(|spec| spec.prompt.clone()),
            },
        };
        self.record_observation("clients", || call);
    }

    pub(crate) fn record_client_answer(
        &mut self,
        request: RequestId,
        asked: &SimClientRequest,
        outcome: &SimOutcome,
    ) {
        let (outcome, record, already, code) = match (asked, outcome) {
            (
                SimClientRequest::Submit(_) | SimClientRequest::Conflict(_),
                Ok(SimReply::Submitted { record, created }),
            ) => (CallOutcome::Ok, Some(record), !created, None),
            (
                SimClientRequest::Cancel(_)
                | SimClientRequest::Operate(_)
                | SimClientRequest::Resume(..),
                Ok(SimReply::Task(record)),
            )
            | (
                SimClientRequest::Block(_) | SimClientRequest::Progress(..),
                Ok(SimReply::Progressed { record, .. }),
            ) => (CallOutcome::Ok, Some(record), false, None),
            (SimClientRequest::Cancel(_), Ok(SimReply::Finished(record))) => {
                (CallOutcome::Ok, Some(record), true, None)
            }
            (
                SimClientRequest::Submit(_)
                | SimClientRequest::Conflict(_)
                | SimClientRequest::Cancel(_)
                | SimClientRequest::Operate(_)
                | SimClientRequest::Resume(..)
                | SimClientRequest::Block(_)
                | SimClientRequest::Progress(..),
                Err(code),
            ) => (
                CallOutcome::Fail,
                None,
                false,
                Some(code.as_str().to_owned()),
            ),
            _ => return,
        };
        let answer =
            answer_observation(request.0, outcome, record.map(AsRef::as_ref), code, already);
        self.record_observation("clients", || answer);
        if let (SimClientRequest::Resume(..), Some(newest)) =
            (asked, record.and_then(|r| r.newest_attempt()))
        {
            let (call, made) = (request.0, newest.id.to_string());
            self.record_observation("clients", || Observation::Made { call, made });
        }
    }

    pub(crate) fn record_daemon_message(&mut self, daemon: usize, message: &DaemonMessage) {
        let who = format!("daemon-{daemon}");
        match message {
            DaemonMessage::Dispatch(dispatch) => {
                self.record_observation(&who, || Observation::Offered {
                    // Which daemons may serve which tenant is checked at each offer.
                    tenant: "*".to_owned(),
                    task: dispatch.to.task.to_string(),
                    attempt: dispatch.to.attempt.to_string(),
                })
            }
            DaemonMessage::LeaseConfirmed { to, .. } => {
                self.record_observation(&who, || Observation::Confirmed {
                    task: to.task.to_string(),
                    attempt: to.attempt.to_string(),
                })
            }
            DaemonMessage::Ack {
                attempt,
                control_seq,
            } => self.record_observation(&who, || Observation::Acked {
                attempt: attempt.to_string(),
                seq: *control_seq,
            }),
            DaemonMessage::FrameRejected {
                attempt,
                control_seq,
                code,
                ..
            } => self.record_observation(&who, || Observation::Refused {
                attempt: attempt.to_string(),
                seq: *control_seq,
                code: code.as_str().to_owned(),
            }),
            DaemonMessage::Welcome { .. }
            | DaemonMessage::HeartbeatAck { .. }
            | DaemonMessage::ExtensionAck { .. }
            | DaemonMessage::Cancel { .. }
            | DaemonMessage::Answer { .. }
            | DaemonMessage::Abandon { .. }
            | DaemonMessage::Drain { .. } => {}
        }
    }

    pub(crate) fn record_sent_frame(&mut self, daemon: usize, said: &SentFrame) {
        let word = match said.body {
            FrameBody::Completed(_) => "complete",
            FrameBody::Errored(_) => "error",
            FrameBody::Canceled(_) => "canceled",
            _ => return,
        };
        self.record_observation(&format!("daemon-{daemon}"), || Observation::Sent {
            task: said.re.task.to_string(),
            attempt: said.re.attempt.to_string(),
            seq: said.control_seq,
            word: word.to_owned(),
        });
    }

    pub(crate) fn record_process_change(&mut self, attempt: AttemptId, begins: bool) {
        let attempt = attempt.to_string();
        let (pid, started) = (1, 0);
        self.record_observation("children", || {
            if begins {
                Observation::Began {
                    attempt,
                    pid,
                    started,
                }
            } else {
                Observation::Ended {
                    attempt,
                    pid,
                    started,
                }
            }
        });
    }

    /// A relay that ended closes all watches.
    pub(crate) fn close_recorded_watches(&mut self) {
        if let Some(witness) = &mut self.history_writer {
            witness.watches.clear();
        }
    }

    pub(crate) fn record_watched_event(
        &mut self,
        record: &TaskRecord,
        told: &TimelineEvent,
        after: u64,
    ) {
        let Some(witness) = &mut self.history_writer else {
            return;
        };
        let known = witness.watches.get(&record.task).copied();
        let watch = known.unwrap_or(witness.watches_opened + 1);
        if known.is_none() {
            witness.watches_opened = watch;
            witness.watches.insert(record.task, watch);
            let (tenant, task) = (record.tenant.to_string(), record.task.to_string());
            self.record_observation("watchers", || Observation::WatchOpened {
                watch,
                tenant,
                task,
                after,
            });
        }
        let event = history_event(told);
        self.record_observation("watchers", || Observation::Watched { watch, event });
    }

    /// The durable state at the end.
    pub(crate) fn record_final_state(&mut self) {
        if self.history_writer.is_none() {
            return;
        }
        let durable = &self.relay.store.durable;
        let removed: Vec<TaskId> = durable.removed.keys().copied().collect();
        let records = durable.live.values().chain(durable.done.values());
        let records: Vec<_> = records.cloned().collect();
        for task in removed {
            let task = task.to_string();
            self.record_observation("relay", || Observation::Removed { task });
        }
        for record in records {
            for told in &record.timeline.events {
                let task = record.task.to_string();
                self.record_observation("relay", || Observation::Timeline {
                    task,
                    event: history_event(told),
                });
            }
            self.record_observation("relay", || final_record(&record));
            let goal = self.goal_observation(&record);
            self.record_observation("relay", || goal);
        }
    }
}

/// The answer to a call, for any participant.
pub(crate) fn answer_observation(
    call: u64,
    outcome: CallOutcome,
    record: Option<&TaskRecord>,
    code: Option<String>,
    already: bool,
) -> Observation {
    Observation::Answer {
        call,
        outcome,
        task: record.map(|record| record.task.to_string()),
        revision: record.map(|record| record.revision),
        state: record.map(|record| record.state.as_str().to_owned()),
        code,
        already,
    }
}

fn final_record(record: &TaskRecord) -> Observation {
    let attempts = record.attempts.iter().map(|attempt| FinalAttempt {
        attempt: attempt.id.to_string(),
        number: attempt.number,
        state: attempt.state.kind().as_str().to_owned(),
    });
    Observation::Record {
        tenant: record.tenant.to_string(),
        task: record.task.to_string(),
        revision: record.revision,
        state: record.state.as_str().to_owned(),
        attempts: attempts.collect(),
    }
}

fn history_event(told: &TimelineEvent) -> HistoryEvent {
    let kind = match &told.kind {
        TimelineEventKind::Phase(_) => "phase",
        other => other.as_str(),
    };
    HistoryEvent {
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
