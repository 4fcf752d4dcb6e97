//! An OTLP collector inside the test's process: it receives spans over real gRPC and passes
//! them to the test in order.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::wait::wait_within;

/// Requests that the test has not read. If full, the exporter waits for its answer.
const REQUEST_QUEUE_LENGTH: usize = 1024;

#[derive(Debug)]
pub struct TraceCollector {
    url: String,
    requests: mpsc::Receiver<ExportTraceServiceRequest>,
    _server: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct TraceReceiver(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for TraceReceiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let taken = self.0.send(request.into_inner()).await;
        taken.map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl TraceCollector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (inbox, requests) = mpsc::channel(REQUEST_QUEUE_LENGTH);
        let serving = tokio::spawn(async move {
            let service = TraceServiceServer::new(TraceReceiver(inbox));
            let served = Server::builder().add_service(service);
            let served = served.serve_with_incoming(TcpListenerStream::new(listener));
            served.await.expect("the collector serves");
        });
        Self {
            url: format!("http://{address}"),
            requests,
            _server: AbortOnDropHandle::new(serving),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// All spans up to the first with this name, each with its resource.
    pub async fn wait_for_span(&mut self, name: &str) -> Vec<(Resource, Span)> {
        let mut spans: Vec<(Resource, Span)> = Vec::new();
        while !spans.iter().any(|(_, span)| span.name == name) {
            let request = wait_within(&format!("a span {name}"), self.requests.recv()).await;
            let request = request.expect("the collector runs");
            for group in request.resource_spans {
                let resource = group.resource.unwrap_or_default();
                let sent = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.extend(sent.map(|span| (resource.clone(), span)));
            }
        }
        spans
    }
}

/// The attribute as text, for any type; empty if absent.
pub fn attribute_text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|pair| pair.key == name);
    let value = found.and_then(|pair| pair.value.as_ref()?.value.clone());
    match value {
        None => String::new(),
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(other) => format!("{other:?}"),
    }
}
