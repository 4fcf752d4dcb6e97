//! The `Operator` service. Each module implements one group of calls: views (`inspect.rs`,
//! `attempts.rs`), commands (`force.rs`, `pause.rs`), profiles, tokens, export and import of the
//! data, and information about the relay.

pub(crate) mod attempts;
pub(crate) mod export;
pub(crate) mod force;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod pause;
pub(crate) mod profiles;
pub(crate) mod tokens;

use baton_core::commands::ReleaseInherited;
use baton_core::ids::TenantScope;
use baton_proto::v1;
use baton_proto::v1::operator_server::Operator;
use tonic::{Request, Response, Status, Streaming};

use super::error::fault::ApiFault;
use super::request::streams::ResponseStream;
use super::{Api, actor, required_reason, run_unary};
use crate::auth::Principal;

#[tonic::async_trait]
impl Operator for Api {
    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        run_unary(request, |who, request| self.handle_inspect(who, request)).await
    }

    async fn list_attempts(
        &self,
        request: Request<v1::ListAttemptsRequest>,
    ) -> Result<Response<v1::ListAttemptsResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_list_attempts(who, request)
        })
        .await
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_force_release(who, request)
        })
        .await
    }

    async fn force_fail(
        &self,
        request: Request<v1::ForceFailRequest>,
    ) -> Result<Response<v1::ForceFailResponse>, Status> {
        run_unary(request, |who, request| self.handle_force_fail(who, request)).await
    }

    async fn complete_task(
        &self,
        request: Request<v1::CompleteTaskRequest>,
    ) -> Result<Response<v1::CompleteTaskResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_complete_task(who, request)
        })
        .await
    }

    async fn scheduler_status(
        &self,
        request: Request<v1::SchedulerStatusRequest>,
    ) -> Result<Response<v1::SchedulerStatusResponse>, Status> {
        run_unary(request, |who, _| self.handle_scheduler_status(who)).await
    }

    async fn bulk_force(
        &self,
        request: Request<v1::BulkForceRequest>,
    ) -> Result<Response<v1::BulkForceResponse>, Status> {
        run_unary(request, |who, request| self.handle_bulk_force(who, request)).await
    }

    async fn retry_task(
        &self,
        request: Request<v1::RetryTaskRequest>,
    ) -> Result<Response<v1::RetryTaskResponse>, Status> {
        run_unary(request, |who, request| self.handle_retry_task(who, request)).await
    }

    async fn pause(
        &self,
        request: Request<v1::PauseRequest>,
    ) -> Result<Response<v1::PauseResponse>, Status> {
        run_unary(request, |who, request| self.handle_pause(who, request)).await
    }

    async fn unpause(
        &self,
        request: Request<v1::UnpauseRequest>,
    ) -> Result<Response<v1::UnpauseResponse>, Status> {
        run_unary(request, |who, request| self.handle_unpause(who, request)).await
    }

    async fn release_inherited(
        &self,
        request: Request<v1::ReleaseInheritedRequest>,
    ) -> Result<Response<v1::ReleaseInheritedResponse>, Status> {
        run_unary(request, |who, request| {
            self.release_inherited_tasks(who, request)
        })
        .await
    }

    async fn put_profile(
        &self,
        request: Request<v1::PutProfileRequest>,
    ) -> Result<Response<v1::PutProfileResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_put_profile(who, request)
        })
        .await
    }

    async fn list_profiles(
        &self,
        request: Request<v1::ListProfilesRequest>,
    ) -> Result<Response<v1::ListProfilesResponse>, Status> {
        run_unary(request, |who, _| self.handle_list_profiles(who)).await
    }

    async fn delete_profile(
        &self,
        request: Request<v1::DeleteProfileRequest>,
    ) -> Result<Response<v1::DeleteProfileResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_delete_profile(who, request)
        })
        .await
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_create_token(who, request)
        })
        .await
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        run_unary(request, |who, request| {
            std::future::ready(self.handle_list_tokens(&who, &request))
        })
        .await
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_revoke_token(who, request)
        })
        .await
    }

    async fn export(
        &self,
        request: Request<v1::ExportRequest>,
    ) -> Result<Response<ResponseStream<v1::ExportResponse>>, Status> {
        run_unary(request, |who, request| {
            std::future::ready(self.handle_export(&who, &request))
        })
        .await
    }

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<ResponseStream<v1::ImportResponse>>, Status> {
        run_unary(request, |who, chunks| self.handle_import(who, chunks)).await
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<ResponseStream<v1::VerifyResponse>>, Status> {
        run_unary(request, |who, request| {
            std::future::ready(self.handle_verify(&who, &request))
        })
        .await
    }

    async fn relay_info(
        &self,
        request: Request<v1::RelayInfoRequest>,
    ) -> Result<Response<v1::RelayInfoResponse>, Status> {
        run_unary(request, |who, _| std::future::ready(Ok(self.info(&who)))).await
    }
}

impl Api {
    /// An import suspends the tasks of all tenants together, so only a caller of all tenants may
    /// release them.
    async fn release_inherited_tasks(
        &self,
        who: Principal,
        request: v1::ReleaseInheritedRequest,
    ) -> Result<v1::ReleaseInheritedResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        require_all_tenants(&who)?;
        let (by, why) = (actor(&who), reason.clone());
        let release = ReleaseInherited { by, reason };
        let tasks = self.dispatcher.request(release).await?;
        tracing::warn!(by = %who.name, reason = %why, tasks, "inherited tasks released");
        Ok(v1::ReleaseInheritedResponse { released: tasks })
    }
}

/// Refuses credentials of one tenant, for calls that affect all tenants.
pub(super) fn require_all_tenants(who: &Principal) -> Result<(), ApiFault> {
    match &who.scope {
        TenantScope::One(_) => Err(ApiFault::OneTenantOnly),
        TenantScope::All => Ok(()),
    }
}
