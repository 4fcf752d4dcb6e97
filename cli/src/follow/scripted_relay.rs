//! Test only: a gRPC server whose streams follow a script, so that a test can break connections at
//! chosen points.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use baton_proto::v1::tasks_server::{Tasks, TasksServer};
use baton_proto::v1::{
    GetTaskRequest, GetTaskResponse, ReadOutputRequest, ReadOutputResponse, Task, TaskState,
    WatchTaskRequest, WatchTaskResponse,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::client::relay_client::RelayClient;

/// The messages of one stream before it ends.
pub(crate) type StreamScript<T> = Vec<Result<T, Status>>;
type StreamReply<T> = Result<Response<BoxStream<T>>, Status>;

#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptedRelay(Arc<Mutex<ScriptState>>);

#[derive(Debug, Default)]
struct ScriptState {
    watches: VecDeque<StreamScript<WatchTaskResponse>>,
    outputs: VecDeque<StreamScript<ReadOutputResponse>>,
    states: VecDeque<TaskState>,
    requested_positions: Vec<u64>,
}

impl ScriptedRelay {
    pub(crate) fn watch(self, script: StreamScript<WatchTaskResponse>) -> Self {
        self.0.lock().unwrap().watches.push_back(script);
        self
    }

    pub(crate) fn output(self, script: StreamScript<ReadOutputResponse>) -> Self {
        self.0.lock().unwrap().outputs.push_back(script);
        self
    }

    /// Adds a state for the next Get of the task; the last one is repeated.
    pub(crate) fn state(self, state: TaskState) -> Self {
        self.0.lock().unwrap().states.push_back(state);
        self
    }

    /// The start revisions and offsets of all stream requests, in order.
    pub(crate) fn requested_positions(&self) -> Vec<u64> {
        self.0.lock().unwrap().requested_positions.clone()
    }

    pub(crate) async fn serve(&self) -> RelayClient {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server =
            tonic::transport::Server::builder().add_service(TasksServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        RelayClient::connect(&url, "btn_test").await.unwrap()
    }
}

#[tonic::async_trait]
impl Tasks for ScriptedRelay {
    async fn watch(&self, request: Request<WatchTaskRequest>) -> StreamReply<WatchTaskResponse> {
        let mut state = self.0.lock().unwrap();
        state
            .requested_positions
            .push(request.into_inner().from_revision);
        let script = state
            .watches
            .pop_front()
            .expect("the script has no more watch streams");
        Ok(Response::new(Box::pin(tokio_stream::iter(script))))
    }

    async fn read_output(
        &self,
        request: Request<ReadOutputRequest>,
    ) -> StreamReply<ReadOutputResponse> {
        let mut state = self.0.lock().unwrap();
        state
            .requested_positions
            .push(request.into_inner().from_offset);
        let script = state
            .outputs
            .pop_front()
            .expect("the script has no more output streams");
        Ok(Response::new(Box::pin(tokio_stream::iter(script))))
    }

    async fn get(
        &self,
        _request: Request<GetTaskRequest>,
    ) -> Result<Response<GetTaskResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        let next = if state.states.len() > 1 {
            state.states.pop_front()
        } else {
            state.states.front().copied()
        };
        let task = Task {
            state: next.unwrap_or_default().into(),
            ..Task::default()
        };
        Ok(Response::new(GetTaskResponse { task: Some(task) }))
    }
}
