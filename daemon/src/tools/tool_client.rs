//! The client side: how `baton mcp` detects that it runs inside an attempt, and calls the
//! daemon. Each call uses a new connection, so a restarted daemon needs no reconnect.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::Secret;
use baton_proto::worker::{ToolAnswer, ToolCall, tool_call};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{CAPABILITY_VARIABLE, SOCKET_VARIABLE};
use crate::process::{environment_variable, read_stat};
use crate::shim::framing::{MessageDecoder, encode};
use crate::storage::private_socket::{descriptor_path, open_dir};

/// Longer than any inspection of required files. A daemon that takes longer hangs.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Deeper than any real process tree.
const MAX_ANCESTORS: usize = 64;

/// The socket and the capability for calls of one attempt.
#[derive(Clone)]
pub struct ToolEndpoint {
    socket: PathBuf,
    capability: String,
}

#[cfg(test)]
impl ToolEndpoint {
    pub(super) fn new(socket: PathBuf, capability: String) -> Self {
        Self { socket, capability }
    }
}

impl std::fmt::Debug for ToolEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolEndpoint")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// The attempt that this process belongs to, if its task asked for tools. Agents do not pass
/// their whole environment on to the servers that they start, so the environments of the
/// ancestor processes are searched too. The nearest process with both variables is used.
pub fn find_endpoint() -> Option<ToolEndpoint> {
    let mut pid = std::process::id().cast_signed();
    for _ in 0..MAX_ANCESTORS {
        let variable = |name| environment_variable(pid, name).ok().flatten();
        if let (Some(socket), Some(capability)) =
            (variable(SOCKET_VARIABLE), variable(CAPABILITY_VARIABLE))
        {
            return Some(ToolEndpoint {
                socket: socket.into(),
                capability,
            });
        }
        pid = read_stat(pid).ok().flatten()?.parent;
        if pid <= 1 {
            return None;
        }
    }
    None
}

/// Makes one call and returns its answer.
pub async fn call_tool(endpoint: &ToolEndpoint, verb: tool_call::Verb) -> io::Result<ToolAnswer> {
    let call = ToolCall {
        capability: Some(Secret {
            value: endpoint.capability.clone(),
        }),
        verb: Some(verb),
    };
    let answer = send_and_receive(&endpoint.socket, &call);
    tokio::time::timeout(CALL_TIMEOUT, answer)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn send_and_receive(socket: &Path, call: &ToolCall) -> io::Result<ToolAnswer> {
    let mut peer = connect(socket).await?;
    let mut out = BytesMut::new();
    encode(call, &mut out).map_err(invalid)?;
    peer.write_all(&out).await?;
    let mut decoder = MessageDecoder::default();
    loop {
        if let Some(answer) = decoder.next_message().map_err(invalid)? {
            return Ok(answer);
        }
        if peer.read_buf(decoder.buffer()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (
        socket.parent(),
        socket.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = open_dir(dir)?;
    UnixStream::connect(descriptor_path(&dir, name)).await
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
