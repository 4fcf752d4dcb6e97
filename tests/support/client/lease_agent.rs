//! An agent that has its leases itself: a client of the service `Agents` with its own
//! credential.

use baton_proto::v1::{
    AgentBlockRequest, AgentCancelRequest, AgentCheckpointRequest, AgentCompleteRequest,
    AgentFailRequest, AgentGrant, AgentLease, AgentProgressRequest, AgentReleaseRequest,
    BlockDraft, Checkpoint, CheckpointDraft, ClaimRequest, CreateTokenRequest, PickUpRequest,
    Progress, ProgressUpdate, RenewRequest, RenewResponse, Role, StartRequest, Task, TaskSpec,
};
use tonic::Status;

use crate::client::test_client::TestClient;
use crate::wait::wait_within;

/// A task that only agents of this scope may claim or pick up.
pub fn agent_scope_spec(scope: &str) -> TaskSpec {
    TaskSpec {
        agent: "anyone".to_owned(),
        prompt: "do it".to_owned(),
        agent_scope: scope.to_owned(),
        agent_held: true,
        ..TaskSpec::default()
    }
}

#[derive(Clone, Debug)]
pub struct LeaseAgent {
    pub client: TestClient,
    pub name: String,
}

/// A lease as its holder has it.
#[derive(Clone, Debug)]
pub struct GrantedLease {
    pub task_id: String,
    pub attempt_id: String,
    pub lease_ref: AgentLease,
    pub granted_ms: u64,
    pub renew_ms: u64,
}

impl GrantedLease {
    pub fn of_grant(grant: AgentGrant) -> Self {
        let re = grant.r#ref.expect("a grant has its attempt's ref");
        Self {
            lease_ref: AgentLease {
                task_id: re.task_id.clone(),
                attempt_id: re.attempt_id.clone(),
                token: grant.token,
            },
            task_id: re.task_id,
            attempt_id: re.attempt_id,
            granted_ms: grant.granted_ms,
            renew_ms: grant.renew_ms,
        }
    }

    pub fn token_bytes(&self) -> Vec<u8> {
        let token = self.lease_ref.token.clone().expect("a lease has a token");
        token.value.to_vec()
    }
}

impl LeaseAgent {
    /// Creates a token in the administrator's tenant.
    pub async fn new(admin: &TestClient, name: &str, scope: &str) -> Self {
        Self::of_tenant(admin, "", name, scope).await
    }

    pub async fn of_tenant(admin: &TestClient, tenant: &str, name: &str, scope: &str) -> Self {
        let request = CreateTokenRequest {
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            role: Role::Agent.into(),
            agent_scope: scope.to_owned(),
            ttl_ms: None,
        };
        let created = wait_within("a token", admin.operator().create_token(request)).await;
        let created = created
            .expect("an administrator may create tokens")
            .into_inner();
        let secret = created.secret.expect("a new token has a secret").value;
        Self {
            client: admin.with_token(&secret),
            name: name.to_owned(),
        }
    }

    pub async fn start(&self, spec: TaskSpec, key: &str) -> Result<GrantedLease, Status> {
        let request = StartRequest {
            spec: Some(spec),
            idempotency_key: key.to_owned(),
            ..StartRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Start", agents.start(request)).await?;
        let grant = answer.into_inner().grant;
        Ok(GrantedLease::of_grant(
            grant.expect("Start returns a grant or an error"),
        ))
    }

    /// An empty id claims the first free task.
    pub async fn claim(&self, task_id: &str) -> Result<Option<GrantedLease>, Status> {
        let request = ClaimRequest {
            task_id: task_id.to_owned(),
            ..ClaimRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Claim", agents.claim(request)).await?;
        Ok(answer.into_inner().grant.map(GrantedLease::of_grant))
    }

    pub async fn pick_up(&self, task_id: &str, attempt_id: &str) -> Result<GrantedLease, Status> {
        let request = PickUpRequest {
            task_id: task_id.to_owned(),
            attempt_id: attempt_id.to_owned(),
            reason: String::new(),
            ..PickUpRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to PickUp", agents.pick_up(request)).await?;
        let grant = answer.into_inner().grant;
        Ok(GrantedLease::of_grant(
            grant.expect("PickUp returns a grant or an error"),
        ))
    }

    pub async fn checkpoint(
        &self,
        lease: &GrantedLease,
        summary: &str,
    ) -> Result<Checkpoint, Status> {
        let request = AgentCheckpointRequest {
            lease: Some(lease.lease_ref.clone()),
            checkpoint: Some(CheckpointDraft {
                summary: summary.to_owned(),
                ..CheckpointDraft::default()
            }),
            ..AgentCheckpointRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Checkpoint", agents.checkpoint(request)).await?;
        let written = answer.into_inner().checkpoint;
        Ok(written.expect("the answer contains the checkpoint"))
    }

    pub async fn progress(&self, lease: &GrantedLease, item: &str) -> Result<Progress, Status> {
        let request = AgentProgressRequest {
            lease: Some(lease.lease_ref.clone()),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
            ..AgentProgressRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Progress", agents.progress(request)).await?;
        let progress = answer.into_inner().progress;
        Ok(progress.expect("the answer contains the progress"))
    }

    pub async fn block(&self, lease: &GrantedLease, reason: &str) -> Result<Task, Status> {
        let request = AgentBlockRequest {
            lease: Some(lease.lease_ref.clone()),
            block: Some(BlockDraft {
                reason: reason.to_owned(),
                ..BlockDraft::default()
            }),
            ..AgentBlockRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Block", agents.block(request)).await?;
        Ok(expect_task(answer.into_inner().task))
    }

    pub async fn renew(&self, lease: &GrantedLease) -> Result<RenewResponse, Status> {
        let request = RenewRequest {
            lease: Some(lease.lease_ref.clone()),
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Renew", agents.renew(request)).await?;
        Ok(answer.into_inner())
    }

    pub async fn release(&self, lease: &GrantedLease, reason: &str) -> Result<Task, Status> {
        let request = AgentReleaseRequest {
            lease: Some(lease.lease_ref.clone()),
            reason: reason.to_owned(),
            ..AgentReleaseRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Release", agents.release(request)).await?;
        Ok(expect_task(answer.into_inner().task))
    }

    pub async fn complete(&self, lease: &GrantedLease, result: &str) -> Result<Task, Status> {
        let request = AgentCompleteRequest {
            lease: Some(lease.lease_ref.clone()),
            result: result.to_owned().into(),
            ..AgentCompleteRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Complete", agents.complete(request)).await?;
        Ok(expect_task(answer.into_inner().task))
    }

    pub async fn fail(&self, lease: &GrantedLease, message: &str) -> Result<Task, Status> {
        let request = AgentFailRequest {
            lease: Some(lease.lease_ref.clone()),
            message: message.to_owned(),
            ..AgentFailRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Fail", agents.fail(request)).await?;
        Ok(expect_task(answer.into_inner().task))
    }

    pub async fn cancel(&self, lease: &GrantedLease, reason: &str) -> Result<Task, Status> {
        let request = AgentCancelRequest {
            lease: Some(lease.lease_ref.clone()),
            reason: reason.to_owned(),
            ..AgentCancelRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = wait_within("an answer to Cancel", agents.cancel(request)).await?;
        Ok(expect_task(answer.into_inner().task))
    }
}

fn expect_task(task: Option<Task>) -> Task {
    task.expect("the answer contains the task")
}
