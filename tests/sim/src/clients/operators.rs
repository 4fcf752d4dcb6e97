//! Operators: they release, fail, complete and retry tasks by force, and pause tasks, tenants
//! and everything. Some of them exceed the rate limit. Accepted commands are checked when the
//! relay accepts them.

use std::sync::Arc;

use baton_core::commands::{
    OperateDaemon, OperateTask, PauseScheduler, TaskOperation, UnpauseScheduler,
};
use baton_core::ids::{DaemonId, TaskId, TenantId, TenantScope, TokenId};
use baton_core::io::command::RequestActor;
use baton_core::record::{AuditedOperation, DaemonOperation, TaskRecord, TimelineEventKind};
use uuid::Uuid;

use crate::checks::agent_calls::RequestProbe;
use crate::checks::input_effects::StateBefore;
use crate::clients::sim_clients::{SimClientRequest, client_actor};
use crate::relay::sim_reply::{RequestId, SimDelivery, SimEffects, SimReply};
use crate::simulation::Simulation;

/// Commands that one credential may send for one task within a minute.
const MAX_OPERATIONS_PER_MINUTE: usize = 10;
const MINUTE_MS: u64 = 60_000;

/// An accepted command, with the relay's boot and the time.
#[derive(Debug)]
pub(crate) struct AcceptedOperation {
    boot: u64,
    at: u64,
    operator: TokenId,
    task: TaskId,
}

/// A command as it was sent.
#[derive(Debug)]
pub(crate) struct OperationCheck {
    request: RequestId,
    operator: TokenId,
    task: TaskId,
    operation: AuditedOperation,
}

fn audited_operation(operation: &TaskOperation) -> AuditedOperation {
    match operation {
        TaskOperation::ForceRelease { .. } => AuditedOperation::ForceRelease,
        TaskOperation::ForceFail { .. } => AuditedOperation::ForceFail,
        TaskOperation::Retry { .. } => AuditedOperation::Retry,
        TaskOperation::Complete {
            overridden: true, ..
        } => AuditedOperation::CompleteOverridden,
        TaskOperation::Complete {
            overridden: false, ..
        } => AuditedOperation::Complete,
        TaskOperation::Pause => AuditedOperation::Pause,
        TaskOperation::Unpause => AuditedOperation::Unpause,
    }
}

/// The operator of the healing phase, with a name that was not used before.
pub(crate) fn healing_operator(n: u64) -> RequestActor {
    RequestActor {
        name: "olga".into(),
        token: TokenId(Uuid::from_u128(0xbeef << 64 | u128::from(n))),
        operator: true,
    }
}

pub(crate) fn operate_daemon_command(
    daemon: DaemonId,
    by: RequestActor,
    operation: DaemonOperation,
) -> OperateDaemon {
    OperateDaemon {
        scope: TenantScope::All,
        daemon,
        by,
        reason: Arc::from("look"),
        operation,
    }
}

pub(crate) fn operate_task_command(
    tenant: TenantId,
    task: TaskId,
    by: RequestActor,
    operation: TaskOperation,
) -> OperateTask {
    OperateTask {
        tenant,
        task,
        by,
        reason: Arc::from("look"),
        operation,
    }
}

impl Simulation {
    pub(crate) fn send_operation(&mut self, operate: OperateTask) -> Option<RequestId> {
        let (operator, task) = (operate.by.token, operate.task);
        let operation = audited_operation(&operate.operation);
        self.send_probed_request(operate, SimReply::from, |request| {
            Some(RequestProbe::Operation(OperationCheck {
                request,
                operator,
                task,
                operation,
            }))
        })
    }

    pub(crate) fn retry_random_task(&mut self) {
        self.operate_random_task(TaskOperation::Retry { allow_unsafe: true });
    }

    pub(crate) fn force_random_task(&mut self) {
        let verb = match self.rng.below(8) {
            0..=3 => TaskOperation::ForceRelease { attempt: None },
            4..=5 => TaskOperation::ForceFail { attempt: None },
            6 => TaskOperation::Complete {
                overridden: true,
                result: Some(Arc::from(*b"by hand")),
            },
            _ => return self.exceed_operation_limit(),
        };
        self.counts.forced += 1;
        self.operate_random_task(verb);
    }

    fn operate_random_task(&mut self, verb: TaskOperation) {
        if let Some((tenant, task)) = self.pick_task() {
            let operate = operate_task_command(tenant, task, client_actor(), verb);
            let request = self.send_operation(operate);
            self.track_request(request, SimClientRequest::Operate(task));
        }
    }

