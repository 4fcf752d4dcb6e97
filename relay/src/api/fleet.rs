//! The daemons as operators see them: those of the caller's tenant and the shared ones.

use std::sync::Arc;

use baton_core::effects::{DaemonView, HeldView, Reply};
use baton_core::fleet::OperateDaemon;
use baton_core::id::{DaemonId, DaemonRef, TenantScope};
use baton_core::input::{Input, MachineLoad};
use baton_core::record::{AgentRecord, DaemonChange, DaemonOperation, Forgotten, Standing};
use baton_core::time::Wall;
use baton_proto::v1::fleet_server::Fleet;
use baton_proto::{ShortName, v1};
use tonic::{Request, Response, Status};

use super::fault::Fault;
use super::tasks::unexpected;
use super::validate::{self, Checked};
use super::{Api, actor, limits, optional_reason, paging, required_reason, tokens, unary};
use crate::auth::Principal;
use crate::dispatcher::Refusal;
use crate::wire::{timestamp, words};

#[tonic::async_trait]
impl Fleet for Api {
    async fn list_daemons(
        &self,
        request: Request<v1::ListDaemonsRequest>,
    ) -> Result<Response<v1::ListDaemonsResponse>, Status> {
        unary(request, |who, request| self.list_daemons_of(who, request)).await
    }

    async fn get_daemon(
        &self,
        request: Request<v1::GetDaemonRequest>,
    ) -> Result<Response<v1::GetDaemonResponse>, Status> {
        unary(request, |who, request| async move {
            let view = self.daemon_view(&who, &request.daemon).await?;
            Ok(v1::GetDaemonResponse {
                daemon: Some(daemon(&view)),
            })
        })
        .await
    }

    async fn drain_daemon(
        &self,
        request: Request<v1::DrainDaemonRequest>,
    ) -> Result<Response<v1::DrainDaemonResponse>, Status> {
        unary(request, |who, request| self.drain(who, request)).await
    }

    async fn undrain_daemon(
        &self,
        request: Request<v1::UndrainDaemonRequest>,
    ) -> Result<Response<v1::UndrainDaemonResponse>, Status> {
        unary(request, |who, request| self.undrain(who, request)).await
    }

    async fn disconnect_daemon(
        &self,
        request: Request<v1::DisconnectDaemonRequest>,
    ) -> Result<Response<v1::DisconnectDaemonResponse>, Status> {
        unary(request, |who, request| self.disconnect(who, request)).await
    }

    async fn forget_daemon(
        &self,
        request: Request<v1::ForgetDaemonRequest>,
    ) -> Result<Response<v1::ForgetDaemonResponse>, Status> {
        unary(request, |who, request| self.forget(who, request)).await
    }
}

impl Api {
    async fn list_daemons_of(
        &self,
        who: Principal,
        request: v1::ListDaemonsRequest,
    ) -> Result<v1::ListDaemonsResponse, Fault> {
        let size = paging::page_size(request.page_size)?;
        validate::count("states", request.states.len(), limits::FILTER_STATES)?;
        let asked = request
            .states
            .iter()
            .map(|number| validate::enumeration("states", *number));
        let states: Vec<v1::DaemonState> = asked.collect::<Checked<_>>()?;
        let conditions: Vec<u8> = states
            .iter()
            .flat_map(|s| (*s as i32).to_be_bytes())
            .collect();
        let paging = self.paging(&who, "daemons", &conditions);
        let after = paging.position(&request.page_token)?;
        let mut views = self.daemon_views(&who).await?;
        views.sort_by_cached_key(position);
        let mut rows = views
            .iter()
            .filter(|view| states.is_empty() || states.contains(&state(view)))
            .filter(|view| after.as_ref().is_none_or(|after| position(view) > *after));
        let page: Vec<_> = rows.by_ref().take(size).collect();
        let more = rows.next().is_some();
        let last = page.last().filter(|_| more);
        Ok(v1::ListDaemonsResponse {
            next_page_token: last
                .map(|view| paging.token(&position(view)))
                .unwrap_or_default(),
            daemons: page.into_iter().map(daemon).collect(),
            forgotten: if request.include_forgotten {
                self.forgotten_of(&who)
            } else {
                Vec::new()
            },
            changes: if request.include_changes {
                self.changes_of(&who)
            } else {
                Vec::new()
            },
        })
    }

    async fn daemon_views(&self, who: &Principal) -> Result<Vec<DaemonView>, Fault> {
        let scope = who.scope.clone();
        let ask = move |request| Input::ListDaemons { request, scope };
        let mut views = match self.dispatcher.request(ask).await {
            Ok(Reply::Daemons(views)) => views,
            other => return Err(unexpected(other)),
        };
        views.iter_mut().for_each(|view| hide_foreign(who, view));
        Ok(views)
    }

