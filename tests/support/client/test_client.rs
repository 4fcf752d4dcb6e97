//! A client with a credential: the generated clients, and the calls that most tests make.

use std::time::Duration;

use baton_proto::unpack_error_detail;
use baton_proto::v1::agents_client::AgentsClient;
use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::fleet_client::FleetClient;
use baton_proto::v1::inputs_client::InputsClient;
use baton_proto::v1::operator_client::OperatorClient;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::tasks_client::TasksClient;
use baton_proto::v1::{
    CancelTaskRequest, CancelTaskResponse, CreateTokenRequest, DaemonState, GetDaemonRequest,
    GetTaskRequest, OutputCut, OutputEnd, ReadOutputRequest, RelayInfoRequest, RelayInfoResponse,
    Role, SubmitRequest, SubmitResponse, Task, TaskSpec, TaskState, Token,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::task_watch::TaskWatch;
use crate::wait::wait_within;

/// Interval for checks of state that sends no events.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) type AuthenticatedChannel = InterceptedService<Channel, BearerToken>;

/// Adds the token to every call.
#[derive(Clone, Debug)]
pub struct BearerToken(MetadataValue<Ascii>);

impl Interceptor for BearerToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

#[derive(Clone, Debug)]
pub struct TestClient {
    url: String,
    token: String,
    channel: Channel,
}

impl TestClient {
    /// Connects at the first call, and again after the relay was unavailable.
    pub fn new(url: &str, token: &str) -> Self {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("the test's address is valid");
        Self {
            url: url.to_owned(),
            token: token.to_owned(),
            channel: endpoint.tcp_nodelay(true).connect_lazy(),
        }
    }

    /// A client over TLS that trusts this certificate authority.
    pub fn over_tls(url: &str, token: &str, ca: &str) -> Self {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("the test's address is valid");
        let endpoint = endpoint
            .tls_config(tls)
            .expect("the test's certificate is valid");
        Self {
            url: url.to_owned(),
            token: token.to_owned(),
            channel: endpoint.tcp_nodelay(true).connect_lazy(),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn token_secret(&self) -> &str {
        &self.token
    }

    /// The same relay with another credential.
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) fn authenticated_channel(&self) -> AuthenticatedChannel {
        let header = format!("Bearer {}", self.token).parse();
        InterceptedService::new(
            self.channel.clone(),
            BearerToken(header.expect("a token is plain text")),
        )
    }

    pub fn tasks(&self) -> TasksClient<AuthenticatedChannel> {
        TasksClient::new(self.authenticated_channel())
    }

    pub fn operator(&self) -> OperatorClient<AuthenticatedChannel> {
        OperatorClient::new(self.authenticated_channel())
    }

    pub fn fleet(&self) -> FleetClient<AuthenticatedChannel> {
        FleetClient::new(self.authenticated_channel())
    }

    pub fn inputs(&self) -> InputsClient<AuthenticatedChannel> {
        InputsClient::new(self.authenticated_channel())
    }

    pub fn agents(&self) -> AgentsClient<AuthenticatedChannel> {
        AgentsClient::new(self.authenticated_channel())
    }

    pub fn daemon_link(&self) -> DaemonLinkClient<AuthenticatedChannel> {
        DaemonLinkClient::new(self.authenticated_channel())
    }

    pub async fn try_submit(&self, request: SubmitRequest) -> Result<SubmitResponse, Status> {
        let answer = wait_within("an answer to Submit", async {
            self.tasks().submit(request).await
        });
        answer.await.map(tonic::Response::into_inner)
    }

    pub async fn submit(&self, spec: TaskSpec) -> Task {
        let request = SubmitRequest {
            spec: Some(spec),
            ..SubmitRequest::default()
        };
        let accepted = self.try_submit(request).await.expect("Submit is accepted");
        accepted.task.expect("an accepted task is in the answer")
    }

    pub async fn try_get(&self, task_id: &str) -> Result<Task, Status> {
        self.get_task(task_id, false).await
    }

    /// The task with its specification.
    pub async fn try_get_with_spec(&self, task_id: &str) -> Result<Task, Status> {
        self.get_task(task_id, true).await
    }

    async fn get_task(&self, task_id: &str, include_spec: bool) -> Result<Task, Status> {
        let request = GetTaskRequest {
            task_id: task_id.to_owned(),
            include_spec,
        };
        let mut tasks = self.tasks();
        let answer = wait_within("an answer to Get", tasks.get(request)).await?;
        Ok(answer.into_inner().task.expect("Get answers with a task"))
    }

    pub async fn get(&self, task_id: &str) -> Task {
        self.try_get(task_id).await.expect("the task exists")
    }

    pub async fn try_cancel(&self, task_id: &str) -> Result<CancelTaskResponse, Status> {
        let request = CancelTaskRequest {
            task_id: task_id.to_owned(),
            reason: "a test wants it".to_owned(),
        };
        let mut tasks = self.tasks();
        let answer = wait_within("an answer to Cancel", tasks.cancel(request)).await?;
        Ok(answer.into_inner())
    }

    pub async fn cancel(&self, task_id: &str) -> CancelTaskResponse {
        self.try_cancel(task_id).await.expect("Cancel is accepted")
    }

    pub async fn watch(&self, task_id: &str) -> TaskWatch {
        TaskWatch::open(self, task_id, 0)
            .await
            .expect("the task can be watched")
    }

    /// Waits until the task has this state, or has had it.
    pub async fn wait_for_state(&self, task_id: &str, state: TaskState) {
        self.watch(task_id).await.wait_for_state(state).await;
    }

    /// Waits for the end of the task and returns its final record.
    pub async fn wait_for_end(&self, task_id: &str) -> Task {
        self.watch(task_id).await.collect_to_end().await;
        self.get(task_id).await
    }

    pub async fn run_to_end(&self, spec: TaskSpec) -> Task {
        let task = self.submit(spec).await;
        self.wait_for_end(&task.task_id).await
    }

    /// The stored output of the newest attempt: chunks, cuts and the end.
    pub async fn read_stored_output(&self, task_id: &str) -> Vec<Item> {
        let request = ReadOutputRequest {
            task_id: task_id.to_owned(),
            ..ReadOutputRequest::default()
        };
        let mut tasks = self.tasks();
        let opened = wait_within("output to open", tasks.read_output(request)).await;
        let mut pieces = opened.expect("output can be read").into_inner();
        let mut items = Vec::new();
        loop {
            let piece = wait_within("the next piece of output", pieces.message()).await;
            match piece.expect("the output stream does not fail") {
                Some(piece) => items.extend(piece.item),
                None => return items,
            }
        }
    }

    /// All output of the newest attempt, followed to its end. Fails on a cut or a gap.
    pub async fn read_output_to_end(&self, task_id: &str) -> Vec<u8> {
        let request = ReadOutputRequest {
            task_id: task_id.to_owned(),
            follow: true,
            ..ReadOutputRequest::default()
        };
        let mut tasks = self.tasks();
        let opened = wait_within("output to open", tasks.read_output(request)).await;
        let mut pieces = opened.expect("output can be read").into_inner();
        let mut bytes = Vec::new();
        loop {
            let piece = wait_within("the next piece of output", pieces.message()).await;
            let piece = piece.expect("the output stream does not fail");
            match piece.expect("output ends with an end message").item {
                Some(Item::Chunk(chunk)) => {
                    assert_eq!(chunk.offset, bytes.len() as u64, "output has no gap");
                    bytes.extend_from_slice(&chunk.data);
                }
                Some(Item::Cut(cut)) => panic!("output was cut: {cut:?}"),
                Some(Item::End(end)) => {
                    assert_eq!(end.offset, bytes.len() as u64);
                    return bytes;
                }
                // An empty message only shows that the stream is alive.
                None => {}
            }
        }
    }

    /// Waits until the relay has noticed the end of a daemon's stream.
    pub async fn wait_until_offline(&self, daemon_id: &str) {
        self.wait_for_daemon_state(daemon_id, DaemonState::Offline)
            .await;
    }

    /// The last cut from this offset on, and the end of the output.
    pub async fn read_last_cut_and_end(
        &self,
        task_id: &str,
        from: u64,
    ) -> (Option<OutputCut>, OutputEnd) {
        let request = ReadOutputRequest {
            task_id: task_id.to_owned(),
            from_offset: from,
            ..ReadOutputRequest::default()
        };
        let opened = self.tasks().read_output(request).await;
        let mut pieces = opened.expect("output can be read").into_inner();
        let mut last = None;
        loop {
            let piece = wait_within("the next piece of output", pieces.message()).await;
            match piece
                .expect("the output stream does not fail")
                .and_then(|piece| piece.item)
            {
                Some(Item::Cut(cut)) => last = Some(cut),
                Some(Item::Chunk(_)) => {}
                Some(Item::End(end)) => return (last, end),
                None => panic!("no end"),
            }
        }
    }

    /// Waits until a daemon, by id or name, has this state.
    pub async fn wait_for_daemon_state(&self, daemon: &str, state: DaemonState) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        wait_within(&format!("a daemon to be {state:?}"), async {
            loop {
                ticks.tick().await;
                let request = GetDaemonRequest {
                    daemon: daemon.to_owned(),
                };
                let daemon_info = match self.fleet().get_daemon(request).await {
                    Ok(shown) => shown.into_inner().daemon,
                    // The daemon may not have sent its first Hello yet, or the relay is starting.
                    Err(status) if matches!(status.code(), Code::NotFound | Code::Unavailable) => {
                        None
                    }
                    Err(status) => panic!("the relay refused to show {daemon}: {status}"),
                };
                if daemon_info.is_some_and(|daemon| daemon.state() == state) {
                    return;
                }
            }
        })
        .await;
    }

    /// Whether the health service reports `name` as serving; empty means the whole relay.
    pub async fn is_serving(&self, name: &str) -> bool {
        let mut health = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest {
            service: name.to_owned(),
        };
        let answer = wait_within("an answer to a health check", health.check(request)).await;
        let status = answer
            .expect("the service name is daemon_info")
            .into_inner()
            .status();
        status == ServingStatus::Serving
    }

    pub async fn relay_info(&self) -> RelayInfoResponse {
        let mut operator = self.operator();
        let answer = wait_within("relay info", operator.relay_info(RelayInfoRequest {})).await;
        answer
            .expect("every credential may call RelayInfo")
            .into_inner()
    }

    pub async fn commit_seq(&self) -> u64 {
        self.relay_info().await.commit_seq
    }

    /// Creates a credential and returns the token's record and its secret.
    pub async fn create_token(&self, tenant: &str, role: Role) -> (Token, String) {
        let request = CreateTokenRequest {
            name: format!("{tenant}-{role:?}"),
            tenant: tenant.to_owned(),
            role: role.into(),
            ..CreateTokenRequest::default()
        };
        let mut operator = self.operator();
        let created = wait_within("a token", operator.create_token(request)).await;
        let created = created
            .expect("an administrator may create tokens")
            .into_inner();
        let secret = created.secret.expect("a new token has a secret").value;
        (created.token.expect("a new token has a record"), secret)
    }

    /// A client of a tenant.
    pub async fn client_of_tenant(&self, tenant: &str, role: Role) -> Self {
        let (_, secret) = self.create_token(tenant, role).await;
        self.with_token(&secret)
    }
}

/// The machine code of an error; empty without one.
pub fn error_code(status: &Status) -> String {
    unpack_error_detail(status).map_or_else(String::new, |detail| detail.code)
}
