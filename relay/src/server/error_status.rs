//! The outermost layer: gives every refusal of the inner layers and of tonic a status with a
//! machine code.
//!
//! The inner layers (authentication, load shedding, limits, timeouts) fail with errors, and
//! tonic itself answers undecodable or oversize messages. Their statuses would have no machine
//! code, so they are replaced here.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{BoxError, Layer, Service};
use tracing::error;

use crate::api::error::fault::ApiFault;
use crate::api::error::status;

const DETAILS_HEADER: &str = "grpc-status-details-bin";

#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorStatusLayer;

impl<S> Layer<S> for ErrorStatusLayer {
    type Service = ErrorStatusService<S>;

    fn layer(&self, inner: S) -> ErrorStatusService<S> {
        ErrorStatusService { inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ErrorStatusService<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for ErrorStatusService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The inner layers are always ready. If one fails, the call itself fails and gets its
        // status.
        self.inner.poll_ready(cx).map(|_| Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.inner.call(request);
        Box::pin(async move {
            Ok(match answer.await {
                Ok(response) => with_machine_code(response),
                Err(error) => status::status(&fault_of(&error)).into_http(),
            })
        })
    }
}

fn fault_of(error: &BoxError) -> ApiFault {
    if error.is::<Overloaded>() {
        ApiFault::Overloaded
    } else if error.is::<Elapsed>() {
        ApiFault::TimedOut
    } else {
        error!(%error, "a server layer failed with an unexpected error");
        ApiFault::Internal
    }
}

/// Replaces an error status without details: tonic made it, before or instead of a handler.
fn with_machine_code(response: Response<Body>) -> Response<Body> {
    let made_by_tonic = refused_by_tonic(response.headers());
    made_by_tonic.map_or(response, |fault| status::status(&fault).into_http())
}

fn refused_by_tonic(headers: &HeaderMap) -> Option<ApiFault> {
    if headers.contains_key(DETAILS_HEADER) {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    match status.code() {
        Code::OutOfRange | Code::ResourceExhausted => Some(ApiFault::MessageTooLarge),
        Code::Unimplemented => Some(ApiFault::UnknownRpc),
        Code::Internal => Some(ApiFault::Undecodable),
        // The other codes of tonic, such as a canceled call, are correct.
        _unchanged => None,
    }
}
