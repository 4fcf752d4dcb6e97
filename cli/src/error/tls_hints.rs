//! Hints for connections that fail because of TLS: one side uses TLS and the other does not, or the
//! certificate is not trusted. They explain the errors of the TLS library to the person who typed the
//! address.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Limit on one probe of a port that refused our connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The HTTP/2 connection preface with empty settings. A TLS server answers it with an alert.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The first byte of a TLS alert.
const TLS_ALERT: u8 = 0x15;

/// The hint for a failed TLS connection, by its innermost cause.
pub(crate) fn https_hint(url: &str, why: &str) -> Option<String> {
    let why = why.to_lowercase();
    let any = |texts: &[&str]| texts.iter().any(|text| why.contains(text));
    let hint = if any(&[
        "invalidcontenttype",
        "corrupt message",
        "unexpected message",
    ]) {
        let plain = url.replacen("https://", "http://", 1);
        format!("the relay seems to use no TLS: try --relay {plain}, or another port that uses TLS")
    } else if any(&[
        "unknownissuer",
        "unknown issuer",
        "badsignature",
        "self-signed",
        "self signed",
        "caused by other",
    ]) {
        "this machine does not trust the authority that signed the relay's certificate: pass the authority's certificate with --ca FILE"
            .to_owned()
    } else if any(&["causedasendentity"]) {
        "the relay's certificate is itself an authority (CA:TRUE) and cannot identify a server: make it again with \
         basicConstraints=critical,CA:FALSE, or sign a server certificate with your authority"
            .to_owned()
    } else if any(&["notvalidforname", "not valid for"]) {
        "the relay's certificate is for another name: use one of its names in the address, or make a certificate for this one"
            .to_owned()
    } else if any(&["expired", "notvalidyet", "not valid yet"]) {
        "the relay's certificate is not valid now: renew it, and check the clocks of both machines"
            .to_owned()
    } else {
        return None;
    };
    Some(hint)
}

/// The hint for a failed plain HTTP connection: probes whether the port uses TLS.
pub(crate) fn http_hint(url: &str) -> Option<String> {
    let address = url.strip_prefix("http://")?;
    let address = address.split('/').next().unwrap_or(address);
    uses_tls(address).then(|| {
        format!(
            "the relay uses TLS: try --relay https://{address}, with --ca FILE if its certificate is signed by your own authority"
        )
    })
}

fn uses_tls(address: &str) -> bool {
    let probe = || {
        let address = address.to_socket_addrs().ok()?.next()?;
        let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(PROBE_TIMEOUT)).ok()?;
        stream.write_all(HTTP2_PREFACE).ok()?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).ok()?;
        // The alert of any TLS version begins like this.
        Some(answer == [TLS_ALERT, 3])
    };
    probe().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_tls_error_has_its_hint() {
        let url = "https://relay.example:7070";
        for (why, word) in [
            (
                "received corrupt message of type InvalidContentType",
                "http://relay.example:7070",
            ),
            ("invalid peer certificate: UnknownIssuer", "--ca"),
            // An authority with the same name and another key.
            ("invalid peer certificate: BadSignature", "--ca"),
            (
                "invalid peer certificate: certificate not valid for name \"x\"",
                "another name",
            ),
            ("invalid peer certificate: NotValidForName", "another name"),
            (
                "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "CA:FALSE",
            ),
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

    /// Answers the first connection with these bytes.
    fn serve_once(bytes: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 8];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(bytes).unwrap();
        });
        format!("http://{address}/x")
    }

    #[test]
    fn a_tls_port_is_recognized_by_its_alert() {
        let url = serve_once(&[0x15, 3, 3, 0, 2, 2, 22]);
        let hint = http_hint(&url).expect("the alert is recognized");
        assert!(hint.contains("https://127.0.0.1:"), "{hint}");
        assert_eq!(http_hint(&serve_once(b"\0\0\0\x04\0\0\0\0\0")), None);
        assert_eq!(http_hint(&serve_once(b"HTTP/1.1 400 Bad Request")), None);
        assert_eq!(http_hint("http://127.0.0.1:1"), None);
    }
}
