//! The tower layer that authenticates every RPC and puts its `Principal` into the request's
//! extensions.
//!
//! It runs before decoding, so an unauthenticated call costs one header parse and one hash.
//! Health and reflection are public: load balancers and tools call them without a credential,
//! and they reveal nothing about tasks.

use std::pin::Pin;
use std::task::{Context, Poll};

use baton_core::ids::TenantId;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use super::permission::{RpcAccess, access};
use super::{AuthFault, ConnectionPeer, Principal, Token, TokenTable};
use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::api::request::unimplemented::unimplemented_rpc;
use crate::api::request::validate::{InvalidReason, invalid_field};

/// Authenticates and authorizes every call.
#[derive(Clone, Debug)]
pub struct AuthLayer {
    tokens: TokenTable,
}

impl AuthLayer {
    pub fn new(tokens: TokenTable) -> Self {
        Self { tokens }
    }

    /// Checks the credential and the role. Returns `None` for a public RPC.
    fn authorize(&self, request: &Request<Body>) -> Result<Option<Principal>, ApiFault> {
        let path = request.uri().path();
        let roles = match access(path) {
            RpcAccess::Public => return Ok(None),
            RpcAccess::Roles(roles) => roles,
            // Only an authenticated caller learns that an RPC does not exist.
            RpcAccess::Unlisted => return Ok(Some(self.authenticate(request)?)),
        };
        let principal = self.authenticate(request)?;
        let role = principal.role;
        if !roles.contains(&role) {
            return Err(AuthFault::Forbidden { role, may: roles }.into());
        }
        match unimplemented_rpc(path) {
            Some(what) => Err(ApiFault::NotImplemented { what }),
            None => Ok(Some(principal)),
        }
    }

    fn authenticate(&self, request: &Request<Body>) -> Result<Principal, ApiFault> {
        let headers = request.headers();
        let principal = bearer_token(headers)
            .and_then(|token| self.tokens.authenticate(&token))
            .ok_or(AuthFault::Unauthenticated)?;
        // The connection counts as authenticated even if this call fails later.
        if let Some(peer) = request.extensions().get::<ConnectionPeer>() {
            peer.mark_authenticated();
        }
        match headers.get(TENANT_HEADER) {
            None => Ok(principal),
            Some(name) => select_tenant(principal, name.to_str().unwrap_or_default()),
        }
    }
}

/// Selects the tenant of a call. Only a credential that covers several tenants can name another
/// than its own.
const TENANT_HEADER: &str = "baton-tenant";

fn select_tenant(mut principal: Principal, name: &str) -> Result<Principal, ApiFault> {
    let rule = "use 1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit";
    let tenant = TenantId::new(name);
    let tenant = tenant
        .ok_or_else(|| invalid_field(TENANT_HEADER, InvalidReason::MalformedName { rule }))?;
    if principal.scope.covers(&tenant) {
        principal.tenant = tenant;
        Ok(principal)
    } else {
        Err(ApiFault::ForeignTenant)
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<Token> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(())?;
    Token::parse(token)
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService {
            inner,
            layer: self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct AuthService<S> {
    inner: S,
    layer: AuthLayer,
}

impl<S> Service<Request<Body>> for AuthService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.layer.authorize(&request) {
            Ok(principal) => {
                // Removed so that no log or span can record the token.
                request.headers_mut().remove(AUTHORIZATION);
                if let Some(principal) = principal {
                    request.extensions_mut().insert(principal);
                }
                Box::pin(self.inner.call(request))
            }
            Err(fault) => {
                let response = status::status(&fault).into_http();
                Box::pin(std::future::ready(Ok(response)))
            }
        }
    }
}
