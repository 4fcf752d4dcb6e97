//! What to try when a connection fails because of TLS: the two ends speak differently, or one does not trust the other. The
//! libraries' words for it are theirs; these are for the person who typed the address.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// For one look at a port that refused to speak with us.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// What a client of HTTP/2 begins with, and its empty settings. Who speaks TLS takes it for nonsense and says so.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The first byte of a TLS alert.
const TLS_ALERT: u8 = 0x15;

/// What may help with a failure to connect with TLS, by the innermost cause.
pub(crate) fn https_hint(url: &str, why: &str) -> Option<String> {
    let why = why.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let hint = if any(&[
        "invalidcontenttype",
        "corrupt message",
        "unexpected message",
    ]) {
        let plain = url.replacen("https://", "http://", 1);
        format!(
            "it seems to speak without TLS: try --relay {plain}, or ask for the port that has TLS"
        )
    } else if any(&[
        "unknownissuer",
        "unknown issuer",
        "badsignature",
        "self-signed",
        "self signed",
        "caused by other",
    ]) {
        "this machine does not know who signed its certificate: name the authority with --ca FILE, or mend a --ca that is another's"
            .to_owned()
    } else if any(&["notvalidforname", "not valid for"]) {
        "its certificate is for another name: use one of its names in the address, or have it certified for this one".to_owned()
    } else if any(&["expired", "notvalidyet", "not valid yet"]) {
        "its certificate is not valid now: renew it, and see whether the clocks of both machines are right"
            .to_owned()
    } else {
        return None;
    };
    Some(hint)
}

/// What may help where plain HTTP was not understood: a look at what the port speaks.
pub(crate) fn http_hint(url: &str) -> Option<String> {
    let address = url.strip_prefix("http://")?;
    let address = address.split('/').next().unwrap_or(address);
    speaks_tls(address).then(|| format!("it speaks TLS: try --relay https://{address}, with --ca FILE where its authority is your own"))
}

fn speaks_tls(address: &str) -> bool {
    let look = || {
        let address = address.to_socket_addrs().ok()?.next()?;
        let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(PROBE_TIMEOUT)).ok()?;
        stream.write_all(HTTP2_PREFACE).ok()?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).ok()?;
        // An alert of any version of TLS.
        Some(answer == [TLS_ALERT, 3])
    };
    look().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_mistake_has_its_hint() {
        let url = "https://relay.example:7070";
        for (why, word) in [
            (
                "received corrupt message of type InvalidContentType",
                "http://relay.example:7070",
            ),
            ("invalid peer certificate: UnknownIssuer", "--ca"),
            // An authority of the same name, with another key.
            ("invalid peer certificate: BadSignature", "--ca"),
            (
                "invalid peer certificate: certificate not valid for name \"x\"",
                "another name",
            ),
            ("invalid peer certificate: NotValidForName", "another name"),
            (
                "invalid peer certificate: certificate expired: verification time",
                "renew",
            ),
        ] {
            let hint = https_hint(url, why).unwrap_or_default();
            assert!(hint.contains(word), "{why}: {hint}");
        }
        assert_eq!(https_hint(url, "connection refused"), None);
    }

    /// Answers whatever comes with these bytes, once.
    fn serve_once(bytes: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; 8];
            stream.read_exact(&mut heard).unwrap();
            stream.write_all(bytes).unwrap();
        });
        format!("http://{address}/x")
    }

    #[test]
    fn a_port_that_speaks_tls_is_known_by_its_alert() {
        let url = serve_once(&[0x15, 3, 3, 0, 2, 2, 22]);
        let hint = http_hint(&url).expect("an alert is an alert");
        assert!(hint.contains("https://127.0.0.1:"), "{hint}");
        assert_eq!(http_hint(&serve_once(b"\0\0\0\x04\0\0\0\0\0")), None);
        assert_eq!(http_hint(&serve_once(b"HTTP/1.1 400 Bad Request")), None);
        assert_eq!(http_hint("http://127.0.0.1:1"), None);
    }
}
