//! The socket for tool calls: accepts a connection, reads one call, writes its answer, closes.
//! The supervisor decides about a call. A malformed call is refused here, before its capability
//! is checked.

use std::collections::VecDeque;
use std::convert::Infallible as Never;
use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::time::Duration;

use baton_proto::codes;
use baton_proto::v1::ErrorDetail;
use baton_proto::worker::{
    Finish, FinishOutcome, Noted, ToolAnswer, ToolCall, ToolRefused, tool_answer, tool_call,
};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::debug;

use super::SOCKET_FILE;
use super::call_limiter::ToolCallLimiter;
use crate::receipts::{INSPECTION_TIMEOUT, RequiredFiles};
use crate::shim::framing::{MessageDecoder, encode};
use crate::storage::private_socket;

/// Limit of concurrent connections. When it is reached, the connection that has been silent
/// longest is closed, so that silent connections cannot block the others.
const MAX_CONNECTIONS: usize = 256;
/// Calls queued for the supervisor. When the queue is full, their connections wait.
pub(crate) const CALL_QUEUE_SIZE: usize = 16;
/// Time limit for receiving a whole call.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for the relay's acknowledgement. After that the answer is that only
/// the daemon has the call so far.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A well-formed call for the supervisor.
#[derive(Debug)]
pub(crate) struct ToolRequest {
    pub(crate) secret: String,
    pub(crate) kind: ToolRequestKind,
}

#[derive(Debug)]
pub(crate) enum ToolRequestKind {
    /// Asks which files the attempt requires. They are inspected in the connection's task,
    /// where waiting blocks no other call.
    RequiredFiles(oneshot::Sender<Option<RequiredFiles>>),
    Call {
        verb: tool_call::Verb,
        reply: oneshot::Sender<ToolAnswer>,
    },
}

/// The bound socket; it does not accept connections yet.
#[derive(Debug)]
pub(crate) struct ToolSocket {
    listener: StdUnixListener,
}

impl ToolSocket {
    pub(crate) fn bind(data_dir: &Path) -> io::Result<Self> {
        let listener = private_socket::bind(data_dir, SOCKET_FILE)?;
        Ok(Self { listener })
    }

