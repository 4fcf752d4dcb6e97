//! The clients' side of the relay: gRPC handlers, checks of shape, conversions and errors.
//!
//! Order in every handler: the principal (from the authentication layer), shape, look-up within the principal's tenant,
//! one request to the dispatcher. Nothing here decides about tasks, and a refused request writes nothing.

mod agents;
mod answering;
mod asked;
mod attempts;
mod batch;
mod caller_trace;
mod convert;
mod events;
pub(crate) mod fault;
mod fleet;
mod forcing;
mod goals;
mod held;
mod hints;
mod importing;
mod info;
mod inputs;
mod inspecting;
pub mod limits;
mod link;
mod listing;
mod operator;
mod output;
mod paging;
mod pausing;
pub(crate) mod profiles;
pub(crate) mod status;
pub(crate) mod streams;
mod submission;
mod taking;
mod tasks;
pub(crate) mod tokens;
pub(crate) mod transfer;
pub(crate) mod unbuilt;
pub mod validate;
mod watching;

use std::sync::Arc;

use baton_core::config::Config;
use baton_core::input::Actor;
use baton_core::secrets;
use baton_core::time::Wall;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::auth::{Principal, Role, Tokens};
use crate::clock::Clock;
use crate::dispatcher::Dispatcher;
use crate::inbox::Inbox;
use crate::mint::Ids;
use crate::output::OutputLog;
use crate::reader::Reader;
use crate::session::Shell;
use crate::space::Space;
use crate::watch::Watchers;
use fault::Fault;
use streams::LiveStreams;
use transfer::Transfers;

/// Everything the handlers use. Clones share it; one is behind each gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) reader: Reader,
    pub(crate) watchers: Watchers,
    pub(crate) inbox: Inbox,
    pub(crate) output: OutputLog,
    pub(crate) tokens: Tokens,
    pub(crate) clock: Clock,
    pub(crate) ids: Ids,
    pub(crate) config: Arc<Config>,
    pub(crate) shell: Shell,
    pub(crate) streams: LiveStreams,
    pub(crate) started_at: Wall,
    /// The relay is going away: streams end, nothing new is taken.
    pub(crate) stop: CancellationToken,
    pub(crate) transfers: Transfers,
    pub(crate) space: Space,
}

impl Api {
    /// Asked before anything is taken that makes the data grow. What ends work or takes it back is always taken.
    fn admit(&self) -> Result<(), Fault> {
        if self.space.admits() {
            Ok(())
        } else {
            Err(Fault::DiskFull)
        }
    }

    /// Reads the store off the async threads: a read may wait for the disk.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let reader = self.reader.clone();
        let found = tokio::task::spawn_blocking(move || read(&reader)).await;
        let found = found.map_err(|error| {
            tracing::error!(%error, "a read of the store failed");
            Fault::Internal
        })?;
        // What was read may be ahead of the disk; nobody is told of it before it is durable.
        self.reader.settle().await.map_err(|_| Fault::Stopping)?;
        Ok(found)
    }
}

/// Runs one unary call: who asks, what they ask, and a fault's one way to become a status.
async fn unary<Q, A, F>(
    request: Request<Q>,
    call: impl FnOnce(Principal, Q) -> F,
) -> Result<Response<A>, Status>
where
    F: Future<Output = Result<A, Fault>>,
{
    let principal = principal(&request)?;
    let answer = call(principal, request.into_inner()).await;
    answer
        .map(Response::new)
        .map_err(|fault| status::status(&fault))
}

/// The layer put it there; a call without one never reaches a handler that asks.
fn principal<Q>(request: &Request<Q>) -> Result<Principal, Status> {
    let principal = request.extensions().get::<Principal>().cloned();
    principal.ok_or_else(|| {
        tracing::error!("a call reached its handler without a principal");
        status::status(&Fault::Internal)
    })
}

fn actor(principal: &Principal) -> Actor {
    Actor {
        name: principal.name.clone(),
        token: principal.token,
        operator: matches!(principal.role, Role::Admin | Role::Operator),
    }
}

/// Empty is no reason. Without credentials, like all words that are kept about work.
fn optional_reason(reason: String) -> Result<Option<Arc<str>>, Fault> {
    let reason = validate::optional("reason", reason, limits::REASON)?;
    Ok(reason.map(|reason| secrets::without(&reason).into()))
}

/// Checked before anything is looked up.
fn required_reason(reason: &str) -> Result<Arc<str>, Fault> {
    validate::not_blank("reason", reason, limits::REASON)?;
    Ok(secrets::without(reason).into())
}
