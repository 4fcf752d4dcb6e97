//! The `DaemonLink` service: passes an authenticated stream to its session.

use baton_proto::v1;
use baton_proto::v1::daemon_link_server::DaemonLink;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Api, principal};
use crate::session;

#[tonic::async_trait]
impl DaemonLink for Api {
    async fn link(
        &self,
        request: Request<Streaming<v1::DaemonFrame>>,
    ) -> Result<Response<BoxStream<v1::RelayFrame>>, Status> {
        let principal = principal(&request)?;
        let frames = session::serve(
            principal,
            request.into_inner(),
            self.session_context.clone(),
        );
        Ok(Response::new(Box::pin(frames)))
    }
}
