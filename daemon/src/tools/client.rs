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

use super::{CAPABILITY, SOCKET};
use crate::private_socket::{open_dir, short};
use crate::process::{read_stat, variable};
use crate::shim::framing::{Decoder, encode};

/// A daemon that does not answer by then hangs, or looks at files for longer than it may.
const PATIENCE: Duration = Duration::from_secs(120);
/// Nobody's process tree is deeper.
const DEEPEST: usize = 64;

/// Where to speak, and the right to.
#[derive(Clone)]
pub struct Place {
    socket: PathBuf,
    capability: String,
}

#[cfg(test)]
impl Place {
    pub(super) fn new(socket: PathBuf, capability: String) -> Self {
        Self { socket, capability }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// The attempt that this process belongs to, where its task asked for tools. Agents do not hand their whole environment to
/// the servers that they start, so the processes above this one are asked for theirs: the nearest that has it is meant.
pub fn find() -> Option<Place> {
    let mut pid = std::process::id().cast_signed();
    for _ in 0..DEEPEST {
        let known = |name| variable(pid, name).ok().flatten();
        if let (Some(socket), Some(capability)) = (known(SOCKET), known(CAPABILITY)) {
            return Some(Place {
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
pub async fn ask(place: &Place, verb: tool_call::Verb) -> io::Result<ToolAnswer> {
    let call = ToolCall {
        capability: Some(Secret {
            value: place.capability.clone(),
        }),
        verb: Some(verb),
    };
    let asked = exchange(&place.socket, &call);
    tokio::time::timeout(PATIENCE, asked)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn exchange(socket: &Path, call: &ToolCall) -> io::Result<ToolAnswer> {
    let mut peer = connect(socket).await?;
    let mut out = BytesMut::new();
    encode(call, &mut out).map_err(invalid)?;
    peer.write_all(&out).await?;
    let mut decoder = Decoder::default();
    loop {
        if let Some(answer) = decoder.take().map_err(invalid)? {
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
    UnixStream::connect(short(&dir, name)).await
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
