//! The lines of the protocol on their way in. The library says nothing to a line that it cannot read, and whoever asked would
//! wait for as long as it has patience: here every such line is answered, under the id that it was asked with where one can
//! be found. A line is kept up to a bound, and one that is longer is answered too.

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

/// Of one line, without its end.
pub(super) const LONGEST: usize = 16 * 1024 * 1024;
/// Some editors write one.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

type Heard = RxJsonRpcMessage<RoleServer>;
type Said = TxJsonRpcMessage<RoleServer>;

/// Reads by itself, and writes as the library does.
pub(super) struct Lines<R, W: AsyncWrite> {
    reader: BufReader<R>,
    /// As much of the present line as has come. Every step can be dropped in the middle, and goes on here.
    line: Vec<u8>,
    /// The present line was too long, and has its answer.
    skips: bool,
    writer: AsyncRwTransport<RoleServer, Empty, W>,
    answering: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
}

impl<R, W> Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(super) fn new(reader: R, writer: W) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
            skips: false,
            writer: AsyncRwTransport::new(empty(), writer),
            answering: None,
        }
    }

    /// None when the line is closed; what had no end by then was not meant to be heard.
    async fn next(&mut self) -> io::Result<Option<Result<Heard, Unread>>> {
        loop {
            let come = self.reader.fill_buf().await?;
            if come.is_empty() {
                return Ok(None);
            }
            let end = come.iter().position(|byte| *byte == b'\n');
            let piece = &come[..end.unwrap_or(come.len())];
            let room = LONGEST.saturating_sub(self.line.len());
            let is_too_long = piece.len() > room;
            if !self.skips {
                self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.reader.consume(taken);
            let skipped = self.skips;
            self.skips = end.is_none() && (skipped || is_too_long);
            if !skipped && (is_too_long || end.is_some()) {
                let line = std::mem::take(&mut self.line);
                if is_too_long {
                    return Ok(Some(Err(Unread::too_long(&line))));
                }
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(read(&line)));
                }
            }
        }
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, item: Said) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.writer.send(item)
    }

    async fn receive(&mut self) -> Option<Heard> {
        loop {
            // One after the other: who only sends what nobody can read waits for the answers to be taken.
            if let Some(answering) = &mut self.answering {
                let answered = answering.await;
                self.answering = None;
                answered.ok()?;
            }
            match self.next().await.ok()?? {
                Ok(heard) => return Some(heard),
                Err(unread) => {
                    let answer = unread.answer();
                    self.answering = answer.map(|answer| Box::pin(self.writer.send(answer)) as _);
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.close().await
    }
}

/// A line that is no message, and what can be known of it.
#[derive(Debug)]
struct Unread {
    code: ErrorCode,
    why: String,
    known: Known,
}

fn read(line: &[u8]) -> Result<Heard, Unread> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    serde_json::from_slice(line).map_err(|error| Unread {
        code: match error.classify() {
            Category::Syntax | Category::Eof | Category::Io => ErrorCode::PARSE_ERROR,
            Category::Data => ErrorCode::INVALID_REQUEST,
        },
        why: error.to_string(),
        known: Known::of(line),
    })
}

impl Unread {
    fn too_long(beginning: &[u8]) -> Self {
        Self {
            code: ErrorCode::PARSE_ERROR,
            why: format!("the line is longer than {LONGEST} bytes"),
            known: Known::of(beginning),
        }
    }

    /// None for what was itself an answer: answers to answers would never end.
    fn answer(self) -> Option<Said> {
        let Self { code, why, known } = self;
        let words = format!(
            "the message cannot be read, and nothing was done: {why}; send one JSON-RPC 2.0 message a line, in UTF-8 and \
             without halves of surrogate pairs"
        );
        let error = ErrorData::new(code, words, None);
        (!known.is_answer).then(|| Said::error(error, known.id))
    }
}

/// What is found in a line that may break off, be too deep or hold what is no text: only the outermost names are looked at, and
/// what is between them is passed over unread.
#[derive(Debug, Default)]
struct Known {
    id: Option<RequestId>,
    is_answer: bool,
}

impl Known {
    fn of(line: &[u8]) -> Self {
        let mut known = Self::default();
        // Where it breaks off is no matter: what came before is known.
        let _ = serde_json::Deserializer::from_slice(line).deserialize_map(Names(&mut known));
        known
    }
}

struct Names<'a>(&'a mut Known);

