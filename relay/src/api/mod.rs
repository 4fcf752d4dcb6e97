//! The clients' side of the relay: gRPC handlers, checks of shape, conversions and errors.
//!
//! Order in every handler: the principal (from the authentication layer), shape, look-up within the principal's tenant,
//! one request to the dispatcher. Nothing here decides about tasks, and a refused request writes nothing.

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

/// Everything the handlers use. Clones share it; one is behind each gRPC service.
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
    /// The relay is going away: streams end, nothing new is taken.
    pub(crate) stop: CancellationToken,
    pub(crate) transfers: DataTransfers,
    pub(crate) space: SpaceStatus,
}

impl Api {
    /// Asked before anything is taken that makes the data grow. What ends work or takes it back is always taken.
    fn check_disk_space(&self) -> Result<(), ApiFault> {
        if self.space.accepts_work() {
            Ok(())
        } else {
            Err(ApiFault::DiskFull)
        }
    }

    /// Reads the store off the async threads: a read may wait for the disk.
    async fn read_store<T: Send + 'static>(
        &self,
        read: impl FnOnce(&RecordReader) -> T + Send + 'static,
    ) -> Result<T, ApiFault> {
        let reader = self.reader.clone();
        let found = tokio::task::spawn_blocking(move || read(&reader)).await;
        let found = found.map_err(|error| {
            tracing::error!(%error, "a read of the store failed");
            ApiFault::Internal
        })?;
        // What was read may be ahead of the disk; nobody is told of it before it is durable.
        self.reader
            .wait_durable()
            .await
            .map_err(|_| ApiFault::Stopping)?;
        Ok(found)
    }
}

/// Runs one unary call: who asks, what they ask, and a fault's one way to become a status.
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

/// The layer put it there; a call without one never reaches a handler that asks.
fn principal<Q>(request: &Request<Q>) -> Result<Principal, Status> {
    let principal = request.extensions().get::<Principal>().cloned();
    principal.ok_or_else(|| {
        tracing::error!("a call reached its handler without a principal");
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

/// Empty is no reason. Without credentials, like all words that are kept about work.
fn optional_reason(reason: String) -> Result<Option<Arc<str>>, ApiFault> {
    let reason = request::validate::optional("reason", reason, request::limits::REASON)?;
    Ok(reason.map(|reason| redaction::redact(&reason).into()))
}

/// Checked before anything is looked up.
fn required_reason(reason: &str) -> Result<Arc<str>, ApiFault> {
    request::validate::not_blank("reason", reason, request::limits::REASON)?;
    Ok(redaction::redact(reason).into())
}
