//! Clients that may not have what they ask for: another tenant's tasks (S9), and a key that means something else (S7).

use std::sync::Arc;

use baton_core::effects::Reply;
use baton_core::force::Verb;
use baton_core::id::{InputId, RequestId, TaskId, TenantId};
use baton_core::input::Input;
use baton_core::record::Decision;
use baton_core::reject::Rejection;
use baton_core::spec::TaskSpec;
use baton_core::time::Mint;

use crate::clients::{Asked, actor};
use crate::operators::operate;
use crate::world::World;

impl World {
    /// A tenant asks for what is not its own, or for what nobody has: it cannot tell the two apart.
    pub(crate) fn probe(&mut self) {
        let Some((tenant, known)) = self.some_task() else {
            return;
        };
        let other = if tenant.as_str() == "acme" {
            "globex"
        } else {
            "acme"
        };
        let tenant = TenantId::new(other).expect("a good name");
        let unknown = TaskId(self.mint.id());
        let task = if self.rng.chance(80) { known } else { unknown };
        let (kind, input) = (self.rng.below(6), InputId(self.mint.id()));
        let request = self.ask(|request| foreign(kind, request, tenant, task, input));
        self.counts.probes += 1;
        self.remember(request, Asked::Foreign);
    }

    pub(crate) fn foreign_answered(&self, outcome: Result<Reply, Rejection>) {
        let refused = matches!(outcome, Err(Rejection::UnknownTask));
        assert!(refused, "S9: a stranger was told {outcome:?}");
    }

    /// A key that was acknowledged stands for what it was given for, for as long as its task is known.
    pub(crate) fn conflict_answered(&mut self, spec: &TaskSpec, outcome: Result<Reply, Rejection>) {
        match outcome {
            Ok(Reply::Submitted { record, created }) => self.submit_acked(spec, &record, created),
            Err(Rejection::IdempotencyConflict) => self.counts.conflicts += 1,
            Ok(_) | Err(_) => {}
        }
    }
}

fn foreign(kind: u64, request: RequestId, tenant: TenantId, task: TaskId, input: InputId) -> Input {
    let by = actor();
    match kind {
        0 => Input::Cancel {
            request,
            tenant,
            task,
            by,
            reason: None,
            finished: None,
        },
        1 => operate(tenant, task, by, Verb::Retry { allow_unsafe: true })(request),
        2 => Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            decision: Decision::Allowed,
            payload: Arc::from(*b"ok"),
            finished: None,
        },
        3 => operate(tenant, task, by, Verb::ForceFail { attempt: None })(request),
        4 => operate(tenant, task, by, Verb::Pause)(request),
        _ => Input::Inspect {
            request,
            tenant,
            task,
        },
    }
}
