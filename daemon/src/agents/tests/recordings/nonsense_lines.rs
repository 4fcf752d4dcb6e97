//! Detects lines that are not messages from their bytes alone; only the top-level field names
//! of an object are parsed. The adapters' malformed lines are compared with this, so it must
//! not use their parser.

/// Whether a line is a message: of a JSON-RPC wire, or of one whose messages have a type.
pub(super) fn is_message(line: &[u8], rpc: bool) -> bool {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let Some(fields) = fields(line.trim_ascii()) else {
        return false;
    };
    let first = |name: &str| {
        let mut named = fields.iter().filter(|(known, _)| known == name.as_bytes());
        named.next().map(|(_, value)| *value)
    };
    let given = |name: &str| first(name).filter(|value| *value != b'n');
    match rpc {
        false => first("type") == Some(b'"'),
        true => match given("method") {
            Some(value) => value == b'"',
            None => first("id").is_some() && (first("result").or(given("error"))).is_some(),
        },
    }
}

/// The field names of an object that fills the line, each with the first byte of its value.
fn fields(line: &[u8]) -> Option<Vec<(Vec<u8>, u8)>> {
    let mut fields = Vec::new();
    let (mut depth, mut at, mut name) = (0usize, 0, None);
    while at < line.len() {
        let byte = line[at];
        match byte {
            b'"' => {
                let end = string_end(line, at)?;
                if depth == 1 && name.is_none() {
                    name = Some(line[at + 1..end - 1].to_vec());
                } else if depth == 1 {
                    fields.push((name.take()?, byte));
                }
                at = end;
                continue;
            }
            b'{' | b'[' => {
                if depth == 1 {
                    fields.push((name.take()?, byte));
                }
                depth += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    let is_whole_line = line[0] == b'{' && byte == b'}' && at + 1 == line.len();
                    return (is_whole_line && name.is_none()).then_some(fields);
                }
            }
            b':' | b',' | b' ' | b'\t' | b'\r' => {}
            // A number or a literal, recognized by its first byte.
            _ if depth == 1 && name.is_some() => fields.push((name.take()?, byte)),
            _ if depth == 0 => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Index after the closing quote of the string that begins here.
fn string_end(line: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        match line.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[test]
fn messages_are_recognized_without_the_parser() {
    let typed = |line: &[u8]| is_message(line, false);
    let rpc = |line: &[u8]| is_message(line, true);
    assert!(typed(br#"{"a":{"type":1},"b":[{}], "type" : "x}\\\"" }"#));
    assert!(typed(b"\xef\xbb\xbf{\"type\":\"\xff \\ud83d\"}\r"));
    for no in [
        &b"{\"type\":1}"[..],
        b"{\"type\":",
        b"{\"a\":{\"type\":\"x\"}}",
        b"[]",
        b"warning: {\"type\":\"x\"}",
        b"{\"type\":\"x\"} trailing",
        b"\"type\"",
    ] {
        assert!(!typed(no), "{}", String::from_utf8_lossy(no));
    }
    assert!(rpc(br#"{"jsonrpc":"2.0","method":"m"}"#));
    assert!(rpc(br#"{"id":0,"method":null,"result":null}"#));
    assert!(rpc(br#"{"id":null,"error":{"code":1}}"#));
    for no in [
        &br#"{"id":0}"#[..],
        br#"{"method":null,"id":1}"#,
        br#"{"method":7}"#,
        br#"{"id":1,"error":null}"#,
        br#"{"result":{"id":1}}"#,
    ] {
        assert!(!rpc(no), "{}", String::from_utf8_lossy(no));
    }
}
