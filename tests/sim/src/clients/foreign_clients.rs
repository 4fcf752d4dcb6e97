//! Clients that request what they may not have: another tenant's tasks (S9), and a key that
//! belongs to another body (S7).

use std::sync::Arc;

use baton_core::ids::{InputId, RequestId, TaskId, TenantId};
use baton_core::io::command::CoreCommand;
use baton_core::io::effects::CoreReply;
use baton_core::io::rejection::Rejection;
use baton_core::operator::task_operation::TaskOperation;
use baton_core::record::InputDecision;
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;

use crate::clients::operators::task_operation_input;
use crate::clients::sim_clients::{SimClientRequest, client_actor};
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
        let request =
            self.send_request(|request| foreign_request(kind, request, tenant, task, input));
        self.counts.probes += 1;
        self.track_request(request, SimClientRequest::ForeignTask);
    }

    pub(crate) fn check_foreign_reply(&self, outcome: Result<CoreReply, Rejection>) {
        let refused = matches!(outcome, Err(Rejection::UnknownTask));
        assert!(refused, "S9: a stranger was told {outcome:?}");
    }

    /// An acknowledged key belongs to its first body as long as its task exists.
    pub(crate) fn handle_conflict_reply(
        &mut self,
        spec: &TaskSpec,
        outcome: Result<CoreReply, Rejection>,
    ) {
        match outcome {
            Ok(CoreReply::Submitted { record, created }) => {
                self.record_submit_ack(spec, &record, created)
            }
            Err(Rejection::IdempotencyConflict) => self.counts.conflicts += 1,
            Ok(_) | Err(_) => {}
        }
    }
}

fn foreign_request(
    kind: u64,
    request: RequestId,
    tenant: TenantId,
    task: TaskId,
    input: InputId,
) -> CoreCommand {
    let by = client_actor();
    match kind {
        0 => CoreCommand::Cancel {
            request,
            tenant,
            task,
            by,
            reason: None,
            finished: None,
        },
        1 => task_operation_input(
            tenant,
            task,
            by,
            TaskOperation::Retry { allow_unsafe: true },
        )(request),
        2 => CoreCommand::Answer {
            request,
            tenant,
            task,
            input,
            by,
            decision: InputDecision::Allowed,
            payload: Arc::from(*b"ok"),
            finished: None,
        },
        3 => task_operation_input(tenant, task, by, TaskOperation::ForceFail { attempt: None })(
            request,
        ),
        4 => task_operation_input(tenant, task, by, TaskOperation::Pause)(request),
        _ => CoreCommand::Inspect {
            request,
            tenant,
            task,
        },
    }
}