    /// By id, or by a name that only one daemon has.
    async fn daemon_view(&self, who: &Principal, named: &str) -> Result<DaemonView, Fault> {
        match self.find_daemon(who, named, true).await? {
            Ok(Reply::Daemon(mut view)) => {
                hide_foreign(who, &mut view);
                Ok(*view)
            }
            other => Err(unexpected(other)),
        }
    }

    pub(super) async fn daemon_named(
        &self,
        who: &Principal,
        name: &str,
    ) -> Result<DaemonId, Fault> {
        match self.find_daemon(who, name, false).await? {
            Ok(Reply::FoundDaemon(daemon)) => Ok(daemon),
            other => Err(unexpected(other)),
        }
    }

    async fn find_daemon(
        &self,
        who: &Principal,
        named: &str,
        shown: bool,
    ) -> Checked<Result<Reply, Refusal>> {
        validate::not_blank("daemon", named, limits::NAME)?;
        let id = named.parse::<DaemonId>();
        let named = id.map_or_else(|_| DaemonRef::Name(named.into()), DaemonRef::Id);
        let scope = who.scope.clone();
        let ask = move |request| Input::FindDaemon {
            request,
            scope,
            named,
            shown,
        };
        Ok(self.dispatcher.request(ask).await)
    }

    async fn drain(
        &self,
        who: Principal,
        request: v1::DrainDaemonRequest,
    ) -> Result<v1::DrainDaemonResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        if request.deadline_ms.is_some() {
            return Err(Fault::NotBuilt {
                what: "DrainDaemon.deadline_ms",
            });
        }
        let daemon = self.daemon_named(&who, &request.daemon).await?;
        let drained = self.daemon_operated(&who, daemon, DaemonOperation::Drain, reason);
        Ok(v1::DrainDaemonResponse {
            daemon: Some(drained.await?),
        })
    }

    async fn undrain(
        &self,
        who: Principal,
        request: v1::UndrainDaemonRequest,
    ) -> Result<v1::UndrainDaemonResponse, Fault> {
        let reason = optional_reason(request.reason)?.unwrap_or_default();
        let daemon = self.daemon_named(&who, &request.daemon).await?;
        let undrained = self.daemon_operated(&who, daemon, DaemonOperation::Undrain, reason);
        Ok(v1::UndrainDaemonResponse {
            daemon: Some(undrained.await?),
        })
    }

    async fn disconnect(
        &self,
        who: Principal,
        request: v1::DisconnectDaemonRequest,
    ) -> Result<v1::DisconnectDaemonResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let view = self.daemon_view(&who, &request.daemon).await?;
        let daemon = view.record.daemon;
        let disconnected = self.daemon_operated(&who, daemon, DaemonOperation::Disconnect, reason);
        Ok(v1::DisconnectDaemonResponse {
            daemon: Some(disconnected.await?),
            was_connected: view.connected.is_some(),
        })
    }

    async fn daemon_operated(
        &self,
        who: &Principal,
        daemon: DaemonId,
        operation: DaemonOperation,
        reason: Arc<str>,
    ) -> Result<v1::Daemon, Fault> {
        let (scope, by) = (drains(who), actor(who));
        tracing::info!(daemon_id = %daemon, by = %by.name, %reason, ?operation, "an operator's word on a daemon");
        let ask = move |request| {
            Input::OperateDaemon(Box::new(OperateDaemon {
                request,
                scope,
                daemon,
                by,
                reason,
                operation,
            }))
        };
        self.daemon_after(ask).await
    }

    async fn forget(
        &self,
        who: Principal,
        request: v1::ForgetDaemonRequest,
    ) -> Result<v1::ForgetDaemonResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let daemon = self.daemon_named(&who, &request.daemon).await?;
        let (scope, by) = (drains(&who), actor(&who));
        tracing::info!(daemon_id = %daemon, by = %by.name, %reason, "a daemon is to be forgotten");
        let ask = move |request| Input::ForgetDaemon {
            request,
            scope,
            daemon,
            by,
            reason,
        };
        Ok(v1::ForgetDaemonResponse {
            daemon: Some(self.daemon_after(ask).await?),
        })
    }

    /// Daemons of the caller that operators had forgotten, newest first.
    fn forgotten_of(&self, who: &Principal) -> Vec<v1::ForgottenDaemon> {
        let record = self.reader.forgotten().unwrap_or_default();
        let newest_first = record.daemons.iter().rev();
        let theirs = newest_first.filter(|one| is_theirs(who, &one.scope));
        theirs.map(forgotten).collect()
    }

    /// What was done to daemons of the caller, newest first.
    fn changes_of(&self, who: &Principal) -> Vec<v1::DaemonChange> {
        let record = self.reader.daemon_changes().unwrap_or_default();
        let newest_first = record.changes.iter().rev();
        let theirs = newest_first.filter(|one| is_theirs(who, &one.scope));
        theirs.map(change).collect()
    }

    async fn daemon_after(
        &self,
        ask: impl FnOnce(baton_core::id::RequestId) -> Input + Send + 'static,
    ) -> Result<v1::Daemon, Fault> {
        match self.dispatcher.request(ask).await {
            Ok(Reply::Daemon(view)) => Ok(daemon(&view)),
            other => Err(unexpected(other)),
        }
    }
}

