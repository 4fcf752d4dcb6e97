//! Reads the output of one attempt in order and continues at the same byte after a broken connection.

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    OutputChunk, OutputCut, OutputEnd, OutputKind, ReadOutputRequest, ReadOutputResponse,
};
use tonic::Streaming;

use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::follow::task_follower::{ReconnectBackoff, stream_closed_error};

#[derive(Debug)]
pub(crate) struct AttemptOutputReader {
    relay: RelayClient,
    request: ReadOutputRequest,
    stream: Option<Streaming<ReadOutputResponse>>,
    backoff: ReconnectBackoff,
}

/// Whether the chunk is meant for people. Coding agents also write internal messages, which only
/// `--json` shows.
pub(crate) fn is_user_visible(chunk: &OutputChunk) -> bool {
    chunk.visible || chunk.kind() == OutputKind::Unspecified
}

/// The next item of the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputReadItem {
    Bytes(OutputChunk),
    Cut(OutputCut),
    End(OutputEnd),
}

impl AttemptOutputReader {
    pub(crate) fn new(relay: RelayClient, request: ReadOutputRequest) -> Self {
        Self {
            relay,
            request,
            stream: None,
            backoff: ReconnectBackoff::default(),
        }
    }

    /// The next item; `End` is the last one. Cancel-safe: it may be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<OutputReadItem, CliError> {
        loop {
            match self.next_piece().await {
                Ok(piece) => {
                    self.backoff = ReconnectBackoff::default();
                    return Ok(piece);
                }
                Err(error) if error.is_transient() => {
                    self.stream = None;
                    self.backoff.wait_or_give_up(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn next_piece(&mut self) -> Result<OutputReadItem, CliError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opened = self.relay.tasks().read_output(self.request.clone()).await?;
                self.stream.insert(opened.into_inner())
            }
        };
        let item = loop {
            match stream.message().await? {
                // An empty message only shows that the stream is alive.
                Some(ReadOutputResponse { item: None }) => {}
                Some(response) => break response.item,
                None => break None,
            }
        };
        Ok(match item {
            Some(Item::Chunk(chunk)) => {
                // From now on read this attempt, even if the request was for the newest one.
                self.request.attempt_id.clone_from(&chunk.attempt_id);
                self.request.from_offset = chunk.end_offset;
                OutputReadItem::Bytes(chunk)
            }
            Some(Item::Cut(cut)) => {
                self.request.from_offset = cut.offset + cut.length;
                OutputReadItem::Cut(cut)
            }
            Some(Item::End(end)) => OutputReadItem::End(end),
            // A followed stream ends with an `End` item; without it the relay has gone.
            None if self.request.follow => return Err(stream_closed_error()),
            None => OutputReadItem::End(OutputEnd {
                attempt_id: self.request.attempt_id.clone(),
                offset: self.request.from_offset,
                ..OutputEnd::default()
            }),
        })
    }

    /// A reader for the stored output after this reader's position, without following.
    pub(crate) fn stored_remainder(self) -> AttemptOutputReader {
        let request = ReadOutputRequest {
            follow: false,
            ..self.request
        };
        AttemptOutputReader::new(self.relay, request)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::follow::scripted_relay::ScriptedRelay;

    fn item(item: Item) -> Result<ReadOutputResponse, Status> {
        Ok(ReadOutputResponse { item: Some(item) })
    }

    fn chunk(offset: u64, data: &'static [u8]) -> Result<ReadOutputResponse, Status> {
        item(Item::Chunk(OutputChunk {
            offset,
            data: data.into(),
            end_offset: offset + data.len() as u64,
            ..OutputChunk::default()
        }))
    }

    #[test]
    fn internal_messages_of_an_agent_are_not_user_visible() {
        let chunk = |kind: OutputKind, visible| OutputChunk {
            kind: kind.into(),
            visible,
            ..OutputChunk::default()
        };
        assert!(is_user_visible(&chunk(OutputKind::Text, true)));
        assert!(is_user_visible(&chunk(OutputKind::Unspecified, false)));
        assert!(!is_user_visible(&chunk(OutputKind::System, false)));
    }

    #[tokio::test]
    async fn output_continues_at_the_same_byte_after_a_broken_connection() {
        let cut = OutputCut {
            offset: 4,
            length: 6,
            ..OutputCut::default()
        };
        let relay = ScriptedRelay::default()
            .output(vec![chunk(0, b"ab"), Err(Status::unavailable("gone"))])
            .output(vec![chunk(2, b"cd"), item(Item::Cut(cut))])
            .output(vec![
                chunk(10, b"ef"),
                item(Item::End(OutputEnd::default())),
            ]);
        let client = relay.serve().await;
        let request = ReadOutputRequest {
            follow: true,
            ..ReadOutputRequest::default()
        };
        let mut reader = AttemptOutputReader::new(client, request);
        let (mut text, mut missing) = (Vec::new(), 0);
        loop {
            match reader.next().await.unwrap() {
                OutputReadItem::Bytes(chunk) => text.extend_from_slice(&chunk.data),
                OutputReadItem::Cut(cut) => missing += cut.length,
                OutputReadItem::End(_) => break,
            }
        }
        assert_eq!((text.as_slice(), missing), (b"abcdef".as_slice(), 6));
        assert_eq!(relay.requested_positions(), [0, 2, 10]);
    }
}
