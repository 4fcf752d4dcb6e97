//! The socket itself: accepts, reads one call, has it answered, closes. What a call means is the supervisor's to decide;
//! what can be refused without anybody's state is refused here, before a capability is even looked at.

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

/// Connections at one time. Full: whoever has been silent for longest goes, so that nobody can keep the others out by
/// saying nothing.
const MAX_CONNECTIONS: usize = 256;
/// Calls on their way to the supervisor. Full: their connections wait.
pub(crate) const CALL_QUEUE_SIZE: usize = 16;
/// For a whole call to come in.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for the relay to have what was said. After that it is told that the daemon has it.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A call whose shape is right, for the supervisor.
#[derive(Debug)]
pub(crate) struct ToolRequest {
    pub(crate) secret: String,
    pub(crate) kind: ToolRequestKind,
}

#[derive(Debug)]
pub(crate) enum ToolRequestKind {
    /// Which files the attempt has to leave. They are looked at here, where waiting harms nobody.
    RequiredFiles(oneshot::Sender<Option<RequiredFiles>>),
    Call {
        verb: tool_call::Verb,
        reply: oneshot::Sender<ToolAnswer>,
    },
}

/// Bound, not yet answering.
#[derive(Debug)]
pub(crate) struct ToolSocket {
    listener: StdUnixListener,
}

impl ToolSocket {
    pub(crate) fn bind(data_dir: &Path) -> io::Result<Self> {
        let listener = private_socket::bind(data_dir, SOCKET_FILE)?;
        Ok(Self { listener })
    }

