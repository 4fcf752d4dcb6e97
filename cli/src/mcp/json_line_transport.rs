//! Reads the protocol's lines from stdin. The library ignores a line that it cannot parse, so the
//! client would wait for its timeout. Here every such line is answered with an error, with the id
//! of the request if it can be found. The length of a line is limited; a longer one is answered
//! with an error as well.

use std::io;
use std::pin::Pin;

use rmcp::model::{ErrorCode, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ErrorData, RoleServer};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader, Empty, empty};

/// Limit on one line, without its line break.
pub(super) const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Some editors write it.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

type IncomingMessage = RxJsonRpcMessage<RoleServer>;
type OutgoingMessage = TxJsonRpcMessage<RoleServer>;

/// Reads lines itself and writes through the library's transport.
pub(super) struct JsonLineTransport<R, W: AsyncWrite> {
    reader: BufReader<R>,
    /// The received part of the current line. `receive` may be dropped at any point and continues
    /// here.
    line: Vec<u8>,
    /// The current line is too long and was answered; its rest is skipped.
    is_skipping: bool,
    writer: AsyncRwTransport<RoleServer, Empty, W>,
    pending_answer: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
}

impl<R, W> JsonLineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(super) fn new(reader: R, writer: W) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
            is_skipping: false,
            writer: AsyncRwTransport::new(empty(), writer),
            pending_answer: None,
        }
    }

    /// `None` when stdin is closed. A last line without a line break is dropped.
    async fn next_message(
        &mut self,
    ) -> io::Result<Option<Result<IncomingMessage, UnreadableLine>>> {
        loop {
            let received = self.reader.fill_buf().await?;
            if received.is_empty() {
                return Ok(None);
            }
            let end = received.iter().position(|byte| *byte == b'\n');
            let piece = &received[..end.unwrap_or(received.len())];
            let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
            let is_too_long = piece.len() > room;
            if !self.is_skipping {
                self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.reader.consume(taken);
            let skipped = self.is_skipping;
            self.is_skipping = end.is_none() && (skipped || is_too_long);
            if !skipped && (is_too_long || end.is_some()) {
                let line = std::mem::take(&mut self.line);
                if is_too_long {
                    return Ok(Some(Err(UnreadableLine::too_long(&line))));
                }
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(parse_line(&line)));
                }
            }
        }
    }
}

impl<R, W> Transport<RoleServer> for JsonLineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: OutgoingMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.writer.send(item)
    }

    async fn receive(&mut self) -> Option<IncomingMessage> {
        loop {
            // Error answers are sent one at a time, so a client that sends only unreadable lines
            // has to read the answers.
            if let Some(sending) = &mut self.pending_answer {
                let sent = sending.await;
                self.pending_answer = None;
                sent.ok()?;
            }
            match self.next_message().await.ok()?? {
                Ok(message) => return Some(message),
                Err(unreadable) => {
                    let answer = unreadable.into_error_message();
                    self.pending_answer =
                        answer.map(|answer| Box::pin(self.writer.send(answer)) as _);
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.close().await
    }
}

/// A line that cannot be parsed as a message.
#[derive(Debug)]
struct UnreadableLine {
    code: ErrorCode,
    why: String,
    envelope: LineEnvelope,
}

fn parse_line(line: &[u8]) -> Result<IncomingMessage, UnreadableLine> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    serde_json::from_slice(line).map_err(|error| UnreadableLine {
        code: match error.classify() {
            Category::Syntax | Category::Eof | Category::Io => ErrorCode::PARSE_ERROR,
            Category::Data => ErrorCode::INVALID_REQUEST,
        },
        why: error.to_string(),
        envelope: LineEnvelope::scan(line),
    })
}

impl UnreadableLine {
    fn too_long(beginning: &[u8]) -> Self {
        Self {
            code: ErrorCode::PARSE_ERROR,
            why: format!("the line is longer than {MAX_LINE_BYTES} bytes"),
            envelope: LineEnvelope::scan(beginning),
        }
    }

    /// `None` if the line was itself an answer: an error in reply to an answer could cause an
    /// endless exchange.
    fn into_error_message(self) -> Option<OutgoingMessage> {
        let Self {
            code,
            why,
            envelope,
        } = self;
        let message = format!(
            "the message cannot be parsed, and nothing was done: {why}; send one JSON-RPC 2.0 message per line, in UTF-8 and \
             without unpaired surrogates"
        );
        let error = ErrorData::new(code, message, None);
        (!envelope.is_answer).then(|| OutgoingMessage::error(error, envelope.id))
    }
}

/// The outermost fields of a line that may be cut off, nested too deeply or contain invalid text.
/// Inner values are skipped.
#[derive(Debug, Default)]
struct LineEnvelope {
    id: Option<RequestId>,
    is_answer: bool,
}

impl LineEnvelope {
    fn scan(line: &[u8]) -> Self {
        let mut envelope = Self::default();
        // After an error, the fields before it are still filled in.
        let _ = serde_json::Deserializer::from_slice(line)
            .deserialize_map(EnvelopeVisitor(&mut envelope));
        envelope
    }
}

struct EnvelopeVisitor<'a>(&'a mut LineEnvelope);

