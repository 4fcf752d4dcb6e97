//! Limits for concurrent calls, by class and by token. A call counts until its answer is sent,
//! so that a client that does not read, or has no credential, cannot use up the memory or the
//! calls of others.
//!
//! | class | at once | per token | counts until |
//! |---|---|---|---|
//! | health checks | 256 | | the answer; watches are a separate class and cannot displace them |
//! | public (health watch, reflection) | 256 | | one minute of its answer, streams too |
//! | large answers (get, lists, inspect) | 128 | 32 | at most 30 s of its answer |
//! | other unary calls | the configured limit | a quarter of it | the answer |
//! | streams | own limits (`api/request/streams.rs`, connections) | | |
//!
//! A daemon's link is a stream, so busy clients never cause its refusal. An unauthenticated
//! connection outlives its timeout only while it has a public call open, so the limit of public
//! calls also limits the number of such connections.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use baton_core::ids::TokenId;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use prost::Message;
use prost_types::FileDescriptorSet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;
use tower::load_shed::error::Overloaded;
use tower::{BoxError, Layer, Service};

use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::api::request::streams::{KeyedLimit, KeyedPermit};
use crate::auth::connection_peer::UnauthenticatedCall;
use crate::auth::{ConnectionPeer, Principal};

/// Load balancers and supervisors use this call to check whether the relay is alive.
const HEALTH_CHECK_PATH: &str = "/grpc.health.v1.Health/Check";
const PUBLIC_CALLS_MAX: usize = 256;
const PUBLIC_ANSWER_TIME: Duration = Duration::from_secs(60);
const LARGE_ANSWERS_MAX: usize = 128;
const LARGE_ANSWERS_PER_TOKEN: usize = 32;

/// Calls whose answer may reach the maximum message size.
const LARGE_ANSWER_PATHS: &[&str] = &[
    "/baton.v1.Tasks/Get",
    "/baton.v1.Tasks/List",
    "/baton.v1.Tasks/ListBlocked",
    "/baton.v1.Tasks/ListCheckpoints",
    "/baton.v1.Inputs/ListInputs",
    "/baton.v1.Fleet/ListDaemons",
    "/baton.v1.Operator/Inspect",
    "/baton.v1.Operator/ListTokens",
];

/// Permits for one class of calls, with a limit for each token.
#[derive(Clone, Debug)]
struct CallPool {
    permits: Arc<Semaphore>,
    capacity: usize,
    per_token: KeyedLimit<TokenId>,
}

impl CallPool {
    fn new(capacity: usize, per_token: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(capacity)),
            capacity,
            per_token: KeyedLimit::new(per_token),
        }
    }

    fn try_acquire(&self, token: Option<TokenId>) -> Option<CallPoolPermit> {
        let token_permit = token.map(|token| self.per_token.acquire(token));
        let token_permit = token_permit.transpose().ok()?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(CallPoolPermit {
            _permit: permit,
            _token_permit: token_permit,
            unauthenticated_call: None,
        })
    }

    /// Completes when no permit is in use.
    async fn wait_unused(&self) {
        let all = u32::try_from(self.capacity).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await; // Fails only when closed, which never happens.
    }
}

/// A permit of a pool. Dropping it frees the permit.
#[derive(Debug)]
struct CallPoolPermit {
    _permit: OwnedSemaphorePermit,
    _token_permit: Option<KeyedPermit<TokenId>>,
    /// Keeps an unauthenticated connection open until its answer is sent.
    unauthenticated_call: Option<UnauthenticatedCall>,
}

/// The tower layer that limits concurrent calls.
#[derive(Clone, Debug)]
pub(super) struct CallLimitLayer {
    checks: CallPool,
    public: CallPool,
    large: CallPool,
    unary: CallPool,
    streams: Arc<HashSet<String>>,
    answer_time: Duration,
}

impl CallLimitLayer {
    pub(super) fn new(unary_in_flight: usize, answer_time: Duration) -> Self {
        Self {
            checks: CallPool::new(PUBLIC_CALLS_MAX, PUBLIC_CALLS_MAX),
            public: CallPool::new(PUBLIC_CALLS_MAX, PUBLIC_CALLS_MAX),
            large: CallPool::new(LARGE_ANSWERS_MAX, LARGE_ANSWERS_PER_TOKEN),
            unary: CallPool::new(unary_in_flight, unary_in_flight.div_ceil(4)),
            streams: Arc::new(streaming_calls()),
            answer_time,
        }
    }

    /// Completes when no call is being answered. Streams do not count.
    pub(super) async fn wait_answered(&self) {
        self.large.wait_unused().await;
        self.unary.wait_unused().await;
    }

