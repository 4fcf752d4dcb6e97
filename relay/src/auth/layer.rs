//! The tower layer that authenticates every RPC and puts its `Principal` into the request's extensions.
//!
//! It runs before decoding, so a stranger costs one header parse and one hash. Health and reflection are public:
//! load balancers and tools ask them without a credential, and they tell nothing about anyone's tasks.

use std::pin::Pin;
use std::task::{Context, Poll};

use baton_core::id::TenantId;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use super::permission::{Access, access};
use super::{AuthFault, Peer, Principal, Token, Tokens};
use crate::api::fault::Fault;
use crate::api::status;
use crate::api::unbuilt::unbuilt;
use crate::api::validate::{Why, invalid};

#[derive(Clone, Debug)]
pub struct AuthLayer {
    tokens: Tokens,
}

impl AuthLayer {
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens }
    }

    /// The caller, or nobody where anybody may call.
    fn admit(&self, request: &Request<Body>) -> Result<Option<Principal>, Fault> {
        let path = request.uri().path();
        let roles = match access(path) {
            Access::Public => return Ok(None),
            Access::Roles(roles) => roles,
            // Whoever asks for what does not exist learns so only with a credential.
            Access::Unlisted => return Ok(Some(self.principal(request)?)),
        };
        let principal = self.principal(request)?;
        let role = principal.role;
        if !roles.contains(&role) {
            return Err(AuthFault::Forbidden { role, may: roles }.into());
        }
        match unbuilt(path) {
            Some(what) => Err(Fault::NotBuilt { what }),
            None => Ok(Some(principal)),
        }
    }

    fn principal(&self, request: &Request<Body>) -> Result<Principal, Fault> {
        let headers = request.headers();
        let principal = bearer(headers)
            .and_then(|token| self.tokens.authenticate(&token))
            .ok_or(AuthFault::Unauthenticated)?;
        // Whatever becomes of the call, the connection is no stranger's.
        if let Some(peer) = request.extensions().get::<Peer>() {
            peer.is_met();
        }
        match headers.get(TENANT_HEADER) {
            None => Ok(principal),
            Some(name) => within(principal, name.to_str().unwrap_or_default()),
        }
    }
}

/// Whoever reaches all tenants says with this which one a call is about; to others it can only name their own.
const TENANT_HEADER: &str = "baton-tenant";

fn within(mut principal: Principal, name: &str) -> Result<Principal, Fault> {
    let rule = "use 1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit";
    let tenant = TenantId::new(name);
    let tenant = tenant.ok_or_else(|| invalid(TENANT_HEADER, Why::MalformedName { rule }))?;
    if principal.scope.covers(&tenant) {
        principal.tenant = tenant;
        Ok(principal)
    } else {
        Err(Fault::ForeignTenant)
    }
}

fn bearer(headers: &HeaderMap) -> Option<Token> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(())?;
    Token::parse(token)
}

impl<S> Layer<S> for AuthLayer {
    type Service = Authenticated<S>;

    fn layer(&self, inner: S) -> Authenticated<S> {
        Authenticated {
            inner,
            auth: self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Authenticated<S> {
    inner: S,
    auth: AuthLayer,
}

impl<S> Service<Request<Body>> for Authenticated<S>
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
        match self.auth.admit(&request) {
            Ok(principal) => {
                // Gone from here on, so that no log or span can pick it up.
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
