//! The certificate authority that a person names with --ca. A wrong file is told here: later it only looks like an unknown relay.

use std::fs;
use std::path::Path;

use crate::error::cli_error::CliError;

const PEM_CERTIFICATE_MARKER: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// PEM with at least one certificate in it.
pub(crate) fn read_ca_file(path: &Path) -> Result<Vec<u8>, CliError> {
    let shown = path.display();
    let pem = fs::read(path).map_err(|error| {
        CliError::usage(
            format!("read the certificate authority in {shown}: {error}"),
            "name a PEM file with --ca FILE or BATON_CA",
        )
    })?;
    let has_one = pem
        .windows(PEM_CERTIFICATE_MARKER.len())
        .any(|at| at == PEM_CERTIFICATE_MARKER);
    has_one.then_some(pem).ok_or_else(|| {
        CliError::usage(
            format!("{shown} holds no certificate"),
            "name the PEM file of the authority that signed the relay's certificate; a key is none",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::exit_code::CommandExit;

    #[test]
    fn a_file_that_is_missing_or_holds_no_certificate_is_a_usage_error_that_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k.pem");
        let missing = read_ca_file(&file).unwrap_err();
        assert_eq!(missing.exit(), CommandExit::Usage);
        assert!(missing.to_string().contains("try:"), "{missing}");
        fs::write(&file, "-----BEGIN PRIVATE KEY-----\nAA==\n").unwrap();
        let key = read_ca_file(&file).unwrap_err();
        assert_eq!(key.exit(), CommandExit::Usage);
        assert!(
            key.to_string().contains("k.pem holds no certificate"),
            "{key}"
        );
        fs::write(&file, "# mine\n-----BEGIN CERTIFICATE-----\nAA==\n").unwrap();
        assert!(read_ca_file(&file).is_ok());
    }
}
