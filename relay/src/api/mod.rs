//! The gRPC API: handlers, request checks, conversions and errors.
//!
//! Every handler works in the same order: the principal (from the authentication layer), checks
//! of the request, lookups within the principal's tenant, one request to the dispatcher.
//! Decisions about tasks are made in the core only, and a refused request writes nothing.

mod agents;
mod daemon_link;
pub(crate) mod error;
mod fleet;
mod inputs;
pub(crate) mod operator;
pub mod request;
mod tasks;
pub(crate) mod wire;

use std::sync::Arc;

use baton_core::config::Config;
use baton_core::io::command::RequestActor;
use baton_core::redaction;
use baton_core::time::WallTime;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::auth::{Principal, Role, TokenTable};
use crate::clock::RelayClock;
use crate::dispatcher::Dispatcher;
use crate::id_source::OrderedIds;
use crate::open_inputs::OpenInputIndex;
use crate::output::OutputLog;
use crate::reader::RecordReader;
use crate::session::SessionContext;
use crate::space::SpaceStatus;
use crate::task_watchers::TaskWatchers;
use error::fault::ApiFault;
use operator::export::DataTransfers;
use request::streams::LiveStreamLimits;

/// The state of all handlers. Clones share it; each gRPC service has one.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: RecordReader,
    pub(crate) watchers: TaskWatchers,
    pub(crate) open_inputs: OpenInputIndex,
    pub(crate) output: OutputLog,
    pub(crate) token_table: TokenTable,
    pub(crate) clock: RelayClock,
    pub(crate) ids: OrderedIds,
    pub(crate) config: Arc<Config>,
    pub(crate) session_context: SessionContext,
    pub(crate) stream_limits: LiveStreamLimits,
    pub(crate) started_at: WallTime,
    /// Cancelled when the relay stops: streams end, and new work is refused.
    pub(crate) stop: CancellationToken,
    pub(crate) transfers: DataTransfers,
    pub(crate) space: SpaceStatus,
}

impl Api {
    /// Called before any request that adds data. Requests that end or cancel work are accepted even
    /// if the disk is full.
    fn check_disk_space(&self) -> Result<(), ApiFault> {
        if self.space.accepts_work() {
            Ok(())
        } else {
            Err(ApiFault::DiskFull)
        }
    }

    /// Reads the store on a blocking thread, because a read may wait for the disk.
    async fn read_store<T: Send + 'static>(
        &self,
        read: impl FnOnce(&RecordReader) -> T + Send + 'static,
    ) -> Result<T, ApiFault> {
        let reader = self.reader.clone();
        let value = tokio::task::spawn_blocking(move || read(&reader)).await;
        let value = value.map_err(|error| {
            tracing::error!(%error, "reading the store failed");
            ApiFault::Internal
        })?;
        // The value may be newer than the last sync. It must be durable before a client sees it.
        self.reader
            .wait_durable()
            .await
            .map_err(|_| ApiFault::Stopping)?;
        Ok(value)
    }
}

/// Runs one unary call with its principal, and converts a fault to a status.
async fn run_unary<Q, A, F>(
    request: Request<Q>,
    call: impl FnOnce(Principal, Q) -> F,
) -> Result<Response<A>, Status>
where
    F: Future<Output = Result<A, ApiFault>>,
{
    let principal = principal(&request)?;
    let answer = call(principal, request.into_inner()).await;
    answer
        .map(Response::new)
        .map_err(|fault| error::status::status(&fault))
}

/// The principal that the authentication layer has set. Calls without one do not reach a handler.
fn principal<Q>(request: &Request<Q>) -> Result<Principal, Status> {
    let principal = request.extensions().get::<Principal>().cloned();
    principal.ok_or_else(|| {
        tracing::error!("call reached its handler without a principal");
        error::status::status(&ApiFault::Internal)
    })
}

fn actor(principal: &Principal) -> RequestActor {
    RequestActor {
        name: principal.name.clone(),
        token: principal.token,
        operator: matches!(principal.role, Role::Admin | Role::Operator),
    }
}

/// An empty reason counts as none. Credentials are redacted, as in all stored texts about tasks.
fn optional_reason(reason: String) -> Result<Option<Arc<str>>, ApiFault> {
    let reason = request::validate::optional("reason", reason, request::limits::REASON)?;
    Ok(reason.map(|reason| redaction::redact(&reason).into()))
}

/// Must be called before any lookup.
fn required_reason(reason: &str) -> Result<Arc<str>, ApiFault> {
    request::validate::not_blank("reason", reason, request::limits::REASON)?;
    Ok(redaction::redact(reason).into())
}