/// A tenant's operator drains its own daemons; the core refuses the shared ones.
fn drains(who: &Principal) -> TenantScope {
    who.scope.clone()
}

fn is_theirs(who: &Principal, scope: &TenantScope) -> bool {
    match &who.scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => scope.covers(tenant),
    }
}

/// A shared daemon's attempts may be anybody's.
fn hide_foreign(who: &Principal, view: &mut DaemonView) {
    if who.scope != TenantScope::All && view.record.scope == TenantScope::All {
        view.held.clear();
    }
}

/// Lists are by name, then id.
fn position(view: &DaemonView) -> Vec<u8> {
    let mut bytes = view.record.name.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(view.record.daemon.0.as_bytes());
    bytes
}

fn state(view: &DaemonView) -> v1::DaemonState {
    match view {
        view if view.connected.is_none_or(|stream| !stream.greeted) => v1::DaemonState::Offline,
        view if view.draining => v1::DaemonState::Draining,
        view if view.sick => v1::DaemonState::Sick,
        _takes_work => v1::DaemonState::Online,
    }
}

fn forgotten(one: &Forgotten) -> v1::ForgottenDaemon {
    v1::ForgottenDaemon {
        daemon_id: one.daemon.to_string(),
        name: one.name.to_string(),
        tenant: tokens::shown_scope(&one.scope),
        last_seen_at: Some(timestamp(one.last_seen)),
        forgotten_at: Some(timestamp(one.at)),
        by: one.by.to_string(),
        reason: one.reason.to_string(),
    }
}

fn change(one: &DaemonChange) -> v1::DaemonChange {
    let standing = |one: Standing| v1::DaemonStanding {
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
        tenant: tokens::shown_scope(&one.scope),
        operation: operation.into(),
        before: Some(standing(one.before)),
        after: Some(standing(one.after)),
        changed_at: Some(timestamp(one.at)),
        by: one.by.to_string(),
        reason: one.reason.to_string(),
    }
}

fn daemon(view: &DaemonView) -> v1::Daemon {
    let record = &view.record;
    let mark = record.drained.as_ref();
    v1::Daemon {
        daemon_id: record.daemon.to_string(),
        name: record.name.to_string(),
        state: state(view).into(),
        version: record.version.to_string(),
        protocol_version: record.platform.protocol,
        os: record.platform.os.to_string(),
        arch: record.platform.arch.to_string(),
        slots: record.slots,
        free_slots: view.free_slots,
        labels: record.labels.clone(),
        capabilities: record.capabilities.clone(),
        agents: record.agents.iter().map(agent).collect(),
        attempts: view
            .held
            .iter()
            .map(|held| self::held(held, view.now))
            .collect(),
        load: view.load.map(load),
        connected_at: view.connected.map(|stream| timestamp(stream.since)),
        last_heartbeat_at: Some(timestamp(
            view.connected
                .map_or(record.last_seen, |stream| stream.heard),
        )),
        created_at: Some(timestamp(record.first_seen)),
        boot_id: record.boot_id.to_string(),
        consecutive_failures: view.failures,
        drain_reason: mark.map_or_else(String::new, |mark| mark.reason.to_string()),
        drained_by: mark.map_or_else(String::new, |mark| mark.by.to_string()),
        drained_at: mark.map(|mark| timestamp(mark.since)),
        tenant: tokens::shown_scope(&record.scope),
        workspaces: record.workspaces.clone(),
        ..v1::Daemon::default()
    }
}

fn agent(agent: &AgentRecord) -> v1::AgentInfo {
    let kind = v1::AgentKind::from_short_name(&agent.kind);
    v1::AgentInfo {
        name: agent.name.clone(),
        kind: kind.unwrap_or(v1::AgentKind::Unspecified).into(),
        version: agent.version.clone(),
        options: Vec::new(),
        problem: agent.problem.clone().unwrap_or_default(),
    }
}

fn held(held: &HeldView, now: Wall) -> v1::HeldAttempt {
    v1::HeldAttempt {
        task_id: held.task.to_string(),
        attempt_id: held.attempt.to_string(),
        attempt_number: held.number,
        state: words::attempt_state(held.state).into(),
        phase: held.phase.map_or(0, |phase| words::phase(phase).into()),
        agent: held.agent.clone(),
        age_ms: held.since.map_or(0, |since| now.0.saturating_sub(since.0)),
        tool_name: held.tool.as_deref().unwrap_or_default().to_owned(),
    }
}

fn load(load: MachineLoad) -> v1::DaemonLoad {
    v1::DaemonLoad {
        memory_available_percent: load.memory_available_percent,
        load_1m: load.load_1m_milli.map(|milli| milli as f64 / 1_000.0),
        disk_free_percent: load.disk_free_percent,
        unacked_bytes: load.unacked_bytes,
    }
}
