//! Encodes an `ErrorDetail` into a gRPC status: wrapped in `google.rpc.Status`, as every gRPC
//! library expects.
//!
//! This module only packs and unpacks. The relay decides which error gets which code.

use bytes::Bytes;
use prost::{Message, Name as _};
use prost_types::Any;

use crate::v1::ErrorDetail;

/// `google.rpc.Status`, defined here to avoid a dependency for one message.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// Bytes for `tonic::Status::with_details`.
pub fn pack_error_detail(code: tonic::Code, message: &str, detail: &ErrorDetail) -> Bytes {
    let any = Any {
        type_url: type_url(),
        value: detail.encode_to_vec(),
    };
    RpcStatus {
        code: code as i32,
        message: message.to_owned(),
        details: vec![any],
    }
    .encode_to_vec()
    .into()
}

/// The machine-readable part of an error, if the server sent one.
pub fn unpack_error_detail(status: &tonic::Status) -> Option<ErrorDetail> {
    let packed = RpcStatus::decode(status.details()).ok()?;
    let any = packed
        .details
        .iter()
        .find(|any| any.type_url == type_url())?;
    ErrorDetail::decode(any.value.as_slice()).ok()
}

fn type_url() -> String {
    format!("type.googleapis.com/{}", ErrorDetail::full_name())
}
