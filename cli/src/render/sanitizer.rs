//! Makes text of agents safe for a terminal: removes escape sequences with their payload, control
//! characters and BiDi controls. It is a stream filter whose result does not depend on the chunks.
//! Output to a file or a pipe must not be filtered: it gets the exact bytes.

/// A string sequence (OSC, DCS, …) without an end would hide all following text. After this many
/// characters it is treated as ended.
const MAX_PAYLOAD_CHARS: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapeParserState {
    #[default]
    Ground,
    /// After ESC: the next character decides which sequence it is.
    Escape,
    /// Inside CSI parameters and intermediates.
    Csi,
    /// Inside the payload of OSC, DCS, APC, PM or SOS, `usize` characters long so far.
    Payload { bell_ends: bool, length: usize },
    /// ESC inside a payload: `\` ends it, anything else begins a new sequence.
    PayloadEscape,
}

/// The filter. Push all chunks, then call `finish` once.
#[derive(Debug, Default)]
pub(crate) struct Sanitizer {
    state: EscapeParserState,
    /// The first bytes, at most three, of a character that continues in the next chunk.
    partial: Vec<u8>,
}

impl Sanitizer {
    pub(crate) fn push(&mut self, chunk: &[u8], out: &mut String) {
        let joined;
        let mut rest = if self.partial.is_empty() {
            chunk
        } else {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(chunk);
            joined = bytes;
            &joined[..]
        };
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return self.push_text(text, out),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    self.push_text(std::str::from_utf8(good).unwrap_or_default(), out);
                    let Some(length) = error.error_len() else {
                        self.partial = bad.to_vec();
                        return;
                    };
                    self.push_char(char::REPLACEMENT_CHARACTER, out);
                    rest = &bad[length..];
                }
            }
        }
    }

    /// Ends the stream. An incomplete character becomes a replacement character.
    pub(crate) fn finish(mut self, out: &mut String) {
        if !self.partial.is_empty() {
            self.push_char(char::REPLACEMENT_CHARACTER, out);
        }
    }

    fn push_text(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            self.push_char(c, out);
        }
    }

    fn push_char(&mut self, c: char, out: &mut String) {
        self.state = match self.state {
            EscapeParserState::Ground => ground(c, out),
            EscapeParserState::Escape => escape(c, out),
            EscapeParserState::Csi => csi(c, out),
            EscapeParserState::Payload { bell_ends, length } => payload(c, bell_ends, length),
            EscapeParserState::PayloadEscape if c == '\\' => EscapeParserState::Ground,
            EscapeParserState::PayloadEscape => escape(c, out),
        };
    }
}

/// Sanitizes a short text for tables and messages; line breaks and tabs become spaces.
pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut sanitizer = Sanitizer::default();
    sanitizer.push(text.as_bytes(), &mut out);
    sanitizer.finish(&mut out);
    out.replace(['\n', '\t'], " ")
}

/// For text that a person must see completely before allowing it: nothing is removed, and characters
/// that a terminal would hide, interpret or reorder are escaped.
pub(crate) fn escape_unprintable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let plain = c == '\n' || !(c.is_control() || is_bidi_control(c) || is_invisible(c));
            if plain {
                out.push(c);
            } else {
                out.extend(c.escape_unicode());
            }
        }
        for byte in chunk.invalid() {
            out += &format!("\\x{byte:02x}");
        }
    }
    out
}

