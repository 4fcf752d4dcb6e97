//! Reads the certificate authority of --ca. A wrong file is reported here, because during the
//! connection it would look like an untrusted relay.

use std::fs;
use std::path::Path;

use crate::error::cli_error::CliError;

const PEM_CERTIFICATE_MARKER: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Returns PEM text with at least one certificate.
pub(crate) fn read_ca_file(path: &Path) -> Result<Vec<u8>, CliError> {
    let shown = path.display();
    let pem = fs::read(path).map_err(|error| {
        CliError::usage(
            format!("cannot read the certificate authority in {shown}: {error}"),
            "pass a PEM file with --ca FILE or BATON_CA",
        )
    })?;
    let has_one = pem
        .windows(PEM_CERTIFICATE_MARKER.len())
        .any(|at| at == PEM_CERTIFICATE_MARKER);
    has_one.then_some(pem).ok_or_else(|| {
        CliError::usage(
            format!("{shown} contains no certificate"),
            "pass the PEM file of the authority that signed the relay's certificate, not a key",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::exit_code::CommandExit;

    #[test]
    fn a_missing_file_or_one_without_a_certificate_is_a_usage_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k.pem");
        let missing = read_ca_file(&file).unwrap_err();
        assert_eq!(missing.exit(), CommandExit::Usage);
        assert!(missing.to_string().contains("try:"), "{missing}");
        fs::write(&file, "-----BEGIN PRIVATE KEY-----\nAA==\n").unwrap();
        let key = read_ca_file(&file).unwrap_err();
        assert_eq!(key.exit(), CommandExit::Usage);
        assert!(
            key.to_string().contains("k.pem contains no certificate"),
            "{key}"
        );
        fs::write(&file, "# mine\n-----BEGIN CERTIFICATE-----\nAA==\n").unwrap();
        assert!(read_ca_file(&file).is_ok());
    }
}
