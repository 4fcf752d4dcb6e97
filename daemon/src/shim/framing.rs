//! Messages on a Unix socket: four bytes of length, big endian, then the message. No async
//! runtime is needed: bytes are fed as they come, and messages are returned when they are
//! complete.

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

/// The longest message. It must hold a prompt of 1 MiB and the largest environment that a
/// system allows.
pub const LARGEST_MESSAGE: usize = 2 * 1024 * 1024 + 64 * 1024;

const LENGTH_BYTES: usize = 4;

/// The input does not follow this protocol; the connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum FramingError {
    #[error("a message of {0} bytes is longer than {LARGEST_MESSAGE}")]
    TooLong(usize),
    #[error("a message cannot be decoded: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Appends one message to the output.
pub fn encode(message: &impl Message, out: &mut BytesMut) -> Result<(), FramingError> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .ok()
        .filter(|_| length <= LARGEST_MESSAGE);
    let prefix = prefix.ok_or(FramingError::TooLong(length))?;
    out.reserve(LENGTH_BYTES + length);
    out.put_u32(prefix);
    // The buffer has room, which is the only reason why encoding could fail.
    message
        .encode(out)
        .map_err(|_| FramingError::TooLong(length))
}

/// Assembles messages from the bytes of one connection.
#[derive(Debug, Default)]
pub struct MessageDecoder {
    buffer: BytesMut,
}

impl MessageDecoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// A buffer that a reader may append to, instead of [`MessageDecoder::feed`].
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next complete message. After an error no more messages follow.
    pub fn next_message<M: Message + Default>(&mut self) -> Result<Option<M>, FramingError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > LARGEST_MESSAGE {
            return Err(FramingError::TooLong(length));
        }
        if self.buffer.len() < LENGTH_BYTES + length {
            // Reserves exactly what is needed: doubling would leave memory behind.
            self.buffer
                .reserve(LENGTH_BYTES + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        let body = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() {
            // It may have grown for a prompt of 1 MiB, and a connection is idle most of the
            // time.
            self.buffer = BytesMut::new();
        }
        Ok(Some(M::decode(body)?))
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::worker::{Stdin, ToShim, to_shim};
    use bytes::Bytes;

    use super::*;

    fn stdin(id: u64, length: usize) -> ToShim {
        let data = Bytes::from(vec![7; length]);
        let message = to_shim::Message::Stdin(Stdin {
            id,
            data,
            close: false,
        });
        ToShim {
            message: Some(message),
        }
    }

    #[test]
    fn messages_are_decoded_from_bytes_in_any_pieces() {
        let sent = [stdin(1, 0), stdin(2, 100_000), stdin(3, 5)];
        let mut out = BytesMut::new();
        for message in &sent {
            encode(message, &mut out).unwrap();
        }
        for step in [1, 3, 4, 1000, out.len()] {
            let mut decoder = MessageDecoder::default();
            let mut seen = Vec::new();
            for bytes in out.chunks(step) {
                decoder.feed(bytes);
                while let Some(message) = decoder.next_message::<ToShim>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, sent);
        }
    }

    #[test]
    fn an_invalid_length_is_an_error_before_memory_is_used() {
        let mut decoder = MessageDecoder::default();
        decoder.feed(&u32::MAX.to_be_bytes());
        let refused = decoder.next_message::<ToShim>();
        assert!(matches!(refused, Err(FramingError::TooLong(_))));
        let mut decoder = MessageDecoder::default();
        decoder.feed(&[0, 0, 0, 2, 0xff, 0xff]);
        let refused = decoder.next_message::<ToShim>();
        assert!(matches!(refused, Err(FramingError::Malformed(_))));
        let mut out = BytesMut::new();
        let too_long = encode(&stdin(1, LARGEST_MESSAGE), &mut out);
        assert!(matches!(too_long, Err(FramingError::TooLong(_))) && out.is_empty());
    }

    #[test]
    fn a_message_of_a_newer_version_has_no_content() {
        let mut decoder = MessageDecoder::default();
        // Field 200, length-delimited, empty.
        decoder.feed(&[0, 0, 0, 3, 0xc2, 0x0c, 0]);
        assert_eq!(
            decoder.next_message::<ToShim>().unwrap(),
            Some(ToShim::default())
        );
    }
}
