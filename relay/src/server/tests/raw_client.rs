//! A gRPC client that sends raw bytes, for messages that a generated client cannot build.

use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

/// Sends the bytes as one message without encoding.
pub(super) async fn call_raw<C>(
    channel: C,
    path: &'static str,
    message: Bytes,
) -> Result<Bytes, Status>
where
    C: tonic::client::GrpcService<tonic::body::Body>,
    C::ResponseBody: tonic::codegen::Body<Data = Bytes> + Send + 'static,
    <C::ResponseBody as tonic::codegen::Body>::Error: Into<tonic::codegen::StdError> + Send,
    C::Error: Into<tonic::codegen::StdError>,
{
    let mut client = tonic::client::Grpc::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Status::unknown(error.into().to_string()))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let answer = client
        .unary(Request::new(message), path, RawBytesCodec)
        .await?;
    Ok(answer.into_inner())
}

struct RawBytesCodec;

impl Codec for RawBytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = RawBytesCodec;
    type Decoder = RawBytesCodec;

    fn encoder(&mut self) -> RawBytesCodec {
        RawBytesCodec
    }

    fn decoder(&mut self) -> RawBytesCodec {
        RawBytesCodec
    }
}

impl Encoder for RawBytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawBytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
