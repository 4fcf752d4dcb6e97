//! The `Fleet` service: operators list, drain, disconnect and forget the daemons of their tenant
//! and the shared ones.

use std::sync::Arc;

use baton_core::commands::{FindDaemon, ForgetDaemon, ListDaemons, OperateDaemon, ShowDaemon};
use baton_core::ids::{DaemonId, DaemonRef, TenantScope};
use baton_core::io::effects::{DaemonView, HeldAttemptView};
use baton_core::io::session_input::MachineLoad;
use baton_core::record::{
    AgentRecord, DaemonChange, DaemonCondition, DaemonOperation, ForgottenDaemon,
};
use baton_core::time::WallTime;
use baton_proto::v1::fleet_server::Fleet;
use baton_proto::{ShortName, v1};
use tonic::{Request, Response, Status};

use super::error::fault::ApiFault;
use super::operator::tokens;
use super::request::validate;
use super::request::validate::ValidationResult;
use super::request::{limits, paging};
use super::{Api, actor, optional_reason, required_reason, run_unary};
use crate::api::wire::{enums, timestamp};
use crate::auth::Principal;

#[tonic::async_trait]
impl Fleet for Api {
    async fn list_daemons(
        &self,
        request: Request<v1::ListDaemonsRequest>,
    ) -> Result<Response<v1::ListDaemonsResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_list_daemons(who, request)
        })
        .await
    }

    async fn get_daemon(
        &self,
        request: Request<v1::GetDaemonRequest>,
    ) -> Result<Response<v1::GetDaemonResponse>, Status> {
        run_unary(request, |who, request| async move {
            let view = self.daemon_view(&who, &request.daemon).await?;
            Ok(v1::GetDaemonResponse {
                daemon: Some(daemon_message(&view)),
            })
        })
        .await
    }

    async fn drain_daemon(
        &self,
        request: Request<v1::DrainDaemonRequest>,
    ) -> Result<Response<v1::DrainDaemonResponse>, Status> {
        run_unary(request, |who, request| self.drain(who, request)).await
    }

    async fn undrain_daemon(
        &self,
        request: Request<v1::UndrainDaemonRequest>,
    ) -> Result<Response<v1::UndrainDaemonResponse>, Status> {
        run_unary(request, |who, request| self.undrain(who, request)).await
    }

    async fn disconnect_daemon(
        &self,
        request: Request<v1::DisconnectDaemonRequest>,
    ) -> Result<Response<v1::DisconnectDaemonResponse>, Status> {
        run_unary(request, |who, request| self.disconnect(who, request)).await
    }

    async fn forget_daemon(
        &self,
        request: Request<v1::ForgetDaemonRequest>,
    ) -> Result<Response<v1::ForgetDaemonResponse>, Status> {
        run_unary(request, |who, request| self.forget(who, request)).await
    }
}

impl Api {
    async fn handle_list_daemons(
        &self,
        who: Principal,
        request: v1::ListDaemonsRequest,
    ) -> Result<v1::ListDaemonsResponse, ApiFault> {
        let size = paging::page_size(request.page_size)?;
        validate::count("states", request.states.len(), limits::MAX_FILTER_STATES)?;
        let states = request
            .states
            .iter()
            .map(|number| validate::enumeration("states", *number));
        let states: Vec<v1::DaemonState> = states.collect::<ValidationResult<_>>()?;
        let conditions: Vec<u8> = states
            .iter()
            .flat_map(|s| (*s as i32).to_be_bytes())
            .collect();
        let paging = self.page_tokens(&who, "daemons", &conditions);
        let after = paging.position(&request.page_token)?;
        let mut views = self.daemon_views(&who).await?;
        views.sort_by_cached_key(page_position);
        let mut rows = views
            .iter()
            .filter(|view| states.is_empty() || states.contains(&daemon_state(view)))
            .filter(|view| {
                after
                    .as_ref()
                    .is_none_or(|after| page_position(view) > *after)
            });
        let page: Vec<_> = rows.by_ref().take(size).collect();
        let more = rows.next().is_some();
        let last = page.last().filter(|_| more);
        Ok(v1::ListDaemonsResponse {
            next_page_token: last
                .map(|view| paging.token(&page_position(view)))
                .unwrap_or_default(),
            daemons: page.into_iter().map(daemon_message).collect(),
            forgotten: if request.include_forgotten {
                self.forgotten_daemons(&who)
            } else {
                Vec::new()
            },
            changes: if request.include_changes {
                self.daemon_changes(&who)
            } else {
                Vec::new()
            },
        })
    }

    async fn daemon_views(&self, who: &Principal) -> Result<Vec<DaemonView>, ApiFault> {
        let scope = who.scope.clone();
        let mut views = self.dispatcher.request(ListDaemons { scope }).await?;
        views.iter_mut().for_each(|view| hide_foreign(who, view));
        Ok(views)
    }