    /// The pool of a call, and the time limit for sending its answer if the call counts until
    /// then. `None` for streams.
    fn pool_for(&self, path: &str, authenticated: bool) -> Option<(&CallPool, Option<Duration>)> {
        if path == HEALTH_CHECK_PATH {
            Some((&self.checks, None))
        } else if !authenticated {
            Some((&self.public, Some(PUBLIC_ANSWER_TIME)))
        } else if self.streams.contains(path) {
            None
        } else if LARGE_ANSWER_PATHS.contains(&path) {
            Some((&self.large, Some(self.answer_time)))
        } else {
            Some((&self.unary, None))
        }
    }
}

/// Paths of the calls that answer with a stream.
fn streaming_calls() -> HashSet<String> {
    let set = FileDescriptorSet::decode(baton_proto::FILE_DESCRIPTOR_SET).unwrap_or_default();
    let mut paths = HashSet::new();
    for file in &set.file {
        for service in &file.service {
            let streams = service.method.iter().filter(|m| m.server_streaming());
            paths.extend(
                streams.map(|m| format!("/{}.{}/{}", file.package(), service.name(), m.name())),
            );
        }
    }
    paths
}

impl<S> Layer<S> for CallLimitLayer {
    type Service = CallLimitService<S>;

    fn layer(&self, inner: S) -> CallLimitService<S> {
        CallLimitService {
            inner,
            limits: self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct CallLimitService<S> {
    inner: S,
    limits: CallLimitLayer,
}

impl<S> Service<Request<Body>> for CallLimitService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let token = request
            .extensions()
            .get::<Principal>()
            .map(|caller| caller.token);
        let Some((pool, time)) = self.limits.pool_for(request.uri().path(), token.is_some()) else {
            return Box::pin(self.inner.call(request));
        };
        let Some(mut permit) = pool.try_acquire(token) else {
            return Box::pin(std::future::ready(Err(Overloaded::new().into())));
        };
        let peer = request.extensions().get::<ConnectionPeer>();
        permit.unauthenticated_call = peer
            .filter(|_| token.is_none())
            .map(ConnectionPeer::begin_call);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(match time {
                Some(time) => response.map(|body| Body::new(TimedBody::new(body, permit, time))),
                None => response,
            })
        })
    }
}

/// A response body that keeps its permit until it is sent, and is dropped when that takes too
/// long. HTTP/2 does not poll the body of a client that does not read, so a separate task
/// watches the time.
struct TimedBody {
    contents: SharedBody,
    _watch: AbortOnDropHandle<()>,
}

type SharedBody = Arc<Mutex<Option<(Body, CallPoolPermit)>>>;

impl TimedBody {
    fn new(body: Body, permit: CallPoolPermit, time: Duration) -> Self {
        let contents: SharedBody = Arc::new(Mutex::new(Some((body, permit))));
        let watched = Arc::clone(&contents);
        let watch = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            lock_body(&watched).take();
        });
        Self {
            contents,
            _watch: AbortOnDropHandle::new(watch),
        }
    }
}

fn lock_body(body: &SharedBody) -> MutexGuard<'_, Option<(Body, CallPoolPermit)>> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut contents = lock_body(&self.contents);
        let Some((body, _)) = contents.as_mut() else {
            return Poll::Ready(Some(Err(status::status(&ApiFault::TimedOut))));
        };
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        lock_body(&self.contents)
            .as_ref()
            .is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let contents = lock_body(&self.contents);
        contents
            .as_ref()
            .map_or_else(SizeHint::default, |(body, _)| body.size_hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_not_counted_and_every_other_call_is() {
        let limits = CallLimitLayer::new(8, Duration::from_secs(1));
        let capacity = |path: &str, authenticated: bool| {
            limits
                .pool_for(path, authenticated)
                .map(|(pool, _)| pool.capacity)
        };
        assert_eq!(capacity("/baton.v1.DaemonLink/Link", true), None);
        assert_eq!(capacity("/baton.v1.Tasks/Watch", true), None);
        assert_eq!(capacity("/baton.v1.Tasks/Submit", true), Some(8));
        assert_eq!(
            capacity("/baton.v1.Tasks/Get", true),
            Some(LARGE_ANSWERS_MAX)
        );
        assert_eq!(
            capacity("/grpc.health.v1.Health/Watch", false),
            Some(PUBLIC_CALLS_MAX)
        );
        for path in LARGE_ANSWER_PATHS {
            let access = crate::auth::permission::access(path);
            assert!(
                matches!(access, crate::auth::permission::RpcAccess::Roles(_)),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn one_token_cannot_take_the_whole_pool_and_dropped_permits_are_free() {
        let pool = CallPool::new(4, 2);
        let token = |n: u128| Some(TokenId(uuid::Uuid::from_u128(n)));
        let own: Vec<_> = (0..2)
            .map(|_| pool.try_acquire(token(1)).unwrap())
            .collect();
        assert!(pool.try_acquire(token(1)).is_none());
        let other = pool.try_acquire(token(2)).unwrap();
        drop((own, other));
        pool.wait_unused().await;
        assert!(pool.try_acquire(token(1)).is_some());
    }
}
