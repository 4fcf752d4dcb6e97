//! Clients that request what they may not have: another tenant's tasks (S9), and a key that
//! belongs to another body (S7).

use std::sync::Arc;

use baton_core::commands::{AnswerInput, CancelTask, InspectTask, TaskOperation};
use baton_core::ids::{InputId, TaskId, TenantId};
use baton_core::io::rejection::Rejection;
use baton_core::record::InputDecision;
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;

use crate::clients::operators::operate_task_command;
use crate::clients::sim_clients::{SimClientRequest, client_actor};
use crate::relay::sim_reply::{RequestId, SimOutcome, SimReply};
use crate::simulation::Simulation;

impl Simulation {
    /// A tenant requests a task of another one, or one that does not exist: it cannot
    /// distinguish the two.
    pub(crate) fn probe_foreign_task(&mut self) {
        let Some((tenant, known)) = self.pick_task() else {
            return;
        };
        let other = if tenant.as_str() == "acme" {
            "globex"
        } else {
            "acme"
        };
        let tenant = TenantId::new(other).expect("a good name");
        let unknown = TaskId(self.id_source.new_id());
        let task = if self.rng.chance(80) { known } else { unknown };
        let (kind, input) = (self.rng.below(6), InputId(self.id_source.new_id()));
        let request = self.send_foreign_request(kind, tenant, task, input);
        self.counts.probes += 1;
        self.track_request(request, SimClientRequest::ForeignTask);
    }

    pub(crate) fn check_foreign_reply(&self, outcome: SimOutcome) {
        let refused = matches!(outcome, Err(Rejection::UnknownTask));
        assert!(refused, "S9: a stranger was told {outcome:?}");
    }

    /// An acknowledged key belongs to its first body as long as its task exists.
    pub(crate) fn handle_conflict_reply(&mut self, spec: &TaskSpec, outcome: SimOutcome) {
        match outcome {
            Ok(SimReply::Submitted { record, created }) => {
                self.record_submit_ack(spec, &record, created)
            }
            Err(Rejection::IdempotencyConflict) => self.counts.conflicts += 1,
            Ok(_) | Err(_) => {}
        }
    }

    fn send_foreign_request(
        &mut self,
        kind: u64,
        tenant: TenantId,
        task: TaskId,
        input: InputId,
    ) -> Option<RequestId> {
        let by = client_actor();
        let operation = match kind {
            0 => {
                let cancel = CancelTask {
                    tenant,
                    task,
                    by,
                    reason: None,
                };
                return self.send_request(cancel, SimReply::from);
            }
            1 => TaskOperation::Retry { allow_unsafe: true },
            2 => {
                let answer = AnswerInput {
                    tenant,
                    task,
                    input,
                    by,
                    decision: InputDecision::Allowed,
                    payload: Arc::from(*b"ok"),
                };
                return self.send_request(answer, SimReply::Task);
            }
            3 => TaskOperation::ForceFail { attempt: None },
            4 => TaskOperation::Pause,
            _ => return self.send_request(InspectTask { tenant, task }, SimReply::other),
        };
        self.send_operation(operate_task_command(tenant, task, by, operation))
    }
}
