//! Reads one attempt's output in order, and goes on at the same byte when the connection breaks in between.

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

/// Whether a person wants to read it. Coding agents also say much about themselves, which `--json` shows.
pub(crate) fn is_user_visible(chunk: &OutputChunk) -> bool {
    chunk.visible || chunk.kind() == OutputKind::Unspecified
}

/// What comes next in the output.
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

    /// The next piece; `End` is the last one. May be dropped and called again without losing anything.
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
                // Empty: it only says that the stream lives.
                Some(ReadOutputResponse { item: None }) => {}
                Some(response) => break response.item,
                None => break None,
            }
        };
        Ok(match item {
            Some(Item::Chunk(chunk)) => {
                // From here on only this attempt is meant, also where the request said "the newest".
                self.request.attempt_id.clone_from(&chunk.attempt_id);
                self.request.from_offset = chunk.end_offset;
                OutputReadItem::Bytes(chunk)
            }
            Some(Item::Cut(cut)) => {
                self.request.from_offset = cut.offset + cut.length;
                OutputReadItem::Cut(cut)
            }
            Some(Item::End(end)) => OutputReadItem::End(end),
            // A followed stream says why it ends; without that the relay went away.
            None if self.request.follow => return Err(stream_closed_error()),
            None => OutputReadItem::End(OutputEnd {
                attempt_id: self.request.attempt_id.clone(),
                offset: self.request.from_offset,
                ..OutputEnd::default()
            }),
        })
    }

    /// Only what is there already, from where this reader stands.
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
    fn what_an_agent_says_about_itself_is_not_for_people() {
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
    async fn output_goes_on_at_the_same_byte_after_a_break() {
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