impl<'de> Visitor<'de> for EnvelopeVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "id" => self.0.id = map.next_value()?,
                "result" | "error" => {
                    self.0.is_answer = true;
                    map.next_value::<IgnoredAny>()?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::ServiceExt;
    use serde_json::{Value, json};
    use tokio::io::{AsyncWriteExt, DuplexStream, Lines as Answers, ReadHalf, WriteHalf, split};

    use super::super::server::{McpServer, ServerMode};
    use super::*;

    struct McpTestClient {
        out: WriteHalf<DuplexStream>,
        answers: Answers<BufReader<ReadHalf<DuplexStream>>>,
    }

    impl McpTestClient {
        /// A client of an initialized server.
        async fn initialized() -> Self {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (reader, writer) = split(far);
            let (server, mut calls) = McpServer::new(ServerMode::InsideAttempt);
            tokio::spawn(async move { while calls.recv().await.is_some() {} });
            tokio::spawn(async move {
                let running = server
                    .serve(JsonLineTransport::new(reader, writer))
                    .await
                    .unwrap();
                running.waiting().await
            });
            let (answers, out) = split(near);
            let answers = BufReader::new(answers).lines();
            let mut client = Self { out, answers };
            // A bad line is also answered before the initialization.
            assert_eq!(client.request(b"what?").await["error"]["code"], -32700);
            let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"}}});
            let answer = client.request(hello.to_string().as_bytes()).await;
            assert_eq!(answer["result"]["serverInfo"]["name"], "baton");
            let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            client.send_line(ready).await;
            client
        }

        async fn send_line(&mut self, line: &[u8]) {
            self.out.write_all(line).await.unwrap();
            self.out.write_all(b"\n").await.unwrap();
        }

        async fn request(&mut self, line: &[u8]) -> Value {
            self.send_line(line).await;
            let answer = self.answers.next_line().await.unwrap();
            serde_json::from_str(&answer.expect("an answer")).unwrap()
        }

        /// Checks that no other answer is pending: the next one belongs to this ping.
        async fn expect_idle(&mut self) {
            let ping = br#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#;
            assert_eq!(self.request(ping).await["id"], "ping");
        }
    }

    fn call(id: u32, summary: &[u8]) -> Vec<u8> {
        let head = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"task_progress","arguments":{{"summary":"#
        );
        [head.as_bytes(), summary, b"}}}"].concat()
    }

    #[tokio::test]
    async fn an_unreadable_line_is_answered_with_its_id_if_it_has_one() {
        let mut client = McpTestClient::initialized().await;
        let deep = [vec![b'['; 5_000], vec![b']'; 5_000]].concat();
        let long = [b"\"".as_slice(), &vec![b'x'; MAX_LINE_BYTES], b"\""].concat();
        let late =
            br#"{"method":"tools/call","params":{"name":"\ud83d"},"jsonrpc":"2.0","id":"7"}"#;
        for (line, id) in [
            (call(2, br#""cut \ud83d""#), json!(2)),
            (call(3, b"\"\xff\xfe\""), json!(3)),
            (call(4, &deep), json!(4)),
            (call(5, &long), json!(5)),
            (call(6, b"1e999"), json!(6)),
            (late.to_vec(), json!("7")),
            (br#"{"jsonrpc":"2.0","id":8,"method":"#.to_vec(), json!(8)),
            (b"no JSON".to_vec(), Value::Null),
            (deep, Value::Null),
            (long, Value::Null),
            (br#"{"id":[1],"\ud83d":1}"#.to_vec(), Value::Null),
        ] {
            let answer = client.request(&line).await;
            let shown = String::from_utf8_lossy(&line[..line.len().min(120)]);
            assert_eq!(answer["error"]["code"], -32700, "{shown}: {answer}");
            assert_eq!(answer["id"], id, "{shown}: {answer}");
            client.expect_idle().await;
        }
        let answer = client.request(br#"{"jsonrpc":"2.0","id":9}"#).await;
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(9), &json!(-32600))
        );
    }

    #[tokio::test]
    async fn unreadable_answers_and_empty_lines_are_ignored() {
        let mut client = McpTestClient::initialized().await;
        client
            .send_line(br#"{"jsonrpc":"2.0","id":1,"result":"\ud83d"}"#)
            .await;
        client
            .send_line(br#"{"jsonrpc":"2.0","error":"\ud83d"}"#)
            .await;
        client.send_line(b" \r").await;
        client.expect_idle().await;
        let marked = [
            BYTE_ORDER_MARK,
            br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
        ]
        .concat();
        assert_eq!(client.request(&marked).await["id"], 2);
    }

    #[tokio::test]
    async fn arguments_that_are_not_an_object_are_invalid_params() {
        let mut client = McpTestClient::initialized().await;
        for arguments in [json!([]), json!("text"), json!(7)] {
            let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "task_get", "arguments": arguments}});
            let answer = client.request(line.to_string().as_bytes()).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert_eq!(answer["id"], 1);
        }
        let line = br#"{"jsonrpc":"2.0","id":1,"method":"tools/cull","params":{}}"#;
        assert_eq!(client.request(line).await["error"]["code"], -32601);
    }
}
