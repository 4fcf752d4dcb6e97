//! Pauses of tasks, tenants and all dispatching, and how the scheduler stands.

use baton_core::effects::{Reply, SchedulerView};
use baton_core::force::Verb;
use baton_core::id::{RequestId, TaskId, TenantId, TenantScope};
use baton_core::input::Input;
use baton_core::record::PauseChange;
use baton_core::reject::Rejection;
use baton_proto::v1;

use super::fault::Fault;
use super::forcing::operate;
use super::operator::all_tenants;
use super::tasks::unexpected;
use super::tokens::shown_scope;
use super::validate::{self, Why, invalid};
use super::{Api, actor, optional_reason, required_reason};
use crate::auth::{AuthFault, Principal, Role};
use crate::wire::timestamp;

impl Api {
    pub(super) async fn pause_target(
        &self,
        who: Principal,
        request: v1::PauseRequest,
    ) -> Result<v1::PauseResponse, Fault> {
        use v1::pause_request::Target;
        let reason = required_reason(&request.reason)?;
        let scope = match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let ask = operate(&who, task, reason, Verb::Pause);
                let already_paused = !self.changes(ask).await?;
                return Ok(v1::PauseResponse { already_paused });
            }
            Target::Tenant(name) => one_tenant(&who, &name)?,
            Target::Scheduler(all) => everything(&who, all)?,
        };
        let by = actor(&who);
        tracing::warn!(by = %by.name, %reason, scope = %shown_scope(&scope), "dispatching is paused");
        let ask = move |request| Input::PauseScheduler {
            request,
            scope,
            by,
            reason,
        };
        let already_paused = !self.changes(ask).await?;
        Ok(v1::PauseResponse { already_paused })
    }

    pub(super) async fn unpause_target(
        &self,
        who: Principal,
        request: v1::UnpauseRequest,
    ) -> Result<v1::UnpauseResponse, Fault> {
        use v1::unpause_request::Target;
        let reason = optional_reason(request.reason)?;
        let outcome = match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let reason = reason.unwrap_or_default();
                self.changes(operate(&who, task, reason, Verb::Unpause))
                    .await
            }
            Target::Tenant(name) => {
                self.unpause_scope(&who, one_tenant(&who, &name)?, reason)
                    .await
            }
            Target::Scheduler(all) => {
                self.unpause_scope(&who, everything(&who, all)?, reason)
                    .await
            }
        };
        // Idempotent: what is not paused is as it should be.
        let was_paused = match outcome {
            Err(Fault::Refused(Rejection::NotPaused)) => false,
            other => other?,
        };
        Ok(v1::UnpauseResponse { was_paused })
    }

    async fn unpause_scope(
        &self,
        who: &Principal,
        scope: TenantScope,
        reason: Option<std::sync::Arc<str>>,
    ) -> Result<bool, Fault> {
        let by = actor(who);
        tracing::warn!(by = %by.name, scope = %shown_scope(&scope), "a pause of dispatching ends");
        let ask = move |request| Input::UnpauseScheduler {
            request,
            scope,
            by,
            reason,
        };
        self.changes(ask).await
    }

    pub(super) async fn scheduler_of(
        &self,
        who: Principal,
    ) -> Result<v1::SchedulerStatusResponse, Fault> {
        let scope = who.scope.clone();
        let ask = move |request| Input::SchedulerStatus { request, scope };
        match self.dispatcher.request(ask).await {
            Ok(Reply::Scheduler(view)) => Ok(shown(*view)),
            other => Err(unexpected(other)),
        }
    }

    /// False where it was so before.
    async fn changes(
        &self,
        ask: impl FnOnce(RequestId) -> Input + Send + 'static,
    ) -> Result<bool, Fault> {
        match self.dispatcher.request(ask).await {
            Ok(Reply::Done | Reply::Task(_)) => Ok(true),
            Ok(Reply::Already) => Ok(false),
            other => Err(unexpected(other)),
        }
    }
}

/// Who belongs to one tenant speaks for that one only.
fn one_tenant(who: &Principal, name: &str) -> Result<TenantScope, Fault> {
    let rule = "use 1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit";
    let tenant =
        TenantId::new(name).ok_or_else(|| invalid("tenant", Why::MalformedName { rule }))?;
    if who.scope.covers(&tenant) {
        Ok(TenantScope::One(tenant))
    } else {
        Err(Fault::ForeignTenant)
    }
}

/// All dispatching belongs to nobody's tenant alone, and stopping it is not an operator's daily work.
fn everything(who: &Principal, all: bool) -> Result<TenantScope, Fault> {
    if !all {
        return Err(invalid("scheduler", Why::Blank).into());
    }
    all_tenants(who)?;
    if who.role != Role::Admin {
        let (role, may) = (who.role, &[Role::Admin][..]);
        return Err(AuthFault::Forbidden { role, may }.into());
    }
    Ok(TenantScope::All)
}

fn shown(view: SchedulerView) -> v1::SchedulerStatusResponse {
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
        pause_changes: view.changes.iter().rev().map(change).collect(),
    }
}

fn change(change: &PauseChange) -> v1::PauseChange {
    v1::PauseChange {
        tenant: shown_scope(&change.scope),
        paused: change.paused,
        by: change.by.to_string(),
        reason: change.reason.to_string(),
        at: Some(timestamp(change.at)),
    }
}