    /// A faulty script that repeats its command.
    fn exceed_operation_limit(&mut self) {
        let Some((tenant, task)) = self.pick_task() else {
            return;
        };
        for n in 0..MAX_OPERATIONS_PER_MINUTE + 4 {
            let verb = if n % 2 == 0 {
                TaskOperation::Pause
            } else {
                TaskOperation::Unpause
            };
            let operate = operate_task_command(tenant.clone(), task, client_actor(), verb);
            let request = self.send_operation(operate);
            self.track_request(request, SimClientRequest::Other);
        }
    }

    pub(crate) fn pause_randomly(&mut self) {
        let (tenant, kind) = (self.pick_tenant(), self.rng.below(6));
        let (by, reason) = (client_actor(), Arc::from("look"));
        let scope = if kind < 4 {
            TenantScope::One(tenant)
        } else {
            TenantScope::All
        };
        let request = match kind {
            0 => return self.operate_random_task(TaskOperation::Pause),
            1 => return self.operate_random_task(TaskOperation::Unpause),
            2 | 4 => self.send_request(PauseScheduler { scope, by, reason }, SimReply::other),
            _ => {
                let reason = None;
                self.send_request(UnpauseScheduler { scope, by, reason }, SimReply::other)
            }
        };
        self.counts.pauses += 1;
        self.track_request(request, SimClientRequest::Other);
    }

    pub(crate) fn pick_tenant(&mut self) -> TenantId {
        let name = if self.rng.chance(60) {
            "acme"
        } else {
            "globex"
        };
        TenantId::new(name).expect("a good name")
    }

    /// Ends all pauses.
    pub(crate) fn unpause_all(&mut self) {
        let view = &self.relay.store.view;
        let tenants = view.pauses.active_pauses();
        let mut scopes: Vec<TenantScope> = tenants
            .map(|(tenant, _)| TenantScope::One(tenant.clone()))
            .collect();
        if view.scheduler.paused.is_some() {
            scopes.push(TenantScope::All);
        }
        let paused = view.live.values().filter(|r| r.paused.is_some());
        let paused: Vec<_> = paused.map(|r| (r.tenant.clone(), r.task)).collect();
        for scope in scopes {
            let by = healing_operator(self.now);
            let reason = None;
            self.send_request(UnpauseScheduler { scope, by, reason }, SimReply::other);
        }
        for (tenant, task) in paused {
            let by = healing_operator(self.now);
            let operate = operate_task_command(tenant, task, by, TaskOperation::Unpause);
            self.send_operation(operate);
        }
    }

    /// The rate limit holds, and the command is recorded with its operator.
    pub(crate) fn check_operation(&mut self, before: &StateBefore, effects: &SimEffects) {
        let Some(word) = &before.operation else {
            return;
        };
        let reply = effects
            .deliveries
            .iter()
            .find_map(|outgoing| match &outgoing.delivery {
                SimDelivery::Reply { request, outcome } if *request == word.request => {
                    Some(outcome)
                }
                SimDelivery::Reply { .. }
                | SimDelivery::ToSession { .. }
                | SimDelivery::CloseSession { .. }
                | SimDelivery::Published { .. } => None,
            });
        let Some(Ok(reply)) = reply else {
            return;
        };
        if let SimReply::Task(record) = reply {
            let known = has_newest_audit(record, word.operation);
            assert!(
                known,
                "audit: {:?} of {} is not on record",
                word.operation, word.task
            );
        }
        let (boot, at) = (self.relay.boot, self.now);
        let taken = AcceptedOperation {
            boot,
            at,
            operator: word.operator,
            task: word.task,
        };
        self.relay.accepted_operations.push(taken);
        self.relay
            .accepted_operations
            .retain(|taken| taken.boot == boot && at - taken.at < MINUTE_MS);
        let same =
            |taken: &&AcceptedOperation| (taken.operator, taken.task) == (word.operator, word.task);
        let count = self.relay.accepted_operations.iter().filter(same).count();
        assert!(
            count <= MAX_OPERATIONS_PER_MINUTE,
            "limit: {count} words on {} within a minute",
            word.task
        );
    }
}

fn has_newest_audit(record: &TaskRecord, wanted: AuditedOperation) -> bool {
    let events = record.timeline.events.iter().rev();
    let mut audits = events.filter_map(|event| match &event.kind {
        TimelineEventKind::Forced(audit) => Some(audit.operation),
        _other => None,
    });
    audits.next() == Some(wanted)
}
