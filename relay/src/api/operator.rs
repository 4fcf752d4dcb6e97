//! The operators' service. What the calls do stands beside: looking (`inspecting.rs`, `attempts.rs`), verbs (`forcing.rs`,
//! `pausing.rs`), profiles, tokens, care of the data, and who the relay is.

use baton_core::effects::Reply;
use baton_core::id::TenantScope;
use baton_core::input::Input;
use baton_proto::v1;
use baton_proto::v1::operator_server::Operator;
use tonic::{Request, Response, Status, Streaming};

use super::fault::Fault;
use super::streams::Answers;
use super::tasks::unexpected;
use super::{Api, actor, required_reason, unary};
use crate::auth::Principal;

#[tonic::async_trait]
impl Operator for Api {
    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        unary(request, |who, request| self.look_inside(who, request)).await
    }

    async fn list_attempts(
        &self,
        request: Request<v1::ListAttemptsRequest>,
    ) -> Result<Response<v1::ListAttemptsResponse>, Status> {
        unary(request, |who, request| self.attempts_of(who, request)).await
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        unary(request, |who, request| self.release_by_force(who, request)).await
    }

    async fn force_fail(
        &self,
        request: Request<v1::ForceFailRequest>,
    ) -> Result<Response<v1::ForceFailResponse>, Status> {
        unary(request, |who, request| self.fail_by_force(who, request)).await
    }

    async fn complete_task(
        &self,
        request: Request<v1::CompleteTaskRequest>,
    ) -> Result<Response<v1::CompleteTaskResponse>, Status> {
        unary(request, |who, request| self.complete_by_hand(who, request)).await
    }

    async fn scheduler_status(
        &self,
        request: Request<v1::SchedulerStatusRequest>,
    ) -> Result<Response<v1::SchedulerStatusResponse>, Status> {
        unary(request, |who, _| self.scheduler_of(who)).await
    }

    async fn bulk_force(
        &self,
        request: Request<v1::BulkForceRequest>,
    ) -> Result<Response<v1::BulkForceResponse>, Status> {
        unary(request, |who, request| self.force_many(who, request)).await
    }

    async fn retry_task(
        &self,
        request: Request<v1::RetryTaskRequest>,
    ) -> Result<Response<v1::RetryTaskResponse>, Status> {
        unary(request, |who, request| self.retry(who, request)).await
    }

    async fn pause(
        &self,
        request: Request<v1::PauseRequest>,
    ) -> Result<Response<v1::PauseResponse>, Status> {
        unary(request, |who, request| self.pause_target(who, request)).await
    }

    async fn unpause(
        &self,
        request: Request<v1::UnpauseRequest>,
    ) -> Result<Response<v1::UnpauseResponse>, Status> {
        unary(request, |who, request| self.unpause_target(who, request)).await
    }

    async fn release_inherited(
        &self,
        request: Request<v1::ReleaseInheritedRequest>,
    ) -> Result<Response<v1::ReleaseInheritedResponse>, Status> {
        unary(request, |who, request| self.end_hold(who, request)).await
    }

    async fn put_profile(
        &self,
        request: Request<v1::PutProfileRequest>,
    ) -> Result<Response<v1::PutProfileResponse>, Status> {
        unary(request, |who, request| self.keep_profile(who, request)).await
    }

    async fn list_profiles(
        &self,
        request: Request<v1::ListProfilesRequest>,
    ) -> Result<Response<v1::ListProfilesResponse>, Status> {
        unary(request, |who, _| self.list_profiles_of(who)).await
    }

    async fn delete_profile(
        &self,
        request: Request<v1::DeleteProfileRequest>,
    ) -> Result<Response<v1::DeleteProfileResponse>, Status> {
        unary(request, |who, request| self.drop_profile(who, request)).await
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        unary(request, |who, request| self.make_token(who, request)).await
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.list_tokens_of(&who, &request))
        })
        .await
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        unary(request, |who, request| self.end_token(who, request)).await
    }

    async fn export(
        &self,
        request: Request<v1::ExportRequest>,
    ) -> Result<Response<Answers<v1::ExportResponse>>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.export_all(&who, &request))
        })
        .await
    }

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Answers<v1::ImportResponse>>, Status> {
        unary(request, |who, chunks| self.import_all(who, chunks)).await
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<Answers<v1::VerifyResponse>>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.verify_all(&who, &request))
        })
        .await
    }

    async fn relay_info(
        &self,
        request: Request<v1::RelayInfoRequest>,
    ) -> Result<Response<v1::RelayInfoResponse>, Status> {
        unary(request, |who, _| std::future::ready(Ok(self.info(&who)))).await
    }
}

impl Api {
    /// All tenants' work is held alike, so nobody of one tenant alone may let it go.
    async fn end_hold(
        &self,
        who: Principal,
        request: v1::ReleaseInheritedRequest,
    ) -> Result<v1::ReleaseInheritedResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        all_tenants(&who)?;
        let (by, why) = (actor(&who), reason.clone());
        let ask = move |request| Input::ReleaseInherited {
            request,
            by,
            reason,
        };
        match self.dispatcher.request(ask).await {
            Ok(Reply::Released { tasks }) => {
                tracing::warn!(by = %who.name, reason = %why, tasks, "inherited tasks were released");
                Ok(v1::ReleaseInheritedResponse { released: tasks })
            }
            other => Err(unexpected(other)),
        }
    }
}

/// What concerns every tenant is for credentials that reach every tenant.
pub(super) fn all_tenants(who: &Principal) -> Result<(), Fault> {
    match &who.scope {
        TenantScope::One(_) => Err(Fault::OneTenantOnly),
        TenantScope::All => Ok(()),
    }
}
