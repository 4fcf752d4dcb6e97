//! Tests of the server as clients see it: real gRPC over loopback, a real store in a temporary
//! directory.

mod access;
mod bulk_force;
mod call_limits;
mod hello_lookups;
mod invalid_requests;
mod lifecycle;
mod raw_client;
mod repeated_submits;
mod resume_race;
mod single_attempt_daemon;
mod tasks;
mod unauthenticated_peers;

use std::time::Duration;

use baton_proto::v1;
use baton_proto::v1::operator_client::OperatorClient;
use baton_proto::v1::tasks_client::TasksClient;
use tempfile::TempDir;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::{RelayConfig, RelayHandle, start};
use crate::clock::RelayClock;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

type TokenChannel = InterceptedService<Channel, BearerInterceptor>;

/// A relay for one test, with its administrator token.
struct RelayFixture {
    relay: RelayHandle,
    channel: Channel,
    admin: String,
    _data: TempDir,
}

#[derive(Clone)]
struct BearerInterceptor(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for BearerInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl RelayFixture {
    async fn new() -> Self {
        Self::with_config(|_| {}).await
    }

    async fn with_config(adjust: impl FnOnce(&mut RelayConfig)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = RelayConfig::new(data.path().join("relay"), listen);
        config.drain_timeout = Duration::from_millis(200);
        // The clock is frozen, so that no timer commits anything during a test.
        let (clock, control) = RelayClock::controlled();
        control.freeze();
        config.clock = clock;
        adjust(&mut config);
        let admin = config.data_dir.join("admin.token");
        let relay = start(config).await.unwrap();
        let uri = format!("http://{}", relay.address());
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        let admin = std::fs::read_to_string(admin)
            .unwrap()
            .trim_end()
            .to_owned();
        Self {
            relay,
            channel,
            admin,
            _data: data,
        }
    }

    fn token_channel(&self, token: &str) -> TokenChannel {
        let value = (!token.is_empty()).then(|| format!("Bearer {token}").parse().unwrap());
        InterceptedService::new(self.channel.clone(), BearerInterceptor(value))
    }

    fn tasks(&self, token: &str) -> TasksClient<TokenChannel> {
        TasksClient::new(self.token_channel(token))
    }

    fn operator(&self, token: &str) -> OperatorClient<TokenChannel> {
        OperatorClient::new(self.token_channel(token))
    }

    /// Creates a token of this tenant and role. Returns its id and its secret.
    async fn create_token(&self, tenant: &str, role: v1::Role) -> (String, String) {
        let request = v1::CreateTokenRequest {
            name: format!("{tenant} {role:?}"),
            tenant: tenant.into(),
            role: role.into(),
            agent_scope: if role == v1::Role::Agent {
                "reviewers".into()
            } else {
                String::new()
            },
            ttl_ms: None,
        };
        let made = self
            .operator(&self.admin)
            .create_token(request)
            .await
            .unwrap()
            .into_inner();
        (made.token.unwrap().token_id, made.secret.unwrap().value)
    }

    async fn submit(&self, token: &str, request: v1::SubmitRequest) -> v1::SubmitResponse {
        self.tasks(token)
            .submit(request)
            .await
            .unwrap()
            .into_inner()
    }

    async fn commit_seq(&self) -> u64 {
        let info = self
            .operator(&self.admin)
            .relay_info(v1::RelayInfoRequest {})
            .await;
        info.unwrap().into_inner().commit_seq
    }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(TEST_TIMEOUT, future).await;
    outcome.unwrap_or_else(|_| panic!("no {what} within {TEST_TIMEOUT:?}"))
}

fn machine_code(status: &Status) -> String {
    let detail = baton_proto::unpack_error_detail(status);
    detail
        .unwrap_or_else(|| panic!("{status:?} has no detail"))
        .code
}

fn refusal_code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.unwrap_err();
    (status.code(), machine_code(&status))
}

const UNKNOWN_TASK_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

fn get_request(id: &str) -> v1::GetTaskRequest {
    v1::GetTaskRequest {
        task_id: id.into(),
        include_spec: false,
    }
}

fn submission(spec: v1::TaskSpec) -> v1::SubmitRequest {
    v1::SubmitRequest {
        spec: Some(spec),
        ..Default::default()
    }
}

fn spec() -> v1::TaskSpec {
    v1::TaskSpec {
        agent: "command".into(),
        command: Some(v1::CommandSpec {
            argv: vec!["true".into()],
        }),
        ..v1::TaskSpec::default()
    }
}