impl<'de> Visitor<'de> for Names<'_> {
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

    use super::super::server::{Server, Standing};
    use super::*;

    struct Client {
        out: WriteHalf<DuplexStream>,
        answers: Answers<BufReader<ReadHalf<DuplexStream>>>,
    }

    impl Client {
        /// Of a server that has been greeted.
        async fn greeted() -> Self {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (reader, writer) = split(far);
            let (server, mut calls) = Server::new(Standing::Inside);
            tokio::spawn(async move { while calls.recv().await.is_some() {} });
            tokio::spawn(async move {
                let running = server.serve(Lines::new(reader, writer)).await.unwrap();
                running.waiting().await
            });
            let (answers, out) = split(near);
            let answers = BufReader::new(answers).lines();
            let mut client = Self { out, answers };
            // Also before the greeting.
            assert_eq!(client.ask(b"what?").await["error"]["code"], -32700);
            let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"}}});
            let told = client.ask(hello.to_string().as_bytes()).await;
            assert_eq!(told["result"]["serverInfo"]["name"], "baton");
            let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            client.say(ready).await;
            client
        }

        async fn say(&mut self, line: &[u8]) {
            self.out.write_all(line).await.unwrap();
            self.out.write_all(b"\n").await.unwrap();
        }

        async fn ask(&mut self, line: &[u8]) -> Value {
            self.say(line).await;
            let answer = self.answers.next_line().await.unwrap();
            serde_json::from_str(&answer.expect("an answer")).unwrap()
        }

        /// The next answer is this one's: nothing else was on its way.
        async fn is_there(&mut self) {
            let ping = br#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#;
            assert_eq!(self.ask(ping).await["id"], "ping");
        }
    }

    fn call(id: u32, summary: &[u8]) -> Vec<u8> {
        let head = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"task_progress","arguments":{{"summary":"#
        );
        [head.as_bytes(), summary, b"}}}"].concat()
    }

    #[tokio::test]
    async fn every_line_that_nobody_can_read_is_answered_under_its_id_where_it_has_one() {
        let mut client = Client::greeted().await;
        let deep = [vec![b'['; 5_000], vec![b']'; 5_000]].concat();
        let long = [b"\"".as_slice(), &vec![b'x'; LONGEST], b"\""].concat();
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
            let answer = client.ask(&line).await;
            let shown = String::from_utf8_lossy(&line[..line.len().min(120)]);
            assert_eq!(answer["error"]["code"], -32700, "{shown}: {answer}");
            assert_eq!(answer["id"], id, "{shown}: {answer}");
            client.is_there().await;
        }
        let answer = client.ask(br#"{"jsonrpc":"2.0","id":9}"#).await;
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(9), &json!(-32600))
        );
    }

    #[tokio::test]
    async fn answers_that_cannot_be_read_and_empty_lines_are_passed_over() {
        let mut client = Client::greeted().await;
        client
            .say(br#"{"jsonrpc":"2.0","id":1,"result":"\ud83d"}"#)
            .await;
        client.say(br#"{"jsonrpc":"2.0","error":"\ud83d"}"#).await;
        client.say(b" \r").await;
        client.is_there().await;
        let marked = [
            BYTE_ORDER_MARK,
            br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
        ]
        .concat();
        assert_eq!(client.ask(&marked).await["id"], 2);
    }

    #[tokio::test]
    async fn arguments_that_are_no_object_are_wrong_arguments_and_not_an_unknown_method() {
        let mut client = Client::greeted().await;
        for arguments in [json!([]), json!("text"), json!(7)] {
            let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "task_get", "arguments": arguments}});
            let answer = client.ask(line.to_string().as_bytes()).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert_eq!(answer["id"], 1);
        }
        let line = br#"{"jsonrpc":"2.0","id":1,"method":"tools/cull","params":{}}"#;
        assert_eq!(client.ask(line).await["error"]["code"], -32601);
    }
}
