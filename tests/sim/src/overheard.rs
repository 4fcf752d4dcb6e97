//! What agents without a daemon ask and are told, in the words of histories.

use baton_core::effects::Reply;
use baton_core::goal::GoalWord;
use baton_core::input::HeldVerb;
use baton_core::record::TaskRecord;
use baton_core::reject::Rejection;
use baton_history::{Op, Outcome, Saw};

use crate::calling::{Wish, ends};
use crate::witness::answer;
use crate::world::World;

impl World {
    pub(crate) fn saw_wish(&mut self, agent: usize, call: u64, wish: &Wish) {
        let who = format!("agent-{agent}");
        let tenant = self.alone[agent].agent.tenant.to_string();
        match wish {
            Wish::Held { re, verb, .. } if ends(verb) => self.saw(&who, || Saw::Sent {
                task: re.task.to_string(),
                attempt: re.attempt.to_string(),
                // Calls are not numbered as frames are.
                seq: 0,
                word: word_of(verb).to_owned(),
            }),
            Wish::PickUp { task, .. } => {
                let task = Some(task.to_string());
                self.saw(&who, || asks(call, Op::PickUp, tenant, task));
            }
            Wish::Held { re, verb, .. } => {
                let task = Some(re.task.to_string());
                if let Some(op) = op_of(verb) {
                    self.saw(&who, || asks(call, op, tenant, task));
                }
            }
            Wish::Claim(_) | Wish::Start(_) => {}
        }
    }

    pub(crate) fn saw_wish_answered(
        &mut self,
        agent: usize,
        call: u64,
        wish: &Wish,
        told: &Result<Reply, Rejection>,
    ) {
        let who = format!("agent-{agent}");
        if let Ok(Reply::Granted(Some(grant))) = told {
            let (record, attempt) = (&grant.record, grant.to.attempt.to_string());
            let granted = Saw::Granted {
                tenant: record.tenant.to_string(),
                task: record.task.to_string(),
                attempt: attempt.clone(),
            };
            self.saw(&who, || granted);
            if matches!(wish, Wish::PickUp { .. }) {
                self.saw(&who, || {
                    answer(call, Outcome::Ok, Some(record), None, false)
                });
                self.saw(&who, || Saw::Made {
                    call,
                    made: attempt,
                });
            }
            return;
        }
        let asked = match wish {
            Wish::PickUp { .. } => true,
            Wish::Held { re, verb, .. } if ends(verb) => {
                if told.is_ok() {
                    let attempt = re.attempt.to_string();
                    self.saw(&who, || Saw::Acked { attempt, seq: 0 });
                }
                false
            }
            Wish::Held { verb, .. } => op_of(verb).is_some(),
            Wish::Claim(_) | Wish::Start(_) => false,
        };
        if asked {
            self.saw_told(&who, call, told);
        }
    }

    fn saw_told(&mut self, who: &str, call: u64, told: &Result<Reply, Rejection>) {
        match told {
            Ok(Reply::Progressed { record, .. }) => {
                self.saw(who, || answer(call, Outcome::Ok, Some(record), None, false));
            }
            Ok(Reply::Checkpointed { record, checkpoint }) => {
                self.saw(who, || answer(call, Outcome::Ok, Some(record), None, false));
                let made = checkpoint.number.to_string();
                self.saw(who, || Saw::Made { call, made });
            }
            Err(code) => {
                let code = Some(code.as_str().to_owned());
                self.saw(who, || answer(call, Outcome::Fail, None, code, false));
            }
            Ok(_) => {}
        }
    }

    /// What is kept of a task's goal in the end.
    pub(crate) fn goal_of(&self, record: &TaskRecord) -> Saw {
        let durable = &self.relay.store.durable;
        let progress = durable.progress.get(&record.task);
        let completed = progress.map_or(&[][..], |progress| &progress.completed);
        let checkpoints = durable.checkpoints.keys();
        let checkpoints = checkpoints.filter(|(task, _)| *task == record.task);
        Saw::Goal {
            task: record.task.to_string(),
            completed: completed.iter().map(ToString::to_string).collect(),
            dropped: progress.map_or(0, |progress| progress.completed_truncated),
            checkpoints: checkpoints.map(|(_, number)| *number).collect(),
        }
    }
}

fn asks(call: u64, op: Op, tenant: String, task: Option<String>) -> Saw {
    Saw::Call {
        call,
        op,
        tenant,
        task,
        key: None,
        body: None,
    }
}

fn op_of(verb: &HeldVerb) -> Option<Op> {
    match verb {
        HeldVerb::Goal(GoalWord::Progress(_)) => Some(Op::Progress),
        HeldVerb::Goal(GoalWord::Checkpoint(_)) => Some(Op::Checkpoint),
        HeldVerb::Goal(GoalWord::Block(_))
        | HeldVerb::Renew
        | HeldVerb::Complete(..)
        | HeldVerb::Fail(_)
        | HeldVerb::Release { .. }
        | HeldVerb::Cancel { .. } => None,
    }
}

fn word_of(verb: &HeldVerb) -> &'static str {
    match verb {
        HeldVerb::Complete(..) => "complete",
        HeldVerb::Fail(_) => "error",
        HeldVerb::Cancel { .. } => "canceled",
        HeldVerb::Release { .. } => "released",
        HeldVerb::Goal(_) => "block",
        HeldVerb::Renew => "renew",
    }
}
