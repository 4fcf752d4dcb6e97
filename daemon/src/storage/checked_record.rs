//! Records in files with checksums: length, checksum of the length, checksum of the message,
//! message. The length has its own checksum, so that a flipped bit in it is not taken for the
//! torn end of a file. Pure.

use prost::Message;

/// Length, its checksum, the message's checksum: big endian.
pub(crate) const HEADER_BYTES: usize = 12;
/// The longest message. The largest frame is 2 MiB; the snapshot of an agent session may
/// contain one such message as escaped text, which every quote and backslash makes longer.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What is at a position of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CheckedRead<'a> {
    /// A complete message, and where the next record begins.
    Whole { message: &'a [u8], next: usize },
    /// The end of the file.
    End,
    /// A record that was not written completely.
    Torn,
    /// A record of full length with wrong contents. `is_last`: nothing follows it.
    Damaged { is_last: bool },
}

/// Appends one record. False: it is too long and nothing was appended.
pub(crate) fn append_record(message: &impl Message, out: &mut Vec<u8>) -> bool {
    let length = message.encoded_len();
    let Some(number) = u32::try_from(length)
        .ok()
        .filter(|_| length <= MESSAGE_BYTES_MAX)
    else {
        return false;
    };
    let bytes = message.encode_to_vec();
    let number = number.to_be_bytes();
    out.reserve(HEADER_BYTES + length);
    out.extend_from_slice(&number);
    out.extend_from_slice(&crc32fast::hash(&number).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
    out.extend_from_slice(&bytes);
    true
}

/// Reads the record that begins at `at`.
pub(crate) fn read_record(file: &[u8], at: usize) -> CheckedRead<'_> {
    let rest = file.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return CheckedRead::End;
    }
    // A file system may have extended the file without writing the bytes.
    if rest.iter().all(|byte| *byte == 0) {
        return CheckedRead::Torn;
    }
    let Some((header, body)) = rest.split_at_checked(HEADER_BYTES) else {
        return CheckedRead::Torn;
    };
    let header_number = |from: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[from..from + 4]);
        bytes
    };
    let (number, number_crc, crc) = (header_number(0), header_number(4), header_number(8));
    let length = usize::try_from(u32::from_be_bytes(number)).unwrap_or(usize::MAX);
    if crc32fast::hash(&number).to_be_bytes() != number_crc || length > MESSAGE_BYTES_MAX {
        return CheckedRead::Damaged { is_last: false };
    }
    let Some((message, after)) = body.split_at_checked(length) else {
        return CheckedRead::Torn;
    };
    if crc32fast::hash(message).to_be_bytes() == crc {
        let next = at + HEADER_BYTES + length;
        CheckedRead::Whole { message, next }
    } else {
        let is_last = after.iter().all(|byte| *byte == 0);
        CheckedRead::Damaged { is_last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_proto::worker::OutboxAcked;

    fn acked(number: u64) -> OutboxAcked {
        OutboxAcked {
            control_seq: number,
            output_offset: u64::MAX,
        }
    }

    fn two() -> (Vec<u8>, usize) {
        let mut file = Vec::new();
        assert!(append_record(&acked(1), &mut file));
        let second = file.len();
        assert!(append_record(&acked(2), &mut file));
        (file, second)
    }

    #[test]
    fn every_cut_of_a_file_ends_in_a_torn_record() {
        let (file, second) = two();
        for length in 0..file.len() {
            let cut = &file[..length];
            let first = read_record(cut, 0);
            match length {
                0 => assert_eq!(first, CheckedRead::End),
                _ if length < second => assert_eq!(first, CheckedRead::Torn, "{length}"),
                _ => assert!(matches!(first, CheckedRead::Whole { next, .. } if next == second)),
            }
        }
        assert_eq!(read_record(&file, file.len()), CheckedRead::End);
        assert_eq!(
            read_record(&[file, vec![0; 5000]].concat(), second * 2),
            CheckedRead::Torn
        );
    }

    #[test]
    fn every_flipped_bit_is_damage_and_not_a_torn_end() {
        let (file, second) = two();
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = if bit / 8 < second {
                read_record(&flipped, 0)
            } else {
                read_record(&flipped, second)
            };
            assert!(
                matches!(found, CheckedRead::Damaged { .. }),
                "bit {bit}: {found:?}"
            );
        }
    }
}
