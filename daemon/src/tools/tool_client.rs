//! The other end: how `baton mcp` finds out that it runs inside an attempt, and asks the daemon. A connection per call: a
//! daemon that is replaced meanwhile is simply found again.

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

/// A daemon that does not answer by then hangs, or looks at files for longer than it may.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Nobody's process tree is deeper.
const MAX_ANCESTORS: usize = 64;

/// Where to speak, and the right to.
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
        f.debug_struct("Place")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// The attempt that this process belongs to, where its task asked for tools. Agents do not hand their whole environment to
/// the servers that they start, so the processes above this one are asked for theirs: the nearest that has it is meant.
pub fn find_endpoint() -> Option<ToolEndpoint> {
    let mut pid = std::process::id().cast_signed();
    for _ in 0..MAX_ANCESTORS {
        let known = |name| environment_variable(pid, name).ok().flatten();
        if let (Some(socket), Some(capability)) =
            (known(SOCKET_VARIABLE), known(CAPABILITY_VARIABLE))
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

/// One call and its answer.
pub async fn call_tool(place: &ToolEndpoint, verb: tool_call::Verb) -> io::Result<ToolAnswer> {
    let call = ToolCall {
        capability: Some(Secret {
            value: place.capability.clone(),
        }),
        verb: Some(verb),
    };
    let asked = send_and_receive(&place.socket, &call);
    tokio::time::timeout(CALL_TIMEOUT, asked)
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