    /// Answers for ever.
    pub(crate) async fn serve_connections(
        self,
        calls: mpsc::Sender<ToolRequest>,
    ) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener)?;
        let mut open = JoinSet::new();
        let shares = ToolCallLimiter::default();
        let mut silent: VecDeque<oneshot::Sender<Never>> = VecDeque::new();
        loop {
            silent.retain(|silent| !silent.is_closed());
            let room = open.len() < MAX_CONNECTIONS;
            if !room {
                drop(silent.pop_front());
            }
            let accepted = tokio::select! {
                Some(_) = open.join_next() => continue,
                accepted = listener.accept(), if room => accepted,
            };
            match accepted {
                Ok((peer, _)) => {
                    let (staying, sent_away) = oneshot::channel();
                    silent.push_back(staying);
                    open.spawn(handle_connection(
                        peer,
                        sent_away,
                        calls.clone(),
                        shares.clone(),
                    ));
                }
                Err(error) => {
                    debug!(%error, "a tool's call was not accepted");
                    // Out of descriptors: trying again at once would spin.
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

/// Who has said what it wants is not sent away any more.
async fn handle_connection(
    mut peer: UnixStream,
    sent_away: oneshot::Receiver<Never>,
    calls: mpsc::Sender<ToolRequest>,
    shares: ToolCallLimiter,
) {
    let heard = tokio::select! {
        biased;
        heard = tokio::time::timeout(READ_TIMEOUT, read_call(&mut peer)) => heard,
        _ = sent_away => return debug!("a silent connection made room for others"),
    };
    let call = match heard {
        Ok(Ok(call)) => call,
        Ok(Err(error)) => return debug!(%error, "a tool's call broke off"),
        Err(_) => return debug!("a tool's call took too long"),
    };
    let answer = match shares.try_acquire(&call) {
        Some(_share) => answer_call(call, &calls).await,
        None => too_many_calls(),
    };
    let mut out = BytesMut::new();
    if encode(&answer, &mut out).is_ok() {
        // A caller that went away wants no answer.
        let _ = peer.write_all(&out).await;
    }
}

async fn read_call(peer: &mut UnixStream) -> io::Result<ToolCall> {
    let mut decoder = MessageDecoder::default();
    loop {
        let taken = decoder.next_message();
        if let Some(call) = taken.map_err(|_| io::ErrorKind::InvalidData)? {
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
    if let Some(wrong) = shape_error(&verb) {
        return refused_answer("invalid_argument", wrong);
    }
    let secret = call.capability.unwrap_or_default().value;
    if let Some(unmet) = missing_files_refusal(&secret, &verb, calls).await {
        return unmet;
    }
    let (reply, answer) = oneshot::channel();
    let asked = ToolRequest {
        secret,
        kind: ToolRequestKind::Call { verb, reply },
    };
    if calls.send(asked).await.is_err() {
        return attempt_over();
    }
    match tokio::time::timeout(DELIVERY_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => attempt_over(),
        Err(_) => noted_answer(false),
    }
}

/// What a completion would be refused for: all of it, and the attempt goes on.
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
    let asked = ToolRequest {
        secret: secret.to_owned(),
        kind: ToolRequestKind::RequiredFiles(reply),
    };
    calls.send(asked).await.ok()?;
    // Whoever may not speak has no files either, and is refused with what he says.
    let files = files.await.ok()??;
    let unmet = files.unmet_requirements(INSPECTION_TIMEOUT).await;
    if unmet.is_empty() || !files.allows_retry() {
        return None;
    }
    let hint = "write them, then call task_complete again; or call task_block";
    let missing = ErrorDetail {
        missing: unmet.iter().map(|unmet| unmet.path.clone()).collect(),
        ..error_detail("contract_unmet", "required files are missing", hint, "")
    };
    Some(refused_answer("failed_precondition", missing))
}

/// Shape alone: a blank reason is refused whoever asks, and about whatever.
fn shape_error(verb: &tool_call::Verb) -> Option<ErrorDetail> {
    let blank = |field: &str, text: &str| {
        let is_blank = text.trim().is_empty();
        is_blank.then(|| {
            error_detail(
                "blank",
                &format!("{field} is blank"),
                "say it in words",
                field,
            )
        })
    };
    match verb {
        tool_call::Verb::Look(_) | tool_call::Verb::Progress(_) => None,
        tool_call::Verb::Checkpoint(draft) => blank("summary", &draft.summary),
        tool_call::Verb::Block(draft) => blank("reason", &draft.reason),
        tool_call::Verb::Finish(finish) if finish.outcome() == FinishOutcome::Unspecified => {
            let next = "it is completed, failed or canceled";
            Some(error_detail(
                "missing",
                "the outcome is missing",
                next,
                "outcome",
            ))
        }
        tool_call::Verb::Finish(finish) => {
            blank("summary", &finish.summary).or_else(|| finish_error(finish))
        }
    }
}

/// What the relay would refuse at the very end, when nobody could say it otherwise any more.
fn finish_error(finish: &Finish) -> Option<ErrorDetail> {
    if finish.result.len() > codes::MAX_RESULT_BYTES {
        let next = "write it to a file and name that instead";
        return Some(error_detail(
            "too_large",
            "the result is too long",
            next,
            "result",
        ));
    }
    let code = finish.failure_code.as_str();
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    let good = code.len() <= codes::MAX_CODE_BYTES && code.bytes().all(is_word);
    (!good || !codes::is_allowed_from_agent(code)).then(|| {
        let next =
            "use a word of your own, of at most 64 of a-z, 0-9, '-', '_' and '.', or leave it out";
        let message = "the failure code is not one that an agent may say";
        error_detail("malformed_name", message, next, "failure_code")
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
    let hint = "the tools are of another version than the daemon; restart the daemon";
    error_detail(
        "unknown_verb",
        "this daemon does not know the verb",
        hint,
        "",
    )
}

/// More than its share would keep other attempts from theirs.
fn too_many_calls() -> ToolAnswer {
    let message = "too many calls of this attempt are being answered";
    let hint = "wait for their answers, then call again";
    let error = ErrorDetail {
        retryable: true,
        ..error_detail("too_many_calls", message, hint, "")
    };
    refused_answer("resource_exhausted", error)
}

/// It ended while its agent was heard, or the daemon stops.
fn attempt_over() -> ToolAnswer {
    let hint = "stop: nobody listens to this attempt any more";
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

    /// A desk that has its calls answered, but for those of the capability `greedy.`, which wait for ever.
    fn start_test_socket(dir: &Path) -> impl Fn(&str) -> ToolEndpoint {
        let (calls, mut asked) = mpsc::channel(CALL_QUEUE_SIZE);
        let desk = ToolSocket::bind(dir).unwrap();
        tokio::spawn(desk.serve_connections(calls));
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while let Some(ToolRequest { secret, kind: step }) = asked.recv().await {
                match step {
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

    async fn assert_noted(place: &ToolEndpoint) {
        // Less than a silent one may take.
        let answer = tokio::time::timeout(READ_TIMEOUT / 2, call_tool(place, progress())).await;
        let answer = answer.expect("an answer in time").unwrap().answer;
        assert!(matches!(answer, Some(tool_answer::Answer::Noted(_))));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_says_nothing_keeps_nobody_from_the_tools() {
        let dir = tempfile::tempdir().unwrap();
        let place = start_test_socket(dir.path())("other.");
        let socket = dir.path().join(SOCKET_FILE);
        let idle = tokio::task::spawn_blocking(move || {
            let connect = |_| std::os::unix::net::UnixStream::connect(&socket).unwrap();
            (0..2 * MAX_CONNECTIONS).map(connect).collect::<Vec<_>>()
        });
        let idle = idle.await.unwrap();
        for _ in 0..8 {
            assert_noted(&place).await;
        }
        drop(idle);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_attempt_has_its_share_of_calls_and_the_others_have_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let place = start_test_socket(dir.path());
        let greedy = place(GREEDY);
        let mut asking = JoinSet::new();
        for _ in 0..=ToolCallLimiter::MAX_CALLS_PER_ATTEMPT {
            let greedy = greedy.clone();
            asking.spawn(async move { call_tool(&greedy, progress()).await });
        }
        // All but one wait for an answer that does not come.
        let first = asking.join_next().await.unwrap().unwrap().unwrap();
        let Some(tool_answer::Answer::Refused(refused)) = first.answer else {
            panic!("{first:?}");
        };
        let error = refused.error.unwrap();
        assert!(error.code == "too_many_calls" && error.retryable);
        assert_noted(&place("other.")).await;
    }

    /// Nobody is asked: the other end of the channel is gone, and a capability is not even there.
    #[tokio::test]
    async fn what_is_wrong_in_shape_is_refused_before_anybody_is_asked() {
        let (calls, nobody) = mpsc::channel(1);
        drop(nobody);
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
                    panic!("it was not refused");
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