    /// Finds the daemon by its id, or by a name that only one daemon has.
    async fn daemon_view(&self, who: &Principal, named: &str) -> Result<DaemonView, ApiFault> {
        let (scope, named) = (who.scope.clone(), daemon_ref(named)?);
        let mut view = self.dispatcher.request(ShowDaemon { scope, named }).await?;
        hide_foreign(who, &mut view);
        Ok(*view)
    }

    pub(super) async fn daemon_id_by_name(
        &self,
        who: &Principal,
        name: &str,
    ) -> Result<DaemonId, ApiFault> {
        let (scope, named) = (who.scope.clone(), daemon_ref(name)?);
        Ok(self.dispatcher.request(FindDaemon { scope, named }).await?)
    }

    async fn drain(
        &self,
        who: Principal,
        request: v1::DrainDaemonRequest,
    ) -> Result<v1::DrainDaemonResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        if request.deadline_ms.is_some() {
            return Err(ApiFault::NotImplemented {
                what: "DrainDaemon.deadline_ms",
            });
        }
        let daemon = self.daemon_id_by_name(&who, &request.daemon).await?;
        let drained = self.operate_daemon(&who, daemon, DaemonOperation::Drain, reason);
        Ok(v1::DrainDaemonResponse {
            daemon: Some(drained.await?),
        })
    }

    async fn undrain(
        &self,
        who: Principal,
        request: v1::UndrainDaemonRequest,
    ) -> Result<v1::UndrainDaemonResponse, ApiFault> {
        let reason = optional_reason(request.reason)?.unwrap_or_default();
        let daemon = self.daemon_id_by_name(&who, &request.daemon).await?;
        let undrained = self.operate_daemon(&who, daemon, DaemonOperation::Undrain, reason);
        Ok(v1::UndrainDaemonResponse {
            daemon: Some(undrained.await?),
        })
    }

    async fn disconnect(
        &self,
        who: Principal,
        request: v1::DisconnectDaemonRequest,
    ) -> Result<v1::DisconnectDaemonResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let view = self.daemon_view(&who, &request.daemon).await?;
        let daemon = view.record.daemon;
        let disconnected = self.operate_daemon(&who, daemon, DaemonOperation::Disconnect, reason);
        Ok(v1::DisconnectDaemonResponse {
            daemon: Some(disconnected.await?),
            was_connected: view.connected.is_some(),
        })
    }

    async fn operate_daemon(
        &self,
        who: &Principal,
        daemon: DaemonId,
        operation: DaemonOperation,
        reason: Arc<str>,
    ) -> Result<v1::Daemon, ApiFault> {
        let (scope, by) = (drain_scope(who), actor(who));
        tracing::info!(daemon_id = %daemon, by = %by.name, %reason, ?operation, "operator command on a daemon");
        let operate = OperateDaemon {
            scope,
            daemon,
            by,
            reason,
            operation,
        };
        let operated = self.dispatcher.request(operate).await?;
        Ok(daemon_message(&operated))
    }

    async fn forget(
        &self,
        who: Principal,
        request: v1::ForgetDaemonRequest,
    ) -> Result<v1::ForgetDaemonResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let daemon = self.daemon_id_by_name(&who, &request.daemon).await?;
        let (scope, by) = (drain_scope(&who), actor(&who));
        tracing::info!(daemon_id = %daemon, by = %by.name, %reason, "operator forgets a daemon");
        let forget = ForgetDaemon {
            scope,
            daemon,
            by,
            reason,
        };
        let forgotten = self.dispatcher.request(forget).await?;
        Ok(v1::ForgetDaemonResponse {
            daemon: Some(daemon_message(&forgotten)),
        })
    }

    /// Forgotten daemons in the caller's scope, newest first.
    fn forgotten_daemons(&self, who: &Principal) -> Vec<v1::ForgottenDaemon> {
        let record = self.reader.forgotten_daemons().unwrap_or_default();
        let newest_first = record.daemons.iter().rev();
        let visible = newest_first.filter(|one| is_in_scope(who, &one.scope));
        visible.map(forgotten_daemon).collect()
    }

    /// Operator commands on daemons in the caller's scope, newest first.
    fn daemon_changes(&self, who: &Principal) -> Vec<v1::DaemonChange> {
        let record = self.reader.daemon_changes().unwrap_or_default();
        let newest_first = record.changes.iter().rev();
        let visible = newest_first.filter(|one| is_in_scope(who, &one.scope));
        visible.map(daemon_change).collect()
    }
}

/// Parses an id; any other text is taken as a name.
fn daemon_ref(named: &str) -> ValidationResult<DaemonRef> {
    validate::not_blank("daemon", named, limits::NAME)?;
    let id = named.parse::<DaemonId>();
    Ok(id.map_or_else(|_| DaemonRef::Name(named.into()), DaemonRef::Id))
}

/// The scope of a command. The core refuses commands of a single tenant on shared daemons.
fn drain_scope(who: &Principal) -> TenantScope {
    who.scope.clone()
}

fn is_in_scope(who: &Principal, scope: &TenantScope) -> bool {
    match &who.scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => scope.covers(tenant),
    }
}

