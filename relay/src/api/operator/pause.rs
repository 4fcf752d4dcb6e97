//! Pauses of tasks, tenants and all dispatching, and the scheduler's status.

use baton_core::commands::{PauseOutcome, PauseScheduler, ReadSchedulerStatus, UnpauseScheduler};
use baton_core::ids::{TaskId, TenantId, TenantScope};
use baton_core::io::effects::SchedulerView;
use baton_core::io::rejection::Rejection;
use baton_core::operator::task_operation::TaskOperation;
use baton_core::record::PauseChange;
use baton_proto::v1;

use super::force::operate_command;
use super::require_all_tenants;
use super::tokens::scope_text;
use crate::api::error::fault::ApiFault;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, invalid_field};
use crate::api::wire::timestamp;
use crate::api::{Api, actor, optional_reason, required_reason};
use crate::auth::{AuthFault, Principal, Role};
use crate::dispatcher::RequestRefusal;

impl Api {
    pub(crate) async fn handle_pause(
        &self,
        who: Principal,
        request: v1::PauseRequest,
    ) -> Result<v1::PauseResponse, ApiFault> {
        use v1::pause_request::Target;
        let reason = required_reason(&request.reason)?;
        let scope = match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let pause = operate_command(&who, task, reason, TaskOperation::Pause);
                let paused = self.dispatcher.request(pause).await?;
                return Ok(v1::PauseResponse {
                    already_paused: !paused.changed,
                });
            }
            Target::Tenant(name) => one_tenant_scope(&who, &name)?,
            Target::Scheduler(all) => all_tenants_scope(&who, all)?,
        };
        let by = actor(&who);
        tracing::warn!(by = %by.name, %reason, scope = %scope_text(&scope), "dispatching paused");
        let outcome = self
            .dispatcher
            .request(PauseScheduler { scope, by, reason });
        Ok(v1::PauseResponse {
            already_paused: outcome.await? == PauseOutcome::AlreadyPaused,
        })
    }

    pub(crate) async fn handle_unpause(
        &self,
        who: Principal,
        request: v1::UnpauseRequest,
    ) -> Result<v1::UnpauseResponse, ApiFault> {
        use v1::unpause_request::Target;
        let reason = optional_reason(request.reason)?;
        let outcome = match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let reason = reason.unwrap_or_default();
                let unpause = operate_command(&who, task, reason, TaskOperation::Unpause);
                self.dispatcher.request(unpause).await.map(|_| ())
            }
            Target::Tenant(name) => {
                self.unpause_scope(&who, one_tenant_scope(&who, &name)?, reason)
                    .await
            }
            Target::Scheduler(all) => {
                self.unpause_scope(&who, all_tenants_scope(&who, all)?, reason)
                    .await
            }
        };
        // Idempotent: a target that is not paused is not an error.
        let was_paused = match outcome {
            Err(RequestRefusal::Rejected(Rejection::NotPaused)) => false,
            Err(refusal) => return Err(refusal.into()),
            Ok(()) => true,
        };
        Ok(v1::UnpauseResponse { was_paused })
    }

    async fn unpause_scope(
        &self,
        who: &Principal,
        scope: TenantScope,
        reason: Option<std::sync::Arc<str>>,
    ) -> Result<(), RequestRefusal> {
        let by = actor(who);
        tracing::warn!(by = %by.name, scope = %scope_text(&scope), "dispatching unpaused");
        let unpause = UnpauseScheduler { scope, by, reason };
        self.dispatcher.request(unpause).await
    }

    pub(crate) async fn handle_scheduler_status(
        &self,
        who: Principal,
    ) -> Result<v1::SchedulerStatusResponse, ApiFault> {
        let scope = who.scope.clone();
        let view = self
            .dispatcher
            .request(ReadSchedulerStatus { scope })
            .await?;
        Ok(scheduler_message(*view))
    }
}

/// A caller of one tenant may name only that tenant.
fn one_tenant_scope(who: &Principal, name: &str) -> Result<TenantScope, ApiFault> {
    let rule = "use 1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit";
    let tenant = TenantId::new(name)
        .ok_or_else(|| invalid_field("tenant", InvalidReason::MalformedName { rule }))?;
    if who.scope.covers(&tenant) {
        Ok(TenantScope::One(tenant))
    } else {
        Err(ApiFault::ForeignTenant)
    }
}

/// A pause of all dispatching affects every tenant, so it needs an administrator of all tenants.
fn all_tenants_scope(who: &Principal, all: bool) -> Result<TenantScope, ApiFault> {
    if !all {
        return Err(invalid_field("scheduler", InvalidReason::Blank).into());
    }
    require_all_tenants(who)?;
    if who.role != Role::Admin {
        let (role, may) = (who.role, &[Role::Admin][..]);
        return Err(AuthFault::Forbidden { role, may }.into());
    }
    Ok(TenantScope::All)
}

fn scheduler_message(view: SchedulerView) -> v1::SchedulerStatusResponse {
    v1::SchedulerStatusResponse {
        paused: view.paused.is_some(),
        pause_reason: view
            .paused
            .map(|pause| pause.reason.to_string())
            .unwrap_or_default(),
        open_tasks: view.open,
        open_tasks_limit: view.open_limit,
        queued: view.queued,
        running: view.running,
        pending: view.pending,
        needs_attention: view.needs_attention,
        paused_tasks: view.paused_tasks,
        pending_inputs: view.pending_inputs,
        oldest_queued_ms: view.oldest_queued_ms,
        daemons_online: view.daemons_online,
        free_slots: view.free_slots,
        paused_tenants: view
            .tenants
            .iter()
            .map(|(tenant, _)| tenant.to_string())
            .collect(),
        inherited: view.inherited,
        pause_changes: view.changes.iter().rev().map(pause_change).collect(),
    }
}

fn pause_change(change: &PauseChange) -> v1::PauseChange {
    v1::PauseChange {
        tenant: scope_text(&change.scope),
        paused: change.paused,
        by: change.by.to_string(),
        reason: change.reason.to_string(),
        at: Some(timestamp(change.at)),
    }
}