/// JSON text without characters that a terminal would interpret or reorder. The value is unchanged:
/// such characters occur only inside strings, where JSON allows them to be escaped.
pub(crate) fn escaped_json(value: &serde_json::Value) -> String {
    let text = value.to_string();
    let harmful = |c: char| (c.is_control() && c > '\u{1f}') || is_bidi_control(c);
    if !text.contains(harmful) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if harmful(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters without a width, which can hide a difference.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn ground(c: char, out: &mut String) -> EscapeParserState {
    if let Some(state) = introducer(c) {
        return state;
    }
    let keep = c == '\n' || c == '\t' || !(c.is_control() || is_bidi_control(c));
    if keep {
        out.push(c);
    }
    EscapeParserState::Ground
}

/// The C1 introducers (as UTF-8 characters) and ESC.
fn introducer(c: char) -> Option<EscapeParserState> {
    match c {
        '\u{1b}' => Some(EscapeParserState::Escape),
        '\u{9b}' => Some(EscapeParserState::Csi),
        '\u{9d}' => Some(payload_start(true)),
        '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => Some(payload_start(false)),
        _ => None,
    }
}

const fn payload_start(bell_ends: bool) -> EscapeParserState {
    EscapeParserState::Payload {
        bell_ends,
        length: 0,
    }
}

fn escape(c: char, out: &mut String) -> EscapeParserState {
    match c {
        '[' => EscapeParserState::Csi,
        ']' => payload_start(true),
        'P' | 'X' | '^' | '_' => payload_start(false),
        // Intermediates (as in `ESC ( B`): the final character is still to come.
        ' '..='/' => EscapeParserState::Escape,
        '0'..='~' => EscapeParserState::Ground,
        _ => ground(c, out),
    }
}

fn csi(c: char, out: &mut String) -> EscapeParserState {
    match c {
        ' '..='?' => EscapeParserState::Csi,
        '@'..='~' => EscapeParserState::Ground,
        // Not a valid CSI sequence: the rest is ordinary text.
        _ => ground(c, out),
    }
}

fn payload(c: char, bell_ends: bool, length: usize) -> EscapeParserState {
    match c {
        '\u{1b}' => EscapeParserState::PayloadEscape,
        '\u{9c}' | '\u{18}' | '\u{1a}' => EscapeParserState::Ground,
        '\u{7}' if bell_ends => EscapeParserState::Ground,
        _ if length >= MAX_PAYLOAD_CHARS => EscapeParserState::Ground,
        _ => EscapeParserState::Payload {
            bell_ends,
            length: length + 1,
        },
    }
}

/// Characters that reorder text, so that a person reads something else than a shell would run.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sanitize_whole(bytes: &[u8]) -> String {
        let mut out = String::new();
        let mut sanitizer = Sanitizer::default();
        sanitizer.push(bytes, &mut out);
        sanitizer.finish(&mut out);
        out
    }

    fn sanitize_in_chunks(bytes: &[u8], cuts: &[usize]) -> String {
        let mut out = String::new();
        let mut sanitizer = Sanitizer::default();
        let mut rest = bytes;
        for &size in cuts {
            let (head, tail) = rest.split_at(size.min(rest.len()));
            sanitizer.push(head, &mut out);
            rest = tail;
        }
        sanitizer.push(rest, &mut out);
        sanitizer.finish(&mut out);
        out
    }

    #[test]
    fn sequences_are_removed_with_their_payload() {
        let corpus: &[(&[u8], &str)] = &[
            (b"plain\ttext\n", "plain\ttext\n"),
            (b"\x1b[31mred\x1b[0m", "red"),
            (b"\x1b]0;title\x07after", "after"),
            (b"\x1b]52;c;aGFja2Vk\x1b\\after", "after"),
            (b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
            (
                b"\x1bP1$r0m\x1b\\a\x1b_apc\x1b\\b\x1b^pm\x1b\\c\x1bXsos\x1b\\d",
                "abcd",
            ),
            ("\u{9b}31mred\u{9d}0;t\u{9c}x".as_bytes(), "redx"),
            ("safe\u{202e}txt.exe\u{2069}".as_bytes(), "safetxt.exe"),
            (b"over\rwrite\x08\x7f\r\n", "overwrite\n"),
            (b"\x1b(Bcharset\x1bcreset", "charsetreset"),
            (b"bad \xff\xc3(", "bad \u{fffd}\u{fffd}("),
            (b"cut off \xe2\x82", "cut off \u{fffd}"),
            (b"\x1b[31\nnext line", "\nnext line"),
            (b"\x1b]0;unfinished\x1b[1mbold", "bold"),
        ];
        for (bytes, expected) in corpus {
            assert_eq!(sanitize_whole(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn json_escapes_terminal_controls_and_keeps_its_value() {
        let value = serde_json::json!({
            "a\u{9b}31m": ["\u{1b}[2J", "\u{7f}", "safe\u{202e}txt.exe\u{2069}", "plain €"],
        });
        let text = escaped_json(&value);
        assert!(
            !text.chars().any(|c| c.is_control() || is_bidi_control(c)),
            "{text:?}"
        );
        assert!(text.contains("plain €"));
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn a_payload_without_an_end_is_limited() {
        let mut bytes = b"\x1b]0;".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', MAX_PAYLOAD_CHARS + 10));
        bytes.extend_from_slice(b"visible");
        assert!(sanitize_whole(&bytes).ends_with("visible"));
    }

    /// Bytes that often form sequences; uniform noise seldom does.
    fn terminal_noise() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"\x1b".to_vec()),
            Just(b"\x1b[".to_vec()),
            Just(b"\x1b]".to_vec()),
            Just(b"\x1b\\".to_vec()),
            Just(b"\x07".to_vec()),
            Just("\u{9b}\u{9d}\u{9c}\u{202e}€".as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
            "[a-z0-9;]{0,5}".prop_map(String::into_bytes),
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_result(
            bytes in terminal_noise(),
            cuts in proptest::collection::vec(0usize..5, 0..40),
        ) {
            prop_assert_eq!(sanitize_in_chunks(&bytes, &cuts), sanitize_whole(&bytes));
        }

        #[test]
        fn no_control_character_survives(bytes in terminal_noise()) {
            let clean = sanitize_whole(&bytes);
            let harmless = |c: char| c == '\n' || c == '\t' || !(c.is_control() || is_bidi_control(c));
            prop_assert!(clean.chars().all(harmless), "{clean:?}");
        }
    }

    /// Ordinary text without terminal controls.
    fn plain_text() -> impl Strategy<Value = String> {
        "[a-zA-Z0-9 äß€語🦀.,;:!?()\\[\\]{}<>/\\\\'\"\n\t-]{0,40}"
    }

    /// A complete escape sequence.
    fn sequence() -> impl Strategy<Value = String> {
        prop_oneof![
            "\x1b\\[[0-9;?]{0,8}[A-Za-z]",
            "\x1b\\][0-9]{1,2};[a-z:/]{0,20}\x07",
            "\x1b\\][0-9]{1,2};[a-z:/]{0,20}\x1b\\\\",
            "\x1b[P_^X][a-z0-9$]{0,10}\x1b\\\\",
            "\x1b[()][AB0]",
            "\u{9b}[0-9;]{0,5}m",
        ]
    }

    proptest! {
        #[test]
        fn text_between_sequences_survives_whole(
            pieces in proptest::collection::vec((plain_text(), sequence()), 0..12),
        ) {
            let mixed: String = pieces.iter().flat_map(|(text, sequence)| [text.as_str(), sequence]).collect();
            let text: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
            prop_assert_eq!(sanitize_whole(mixed.as_bytes()), text);
        }

        #[test]
        fn one_line_has_no_line_breaks_and_filtering_is_idempotent(bytes in terminal_noise()) {
            let line = one_line(&String::from_utf8_lossy(&bytes));
            prop_assert!(!line.contains(['\n', '\t', '\r', '\x1b']), "{line:?}");
            let clean = sanitize_whole(&bytes);
            prop_assert_eq!(sanitize_whole(clean.as_bytes()), clean);
        }
    }
}
