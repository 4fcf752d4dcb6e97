//! Tokens: administrators create, list and revoke them. Lists contain no secrets. The table in
//! memory changes only after the record is durable.

use baton_core::ids::{TenantId, TenantScope, TokenId};
use baton_core::time::WallTime;
use baton_proto::v1;

use crate::api::Api;
use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::request::{limits, paging};
use crate::api::wire::timestamp;
use crate::auth::{Principal, Role, Token, TokenRecord};
use crate::reader::RecordReader;
use crate::records;
use crate::store::{KeyRange, RecordKey, RecordKind, StoreChange, StoreReadError};

/// The tenant name of a token for all tenants.
const ALL_TENANTS: &str = "*";

impl Api {
    pub(crate) async fn handle_create_token(
        &self,
        who: Principal,
        request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenResponse, ApiFault> {
        validate::title("name", &request.name, limits::TOKEN_NAME)?;
        let role = parse_role(request.role)?;
        self.check_disk_space()?;
        let agent_scope = parse_agent_scope(role, request.agent_scope)?;
        let ttl_ms = request
            .ttl_ms
            .map(|ms| validate::in_range("ttl_ms", ms, &limits::TOKEN_TTL_MS));
        let ttl_ms = ttl_ms.transpose()?;
        let scope = parse_scope(&who, &request.tenant, role)?;
        let token = Token::generate();
        let now = self.clock.now().wall;
        let record = TokenRecord {
            id: token.id,
            name: request.name,
            scope,
            role,
            agent_scope,
            secret_sha256: token.secret_sha256(),
            created_at: now,
            expires_at: ttl_ms.map(|ms| WallTime(now.0.saturating_add(ms))),
            revoked_at: None,
            created_by: who.name.to_string(),
        };
        self.dispatcher
            .write_records(vec![token_change(&record)])
            .await?;
        let message = token_message(&record);
        self.token_table.insert(record);
        tracing::info!(token_id = %token.id, by = %who.name, role = %role, "token created");
        Ok(v1::CreateTokenResponse {
            token: Some(message),
            secret: Some(v1::Secret {
                value: token.reveal(),
            }),
        })
    }

    pub(crate) fn handle_list_tokens(
        &self,
        who: &Principal,
        request: &v1::ListTokensRequest,
    ) -> Result<v1::ListTokensResponse, ApiFault> {
        let size = paging::page_size(request.page_size)?;
        let paging = self.page_tokens(who, "tokens", &[u8::from(request.include_ended)]);
        let before = paging.position_id(&request.page_token)?.map(TokenId);
        let wall = self.clock.now().wall;
        let listed = self.token_table.list();
        let mut rows = listed
            .iter()
            .rev()
            .filter(|record| can_see_token(who, record))
            .filter(|record| request.include_ended || record.is_usable(wall))
            .filter(|record| before.is_none_or(|before| record.id < before));
        let page: Vec<_> = rows.by_ref().take(size).collect();
        let more = rows.next().is_some();
        let last = page.last().filter(|_| more);
        Ok(v1::ListTokensResponse {
            next_page_token: last
                .map(|r| paging.token(r.id.0.as_bytes()))
                .unwrap_or_default(),
            tokens: page
                .into_iter()
                .map(|record| token_message(record))
                .collect(),
        })
    }

    /// Idempotent: a revoked token keeps its time of revocation.
    pub(crate) async fn handle_revoke_token(
        &self,
        who: Principal,
        request: v1::RevokeTokenRequest,
    ) -> Result<v1::RevokeTokenResponse, ApiFault> {
        let id: TokenId = validate::id("token_id", &request.token_id)?;
        let known = self
            .token_table
            .get(id)
            .filter(|record| can_see_token(&who, record));
        let known = known.ok_or(ApiFault::NotFound(EntityKind::Token))?;
        if known.revoked_at.is_none() {
            let now = self.clock.now().wall;
            let mut ended = TokenRecord::clone(&known);
            ended.revoked_at = Some(now);
            self.dispatcher
                .write_records(vec![token_change(&ended)])
                .await?;
            self.token_table.revoke(id, now);
            tracing::info!(token_id = %id, by = %who.name, "token revoked");
        }
        let after = self.token_table.get(id).unwrap_or(known);
        Ok(v1::RevokeTokenResponse {
            token: Some(token_message(&after)),
        })
    }
}

/// Every stored token, for the table in memory. Unreadable records are skipped and counted.
pub(crate) fn load_tokens(reader: &RecordReader) -> Result<Vec<TokenRecord>, StoreReadError> {
    let mut tokens = Vec::new();
    for tenant in reader.store().tenants()? {
        reader.for_each_record(
            &KeyRange::of_kind(&tenant, RecordKind::Token),
            |_, bytes| {
                records::decode("token", bytes)
                    .map(|token| tokens.push(token))
                    .is_ok()
            },
        )?;
    }
    Ok(tokens)
}

/// The store change that writes a token's record.
pub(crate) fn token_change(record: &TokenRecord) -> StoreChange {
    let key = RecordKey::Token {
        tenant: records::scope_text(&record.scope),
        token: record.id.0,
    };
    StoreChange::Put(key, records::encode(record))
}

/// An administrator of one tenant sees its tokens; an administrator of all tenants sees all.
fn can_see_token(who: &Principal, record: &TokenRecord) -> bool {
    match (&who.scope, &record.scope) {
        (TenantScope::All, _) => true,
        (TenantScope::One(own), TenantScope::One(other)) => own == other,
        (TenantScope::One(_), TenantScope::All) => false,
    }
}

fn parse_scope(who: &Principal, tenant: &str, role: Role) -> Result<TenantScope, ApiFault> {
    let scope = match tenant {
        "" => TenantScope::One(who.tenant.clone()),
        ALL_TENANTS if role.may_span_tenants() => TenantScope::All,
        ALL_TENANTS => {
            return Err(invalid_field("tenant", InvalidReason::Conflict { with: "role" }).into());
        }
        name => TenantScope::One(tenant_id(name)?),
    };
    match (&who.scope, &scope) {
        (TenantScope::All, _) => Ok(scope),
        (TenantScope::One(own), TenantScope::One(requested)) if own == requested => Ok(scope),
        (TenantScope::One(_), _) => Err(ApiFault::ForeignTenant),
    }
}

fn tenant_id(name: &str) -> ValidationResult<TenantId> {
    let rule = "1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit";
    TenantId::new(name)
        .ok_or_else(|| invalid_field("tenant", InvalidReason::MalformedName { rule }))
}

fn parse_agent_scope(role: Role, given: String) -> ValidationResult<Option<String>> {
    let given = validate::optional("agent_scope", given, limits::NAME)?;
    match (role == Role::Agent, &given) {
        (true, None) => Err(invalid_field("agent_scope", InvalidReason::Missing)),
        (false, Some(_)) => Err(invalid_field(
            "agent_scope",
            InvalidReason::Conflict { with: "role" },
        )),
        (true, Some(_)) | (false, None) => Ok(given),
    }
}

fn parse_role(number: i32) -> ValidationResult<Role> {
    match validate::enumeration("role", number)? {
        v1::Role::Unspecified => Err(invalid_field("role", InvalidReason::Missing)),
        v1::Role::Admin => Ok(Role::Admin),
        v1::Role::Operator => Ok(Role::Operator),
        v1::Role::Submitter => Ok(Role::Submitter),
        v1::Role::Answerer => Ok(Role::Answerer),
        v1::Role::Agent => Ok(Role::Agent),
        v1::Role::Daemon => Ok(Role::Daemon),
        v1::Role::ReadOnly => Ok(Role::ReadOnly),
    }
}

pub(crate) fn role_message(role: Role) -> v1::Role {
    match role {
        Role::Admin => v1::Role::Admin,
        Role::Operator => v1::Role::Operator,
        Role::Submitter => v1::Role::Submitter,
        Role::Answerer => v1::Role::Answerer,
        Role::Agent => v1::Role::Agent,
        Role::Daemon => v1::Role::Daemon,
        Role::ReadOnly => v1::Role::ReadOnly,
    }
}

pub(crate) fn scope_text(scope: &TenantScope) -> String {
    match scope {
        TenantScope::One(tenant) => tenant.to_string(),
        TenantScope::All => ALL_TENANTS.to_owned(),
    }
}

fn token_message(record: &TokenRecord) -> v1::Token {
    v1::Token {
        token_id: record.id.to_string(),
        name: record.name.clone(),
        tenant: scope_text(&record.scope),
        role: role_message(record.role).into(),
        agent_scope: record.agent_scope.clone().unwrap_or_default(),
        daemon_id: String::new(),
        created_at: Some(timestamp(record.created_at)),
        expires_at: record.expires_at.map(timestamp),
        revoked_at: record.revoked_at.map(timestamp),
        last_used_at: None,
        created_by: record.created_by.clone(),
    }
}
