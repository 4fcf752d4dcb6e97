//! Raw bytes instead of messages, sent as a broken or hostile peer would, with real gRPC
//! framing.

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status, Streaming};

use crate::client::test_client::{AuthenticatedChannel, TestClient};
use crate::wait::wait_within;

/// Frames that a test has queued. If full, the test waits; no test fills it.
const OUTGOING_QUEUE_LENGTH: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

/// Calls a unary method with a body that need not be a valid message.
pub async fn call_raw_unary(
    client: &TestClient,
    path: &'static str,
    body: Bytes,
) -> Result<Bytes, Status> {
    let mut grpc = ready_channel(client).await;
    let call = grpc.unary(
        Request::new(body),
        PathAndQuery::from_static(path),
        RawCodec,
    );
    wait_within("an answer to raw bytes", call)
        .await
        .map(tonic::Response::into_inner)
}

/// A daemon's stream that sends raw bytes.
#[derive(Debug)]
pub struct RawDaemonLink {
    outgoing: mpsc::Sender<Bytes>,
    incoming: Streaming<Bytes>,
}

impl RawDaemonLink {
    /// The first bytes are sent with the call.
    pub async fn open(client: &TestClient, first: Bytes) -> Result<Self, Status> {
        let (outgoing, queue) = mpsc::channel(OUTGOING_QUEUE_LENGTH);
        outgoing.send(first).await.expect("the queue is new");
        let request = Request::new(ReceiverStream::new(queue));
        let path = PathAndQuery::from_static("/baton.v1.DaemonLink/Link");
        let mut grpc = ready_channel(client).await;
        let opened = wait_within("a raw link", grpc.streaming(request, path, RawCodec)).await?;
        Ok(Self {
            outgoing,
            incoming: opened.into_inner(),
        })
    }

    pub async fn send(&self, frame: Bytes) {
        self.outgoing.send(frame).await.expect("the stream is open");
    }

    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        wait_within("the next raw frame", self.incoming.message()).await
    }

    /// The status that ended the stream; none for a clean end.
    pub async fn wait_for_end(mut self) -> Option<Status> {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}

async fn ready_channel(client: &TestClient) -> Grpc<AuthenticatedChannel> {
    let mut grpc = Grpc::new(client.authenticated_channel());
    grpc.ready().await.expect("the relay can be reached");
    grpc
}