    /// Accepts and answers connections until it is dropped.
    pub(crate) async fn serve_connections(
        self,
        calls: mpsc::Sender<ToolRequest>,
    ) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener)?;
        let mut open = JoinSet::new();
        let limiter = ToolCallLimiter::default();
        let mut silent: VecDeque<oneshot::Sender<Never>> = VecDeque::new();
        loop {
            silent.retain(|silent| !silent.is_closed());
            let has_slot = open.len() < MAX_CONNECTIONS;
            if !has_slot {
                drop(silent.pop_front());
            }
            let accepted = tokio::select! {
                Some(_) = open.join_next() => continue,
                accepted = listener.accept(), if has_slot => accepted,
            };
            match accepted {
                Ok((peer, _)) => {
                    let (keep_open, closed) = oneshot::channel();
                    silent.push_back(keep_open);
                    open.spawn(handle_connection(
                        peer,
                        closed,
                        calls.clone(),
                        limiter.clone(),
                    ));
                }
                Err(error) => {
                    debug!(%error, "cannot accept a tool connection");
                    // The process is out of file descriptors. An immediate retry would spin.
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

/// A connection is no longer closed for silence once its call has arrived.
async fn handle_connection(
    mut peer: UnixStream,
    closed: oneshot::Receiver<Never>,
    calls: mpsc::Sender<ToolRequest>,
    limiter: ToolCallLimiter,
) {
    let received = tokio::select! {
        biased;
        received = tokio::time::timeout(READ_TIMEOUT, read_call(&mut peer)) => received,
        _ = closed => return debug!("closed a silent tool connection to free its slot"),
    };
    let call = match received {
        Ok(Ok(call)) => call,
        Ok(Err(error)) => return debug!(%error, "cannot read a tool call"),
        Err(_) => return debug!("reading a tool call timed out"),
    };
    let answer = match limiter.try_acquire(&call) {
        Some(_permit) => answer_call(call, &calls).await,
        None => too_many_calls(),
    };
    let mut out = BytesMut::new();
    if encode(&answer, &mut out).is_ok() {
        // A caller that has gone away needs no answer.
        let _ = peer.write_all(&out).await;
    }
}

async fn read_call(peer: &mut UnixStream) -> io::Result<ToolCall> {
    let mut decoder = MessageDecoder::default();
    loop {
        let message = decoder.next_message();
        if let Some(call) = message.map_err(|_| io::ErrorKind::InvalidData)? {
            return Ok(call);
        }
        if peer.read_buf(decoder.buffer()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn answer_call(call: ToolCall, calls: &mpsc::Sender<ToolRequest>) -> ToolAnswer {
    let Some(verb) = call.verb else {
        return refused_answer("unimplemented", unknown_verb());
    };
    if let Some(error) = shape_error(&verb) {
        return refused_answer("invalid_argument", error);
    }
    let secret = call.capability.unwrap_or_default().value;
    if let Some(refusal) = missing_files_refusal(&secret, &verb, calls).await {
        return refusal;
    }
    let (reply, answer) = oneshot::channel();
    let request = ToolRequest {
        secret,
        kind: ToolRequestKind::Call { verb, reply },
    };
    if calls.send(request).await.is_err() {
        return attempt_over();
    }
    match tokio::time::timeout(DELIVERY_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => attempt_over(),
        Err(_) => noted_answer(false),
    }
}

/// The refusal of a completion whose required files are missing. It lists all of them, and the
/// attempt continues.
async fn missing_files_refusal(
    secret: &str,
    verb: &tool_call::Verb,
    calls: &mpsc::Sender<ToolRequest>,
) -> Option<ToolAnswer> {
    let tool_call::Verb::Finish(finish) = verb else {
        return None;
    };
    if finish.outcome() != FinishOutcome::Completed {
        return None;
    }
    let (reply, files) = oneshot::channel();
    let request = ToolRequest {
        secret: secret.to_owned(),
        kind: ToolRequestKind::RequiredFiles(reply),
    };
    calls.send(request).await.ok()?;
    // An invalid capability has no files. The call itself is then refused.
    let files = files.await.ok()??;
    let unmet = files.unmet_requirements(INSPECTION_TIMEOUT).await;
    if unmet.is_empty() || !files.allows_retry() {
        return None;
    }
    let hint = "write these files and call task_complete again, or call task_block";
    let missing = ErrorDetail {
        missing: unmet.iter().map(|unmet| unmet.path.clone()).collect(),
        ..error_detail("contract_unmet", "required files are missing", hint, "")
    };
    Some(refused_answer("failed_precondition", missing))
}

/// Checks that need no state: a blank reason is refused for every caller.
fn shape_error(verb: &tool_call::Verb) -> Option<ErrorDetail> {
    let blank = |field: &str, text: &str| {
        let is_blank = text.trim().is_empty();
        is_blank.then(|| {
            error_detail(
                "blank",
                &format!("{field} is blank"),
                "give a text that is not blank",
                field,
            )
        })
    };
    match verb {
        tool_call::Verb::Look(_) | tool_call::Verb::Progress(_) => None,
        tool_call::Verb::Checkpoint(draft) => blank("summary", &draft.summary),
        tool_call::Verb::Block(draft) => blank("reason", &draft.reason),
        tool_call::Verb::Finish(finish) if finish.outcome() == FinishOutcome::Unspecified => {
            let hint = "set it to completed, failed or canceled";
            Some(error_detail(
                "missing",
                "the outcome is missing",
                hint,
                "outcome",
            ))
        }
        tool_call::Verb::Finish(finish) => {
            blank("summary", &finish.summary).or_else(|| finish_error(finish))
        }
    }
}

/// Checks that the relay would fail at the end, when the agent can no longer correct it.
fn finish_error(finish: &Finish) -> Option<ErrorDetail> {
    if finish.result.len() > codes::MAX_RESULT_BYTES {
        let hint = "write the result to a file and give the file's name instead";
        return Some(error_detail(
            "too_large",
            "the result is too long",
            hint,
            "result",
        ));
    }
    let code = finish.failure_code.as_str();
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    let is_valid = code.len() <= codes::MAX_CODE_BYTES && code.bytes().all(is_word);
    (!is_valid || !codes::is_allowed_from_agent(code)).then(|| {
        let hint =
            "use a code of your own with at most 64 characters of a-z, 0-9, '-', '_' and '.', or leave it out";
        let message = "the failure code is malformed or reserved";
        error_detail("malformed_name", message, hint, "failure_code")
    })
}

pub(crate) fn error_detail(code: &str, message: &str, hint: &str, field: &str) -> ErrorDetail {
    ErrorDetail {
        code: code.to_owned(),
        message: message.to_owned(),
        hint: hint.to_owned(),
        field: field.to_owned(),
        ..ErrorDetail::default()
    }
}

fn unknown_verb() -> ErrorDetail {
    let hint = "the tool server and the daemon have different versions; restart the daemon";
    error_detail(
        "unknown_verb",
        "this daemon does not support the verb",
        hint,
        "",
    )
}

/// More calls than this would slow down other attempts.
fn too_many_calls() -> ToolAnswer {
    let message = "too many calls of this attempt are open";
    let hint = "wait for the answers to earlier calls, then call again";
    let error = ErrorDetail {
        retryable: true,
        ..error_detail("too_many_calls", message, hint, "")
    };
    refused_answer("resource_exhausted", error)
}

/// The attempt ended while its call was handled, or the daemon is stopping.
fn attempt_over() -> ToolAnswer {
    let hint = "stop: calls for this attempt are not accepted any more";
    refused_answer(
        "failed_precondition",
        error_detail("attempt_over", "the attempt is over", hint, ""),
    )
}

pub(crate) fn refused_answer(status: &str, error: ErrorDetail) -> ToolAnswer {
    ToolAnswer {
        answer: Some(tool_answer::Answer::Refused(ToolRefused {
            status: status.to_owned(),
            error: Some(error),
        })),
    }
}

pub(crate) fn noted_answer(delivered: bool) -> ToolAnswer {
    ToolAnswer {
        answer: Some(tool_answer::Answer::Noted(Noted { delivered })),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{BlockDraft, CheckpointDraft, ProgressUpdate};
    use baton_proto::worker::Finish;

    use super::super::tool_client::{ToolEndpoint, call_tool};
    use super::*;

    /// A socket whose calls are answered, except those with the capability `greedy.`, which
    /// wait forever.
    fn start_test_socket(dir: &Path) -> impl Fn(&str) -> ToolEndpoint {
        let (calls, mut requests) = mpsc::channel(CALL_QUEUE_SIZE);
        let tool_socket = ToolSocket::bind(dir).unwrap();
        tokio::spawn(tool_socket.serve_connections(calls));
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while let Some(ToolRequest { secret, kind }) = requests.recv().await {
                match kind {
                    ToolRequestKind::Call { reply, .. } if secret == GREEDY => waiting.push(reply),
                    ToolRequestKind::Call { reply, .. } => reply.send(noted_answer(true)).unwrap(),
                    ToolRequestKind::RequiredFiles(reply) => reply.send(None).unwrap(),
                }
            }
        });
        let socket = dir.join(SOCKET_FILE);
        move |capability| ToolEndpoint::new(socket.clone(), capability.to_owned())
    }

    const GREEDY: &str = "greedy.";

    fn progress() -> tool_call::Verb {
        tool_call::Verb::Progress(ProgressUpdate::default())
    }

    async fn assert_noted(endpoint: &ToolEndpoint) {
        // Shorter than the read timeout of a silent connection.
        let answer = tokio::time::timeout(READ_TIMEOUT / 2, call_tool(endpoint, progress())).await;
        let answer = answer.expect("an answer in time").unwrap().answer;
        assert!(matches!(answer, Some(tool_answer::Answer::Noted(_))));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn silent_connections_do_not_block_tool_calls() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = start_test_socket(dir.path())("other.");
        let socket = dir.path().join(SOCKET_FILE);
        let idle = tokio::task::spawn_blocking(move || {
            let connect = |_| std::os::unix::net::UnixStream::connect(&socket).unwrap();
            (0..2 * MAX_CONNECTIONS).map(connect).collect::<Vec<_>>()
        });
        let idle = idle.await.unwrap();
        for _ in 0..8 {
            assert_noted(&endpoint).await;
        }
        drop(idle);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_attempts_open_calls_do_not_block_other_attempts() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = start_test_socket(dir.path());
        let greedy = endpoint(GREEDY);
        let mut open_calls = JoinSet::new();
        for _ in 0..=ToolCallLimiter::MAX_CALLS_PER_ATTEMPT {
            let greedy = greedy.clone();
            open_calls.spawn(async move { call_tool(&greedy, progress()).await });
        }
        // All but one wait for an answer that does not come.
        let first = open_calls.join_next().await.unwrap().unwrap().unwrap();
        let Some(tool_answer::Answer::Refused(refused)) = first.answer else {
            panic!("{first:?}");
        };
        let error = refused.error.unwrap();
        assert!(error.code == "too_many_calls" && error.retryable);
        assert_noted(&endpoint("other.")).await;
    }

    /// No supervisor is needed: the channel is closed and the call has no capability.
    #[tokio::test]
    async fn a_malformed_call_is_refused_without_the_supervisor() {
        let (calls, supervisor) = mpsc::channel(1);
        drop(supervisor);
        let blank = |text: &str| {
            [
                tool_call::Verb::Block(BlockDraft {
                    reason: text.to_owned(),
                    ..BlockDraft::default()
                }),
                tool_call::Verb::Checkpoint(CheckpointDraft {
                    summary: text.to_owned(),
                    ..CheckpointDraft::default()
                }),
                tool_call::Verb::Finish(Finish {
                    summary: text.to_owned(),
                    outcome: 1,
                    ..Finish::default()
                }),
            ]
        };
        for (text, status) in [
            (" \t", "invalid_argument"),
            ("words", "failed_precondition"),
        ] {
            for verb in blank(text) {
                let call = ToolCall {
                    capability: None,
                    verb: Some(verb),
                };
                let Some(tool_answer::Answer::Refused(refused)) =
                    answer_call(call, &calls).await.answer
                else {
                    panic!("the call was not refused");
                };
                assert_eq!(refused.status, status);
            }
        }
        let answer = answer_call(ToolCall::default(), &calls).await.answer;
        assert!(
            matches!(answer, Some(tool_answer::Answer::Refused(refused)) if refused.status == "unimplemented")
        );
    }
}
