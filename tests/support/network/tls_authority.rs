//! A certificate authority for tests.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};

/// Signs certificates for any name.
#[derive(Debug)]
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// PEM files of one server.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl CertificateAuthority {
    /// Its files are written to `dir`, which the caller owns.
    pub fn new(dir: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key can be generated");
        let issuer = CertifiedIssuer::self_signed(params, key);
        let authority = Self {
            issuer: issuer.expect("the authority can sign its own certificate"),
            dir: dir.to_owned(),
        };
        write_file(&authority.ca_file(), &authority.ca_pem());
        authority
    }

    /// The certificate that peers use as trust root.
    pub fn ca_pem(&self) -> String {
        let certificate: &rcgen::Certificate = self.issuer.as_ref();
        certificate.pem()
    }

    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for a host name or an address.
    pub fn issue_certificate(&self, host: &str) -> ServerCertificate {
        let params = CertificateParams::new(vec![host.to_owned()]).expect("the host name is valid");
        let key = KeyPair::generate().expect("a key can be generated");
        let certificate = params.signed_by(&key, &self.issuer);
        let certified = ServerCertificate {
            cert: self.dir.join(format!("{host}.pem")),
            key: self.dir.join(format!("{host}.key")),
        };
        write_file(
            &certified.cert,
            &certificate.expect("the authority signs").pem(),
        );
        write_file(&certified.key, &key.serialize_pem());
        certified
    }
}

fn write_file(file: &Path, text: &str) {
    std::fs::write(file, text).expect("a file can be written");
}
