//! Calls of agents without a daemon and their answers, in the format of histories.

use baton_core::commands::EndAttempt;
use baton_core::goal::progress::GoalReport;
use baton_core::record::TaskRecord;
use baton_history::{CallOutcome, ClientOperation, Observation};

use crate::agents::agent_call::{AgentRequest, SimLeaseVerb, ends_attempt};
use crate::relay::sim_reply::{SimOutcome, SimReply};
use crate::report::history_writer::answer_observation;
use crate::simulation::Simulation;

impl Simulation {
    pub(crate) fn record_agent_request(&mut self, agent: usize, call: u64, wish: &AgentRequest) {
        let who = format!("agent-{agent}");
        let tenant = self.agents[agent].agent.tenant.to_string();
        match wish {
            AgentRequest::LeaseCall { re, verb, .. } if ends_attempt(verb) => self
                .record_observation(&who, || Observation::Sent {
                    task: re.task.to_string(),
                    attempt: re.attempt.to_string(),
                    // Calls have no sequence number, unlike frames.
                    seq: 0,
                    word: terminal_word(verb).to_owned(),
                }),
            AgentRequest::PickUp { task, .. } => {
                let task = Some(task.to_string());
                self.record_observation(&who, || {
                    call_observation(call, ClientOperation::PickUp, tenant, task)
                });
            }
            AgentRequest::LeaseCall { re, verb, .. } => {
                let task = Some(re.task.to_string());
                if let Some(op) = operation_of(verb) {
                    self.record_observation(&who, || call_observation(call, op, tenant, task));
                }
            }
            AgentRequest::Claim(_) | AgentRequest::Start(_) => {}
        }
    }

    pub(crate) fn record_agent_answer(
        &mut self,
        agent: usize,
        call: u64,
        wish: &AgentRequest,
        told: &SimOutcome,
    ) {
        let who = format!("agent-{agent}");
        if let Ok(SimReply::Granted(Some(grant))) = told {
            let (record, attempt) = (&grant.record, grant.to.attempt.to_string());
            let granted = Observation::Granted {
                tenant: record.tenant.to_string(),
                task: record.task.to_string(),
                attempt: attempt.clone(),
            };
            self.record_observation(&who, || granted);
            if matches!(wish, AgentRequest::PickUp { .. }) {
                self.record_observation(&who, || {
                    answer_observation(call, CallOutcome::Ok, Some(record), None, false)
                });
                self.record_observation(&who, || Observation::Made {
                    call,
                    made: attempt,
                });
            }
            return;
        }
        let asked = match wish {
            AgentRequest::PickUp { .. } => true,
            AgentRequest::LeaseCall { re, verb, .. } if ends_attempt(verb) => {
                if told.is_ok() {
                    let attempt = re.attempt.to_string();
                    self.record_observation(&who, || Observation::Acked { attempt, seq: 0 });
                }
                false
            }
            AgentRequest::LeaseCall { verb, .. } => operation_of(verb).is_some(),
            AgentRequest::Claim(_) | AgentRequest::Start(_) => false,
        };
        if asked {
            self.record_agent_outcome(&who, call, told);
        }
    }

    fn record_agent_outcome(&mut self, who: &str, call: u64, told: &SimOutcome) {
        match told {
            Ok(SimReply::Progressed { record, .. }) => {
                self.record_observation(who, || {
                    answer_observation(call, CallOutcome::Ok, Some(record), None, false)
                });
            }
            Ok(SimReply::Checkpointed { record, checkpoint }) => {
                self.record_observation(who, || {
                    answer_observation(call, CallOutcome::Ok, Some(record), None, false)
                });
                let made = checkpoint.number.to_string();
                self.record_observation(who, || Observation::Made { call, made });
            }
            Err(code) => {
                let code = Some(code.as_str().to_owned());
                self.record_observation(who, || {
                    answer_observation(call, CallOutcome::Fail, None, code, false)
                });
            }
            Ok(_) => {}
        }
    }

    /// The stored progress and checkpoints of a task at the end.
    pub(crate) fn goal_observation(&self, record: &TaskRecord) -> Observation {
        let durable = &self.relay.store.durable;
        let progress = durable.progress.get(&record.task);
        let completed = progress.map_or(&[][..], |progress| &progress.completed);
        let checkpoints = durable.checkpoints.keys();
        let checkpoints = checkpoints.filter(|(task, _)| *task == record.task);
        Observation::Goal {
            task: record.task.to_string(),
            completed: completed.iter().map(ToString::to_string).collect(),
            dropped: progress.map_or(0, |progress| progress.completed_truncated),
            checkpoints: checkpoints.map(|(_, number)| *number).collect(),
        }
    }
}

fn call_observation(
    call: u64,
    op: ClientOperation,
    tenant: String,
    task: Option<String>,
) -> Observation {
    Observation::Call {
        call,
        op,
        tenant,
        task,
        key: None,
        body: None,
    }
}

fn operation_of(verb: &SimLeaseVerb) -> Option<ClientOperation> {
    match verb {
        SimLeaseVerb::Goal(GoalReport::Progress(_)) => Some(ClientOperation::Progress),
        SimLeaseVerb::Goal(GoalReport::Checkpoint(_)) => Some(ClientOperation::Checkpoint),
        SimLeaseVerb::Goal(GoalReport::Block(_)) | SimLeaseVerb::Renew | SimLeaseVerb::End(_) => {
            None
        }
    }
}

fn terminal_word(verb: &SimLeaseVerb) -> &'static str {
    match verb {
        SimLeaseVerb::End(EndAttempt::Complete(..)) => "complete",
        SimLeaseVerb::End(EndAttempt::Fail(_)) => "error",
        SimLeaseVerb::End(EndAttempt::Cancel { .. }) => "canceled",
        SimLeaseVerb::End(EndAttempt::Release { .. }) => "released",
        SimLeaseVerb::Goal(_) => "block",
        SimLeaseVerb::Renew => "renew",
    }
}
