//! An agent that holds its leases itself: the service `Agents` with a credential of its own.

use baton_proto::v1::{
    AgentBlockRequest, AgentCancelRequest, AgentCheckpointRequest, AgentCompleteRequest,
    AgentFailRequest, AgentGrant, AgentLease, AgentProgressRequest, AgentReleaseRequest,
    BlockDraft, Checkpoint, CheckpointDraft, ClaimRequest, CreateTokenRequest, PickUpRequest,
    Progress, ProgressUpdate, RenewRequest, RenewResponse, Role, StartRequest, Task, TaskSpec,
};
use tonic::Status;

use crate::client::Client;
use crate::patience::within;

/// Work that only agents of this scope may have.
pub fn for_scope(scope: &str) -> TaskSpec {
    TaskSpec {
        agent: "anyone".to_owned(),
        prompt: "do it".to_owned(),
        agent_scope: scope.to_owned(),
        agent_held: true,
        ..TaskSpec::default()
    }
}

#[derive(Clone, Debug)]
pub struct Agent {
    pub client: Client,
    pub name: String,
}

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
pub struct Lease {
    pub task_id: String,
    pub attempt_id: String,
    pub named: AgentLease,
    pub granted_ms: u64,
    pub renew_ms: u64,
}

impl Lease {
    pub fn of(grant: AgentGrant) -> Self {
        let re = grant.r#ref.expect("a grant names its attempt");
        Self {
            named: AgentLease {
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

    pub fn secret(&self) -> Vec<u8> {
        let token = self.named.token.clone().expect("a lease has a token");
        token.value.to_vec()
    }

    /// The secret in every spelling in which it could leak.
    pub fn spellings(&self) -> Vec<Vec<u8>> {
        let token = self.secret();
        let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        vec![token, hex.to_uppercase().into(), hex.into()]
    }
}

impl Agent {
    /// With a new token of the administrator's tenant.
    pub async fn new(admin: &Client, name: &str, scope: &str) -> Self {
        Self::of_tenant(admin, "", name, scope).await
    }

    pub async fn of_tenant(admin: &Client, tenant: &str, name: &str, scope: &str) -> Self {
        let request = CreateTokenRequest {
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            role: Role::Agent.into(),
            agent_scope: scope.to_owned(),
            ttl_ms: None,
        };
        let made = within("a token", admin.operator().create_token(request)).await;
        let made = made.expect("an administrator makes tokens").into_inner();
        let secret = made.secret.expect("a new token has a secret").value;
        Self {
            client: admin.with_token(&secret),
            name: name.to_owned(),
        }
    }

    pub async fn start(&self, spec: TaskSpec, key: &str) -> Result<Lease, Status> {
        let request = StartRequest {
            spec: Some(spec),
            idempotency_key: key.to_owned(),
            ..StartRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Start", agents.start(request)).await?;
        let grant = answer.into_inner().grant;
        Ok(Lease::of(grant.expect("Start grants or refuses")))
    }

    /// An empty id claims the first that is free.
    pub async fn claim(&self, task_id: &str) -> Result<Option<Lease>, Status> {
        let request = ClaimRequest {
            task_id: task_id.to_owned(),
            ..ClaimRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Claim", agents.claim(request)).await?;
        Ok(answer.into_inner().grant.map(Lease::of))
    }

    pub async fn pick_up(&self, task_id: &str, attempt_id: &str) -> Result<Lease, Status> {
        let request = PickUpRequest {
            task_id: task_id.to_owned(),
            attempt_id: attempt_id.to_owned(),
            reason: String::new(),
            ..PickUpRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to PickUp", agents.pick_up(request)).await?;
        let grant = answer.into_inner().grant;
        Ok(Lease::of(grant.expect("PickUp grants or refuses")))
    }

    pub async fn checkpoint(&self, lease: &Lease, summary: &str) -> Result<Checkpoint, Status> {
        let request = AgentCheckpointRequest {
            lease: Some(lease.named.clone()),
            checkpoint: Some(CheckpointDraft {
                summary: summary.to_owned(),
                ..CheckpointDraft::default()
            }),
            ..AgentCheckpointRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Checkpoint", agents.checkpoint(request)).await?;
        let written = answer.into_inner().checkpoint;
        Ok(written.expect("an answer shows the checkpoint"))
    }

    pub async fn progress(&self, lease: &Lease, item: &str) -> Result<Progress, Status> {
        let request = AgentProgressRequest {
            lease: Some(lease.named.clone()),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
            ..AgentProgressRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Progress", agents.progress(request)).await?;
        let progress = answer.into_inner().progress;
        Ok(progress.expect("an answer shows the progress"))
    }

    pub async fn block(&self, lease: &Lease, reason: &str) -> Result<Task, Status> {
        let request = AgentBlockRequest {
            lease: Some(lease.named.clone()),
            block: Some(BlockDraft {
                reason: reason.to_owned(),
                ..BlockDraft::default()
            }),
            ..AgentBlockRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Block", agents.block(request)).await?;
        Ok(shown(answer.into_inner().task))
    }

    pub async fn renew(&self, lease: &Lease) -> Result<RenewResponse, Status> {
        let request = RenewRequest {
            lease: Some(lease.named.clone()),
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Renew", agents.renew(request)).await?;
        Ok(answer.into_inner())
    }

    pub async fn release(&self, lease: &Lease, reason: &str) -> Result<Task, Status> {
        let request = AgentReleaseRequest {
            lease: Some(lease.named.clone()),
            reason: reason.to_owned(),
            ..AgentReleaseRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Release", agents.release(request)).await?;
        Ok(shown(answer.into_inner().task))
    }

    pub async fn complete(&self, lease: &Lease, result: &str) -> Result<Task, Status> {
        let request = AgentCompleteRequest {
            lease: Some(lease.named.clone()),
            result: result.to_owned().into(),
            ..AgentCompleteRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Complete", agents.complete(request)).await?;
        Ok(shown(answer.into_inner().task))
    }

    pub async fn fail(&self, lease: &Lease, message: &str) -> Result<Task, Status> {
        let request = AgentFailRequest {
            lease: Some(lease.named.clone()),
            message: message.to_owned(),
            ..AgentFailRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Fail", agents.fail(request)).await?;
        Ok(shown(answer.into_inner().task))
    }

    pub async fn cancel(&self, lease: &Lease, reason: &str) -> Result<Task, Status> {
        let request = AgentCancelRequest {
            lease: Some(lease.named.clone()),
            reason: reason.to_owned(),
            ..AgentCancelRequest::default()
        };
        let mut agents = self.client.agents();
        let answer = within("an answer to Cancel", agents.cancel(request)).await?;
        Ok(shown(answer.into_inner().task))
    }
}

fn shown(task: Option<Task>) -> Task {
    task.expect("an answer shows the task")
}
