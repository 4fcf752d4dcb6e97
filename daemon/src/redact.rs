//! Takes Baton's own credentials out of free text before it leaves the machine. Output bytes are not touched:
//! they are the agent's, and lossless.

/// How every credential and lease token begins.
const PREFIXES: [&str; 2] = ["btn_", "rlt_"];
/// Shorter words are names, not secrets.
const SHORTEST: usize = 16;

pub(crate) fn redact(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, prefix)) = first_prefix(rest) {
        let body = &rest[at + prefix.len()..];
        let length = body.bytes().take_while(|b| is_token_byte(*b)).count();
        clean.push_str(&rest[..at + prefix.len()]);
        clean.push_str(if length >= SHORTEST {
            "[redacted]"
        } else {
            &body[..length]
        });
        rest = &body[length..];
    }
    clean + rest
}

fn first_prefix(text: &str) -> Option<(usize, &'static str)> {
    PREFIXES
        .into_iter()
        .filter_map(|prefix| Some((text.find(prefix)?, prefix)))
        .min()
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_and_everything_else_stays() {
        let text = "é btn_0123456789abcdefXY, btn_short rlt_AAAAAAAAAAAAAAAAAAAA\nend";
        assert_eq!(
            redact(text),
            "é btn_[redacted], btn_short rlt_[redacted]\nend"
        );
        assert_eq!(redact(""), "");
    }
}