/// Removes the attempts of a shared daemon for callers of one tenant: they may belong to other
/// tenants.
fn hide_foreign(who: &Principal, view: &mut DaemonView) {
    if who.scope != TenantScope::All && view.record.scope == TenantScope::All {
        view.held_attempts.clear();
    }
}

/// Lists are sorted by name, then id.
fn page_position(view: &DaemonView) -> Vec<u8> {
    let mut bytes = view.record.name.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(view.record.daemon.0.as_bytes());
    bytes
}

fn daemon_state(view: &DaemonView) -> v1::DaemonState {
    match view {
        view if view.connected.is_none_or(|stream| !stream.heartbeat_seen) => {
            v1::DaemonState::Offline
        }
        view if view.draining => v1::DaemonState::Draining,
        view if view.is_sick => v1::DaemonState::Sick,
        _takes_work => v1::DaemonState::Online,
    }
}

fn forgotten_daemon(one: &ForgottenDaemon) -> v1::ForgottenDaemon {
    v1::ForgottenDaemon {
        daemon_id: one.daemon.to_string(),
        name: one.name.to_string(),
        tenant: tokens::scope_text(&one.scope),
        last_seen_at: Some(timestamp(one.last_seen)),
        forgotten_at: Some(timestamp(one.at)),
        by: one.by.to_string(),
        reason: one.reason.to_string(),
    }
}

fn daemon_change(one: &DaemonChange) -> v1::DaemonChange {
    let condition = |one: DaemonCondition| v1::DaemonStanding {
        drained: one.drained,
        connected: one.connected,
    };
    let operation = match one.operation {
        DaemonOperation::Drain => v1::DaemonOperation::Drain,
        DaemonOperation::Undrain => v1::DaemonOperation::Undrain,
        DaemonOperation::Disconnect => v1::DaemonOperation::Disconnect,
    };
    v1::DaemonChange {
        daemon_id: one.daemon.to_string(),
        name: one.name.to_string(),
        tenant: tokens::scope_text(&one.scope),
        operation: operation.into(),
        before: Some(condition(one.before)),
        after: Some(condition(one.after)),
        changed_at: Some(timestamp(one.at)),
        by: one.by.to_string(),
        reason: one.reason.to_string(),
    }
}

fn daemon_message(view: &DaemonView) -> v1::Daemon {
    let record = &view.record;
    let drain = record.drained.as_ref();
    v1::Daemon {
        daemon_id: record.daemon.to_string(),
        name: record.name.to_string(),
        state: daemon_state(view).into(),
        version: record.version.to_string(),
        protocol_version: record.platform.protocol,
        os: record.platform.os.to_string(),
        arch: record.platform.arch.to_string(),
        slots: record.slots,
        free_slots: view.free_slots,
        labels: record.labels.clone(),
        capabilities: record.capabilities.clone(),
        agents: record.agents.iter().map(agent_info).collect(),
        attempts: view
            .held_attempts
            .iter()
            .map(|held| held_attempt(held, view.viewed_at))
            .collect(),
        load: view.load.map(daemon_load),
        connected_at: view.connected.map(|stream| timestamp(stream.since)),
        last_heartbeat_at: Some(timestamp(
            view.connected
                .map_or(record.last_seen, |stream| stream.last_received),
        )),
        created_at: Some(timestamp(record.first_seen)),
        boot_id: record.boot_id.to_string(),
        consecutive_failures: view.consecutive_failures,
        drain_reason: drain.map_or_else(String::new, |drain| drain.reason.to_string()),
        drained_by: drain.map_or_else(String::new, |drain| drain.by.to_string()),
        drained_at: drain.map(|drain| timestamp(drain.since)),
        tenant: tokens::scope_text(&record.scope),
        workspaces: record.workspaces.clone(),
        ..v1::Daemon::default()
    }
}

fn agent_info(agent: &AgentRecord) -> v1::AgentInfo {
    let kind = v1::AgentKind::from_short_name(&agent.kind);
    v1::AgentInfo {
        name: agent.name.clone(),
        kind: kind.unwrap_or(v1::AgentKind::Unspecified).into(),
        version: agent.version.clone(),
        options: Vec::new(),
        problem: agent.problem.clone().unwrap_or_default(),
    }
}

fn held_attempt(held: &HeldAttemptView, now: WallTime) -> v1::HeldAttempt {
    v1::HeldAttempt {
        task_id: held.task.to_string(),
        attempt_id: held.attempt.to_string(),
        attempt_number: held.number,
        state: enums::attempt_state(held.state).into(),
        phase: held.phase.map_or(0, |phase| enums::phase(phase).into()),
        agent: held.agent.clone(),
        age_ms: held.since.map_or(0, |since| now.0.saturating_sub(since.0)),
        tool_name: held.tool.as_deref().unwrap_or_default().to_owned(),
    }
}

fn daemon_load(load: MachineLoad) -> v1::DaemonLoad {
    v1::DaemonLoad {
        memory_available_percent: load.memory_available_percent,
        load_1m: load.load_1m_milli.map(|milli| milli as f64 / 1_000.0),
        disk_free_percent: load.disk_free_percent,
        unacked_bytes: load.unacked_bytes,
    }
}
