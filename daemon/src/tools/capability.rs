//! The capability of one attempt: a secret that names the attempt and allows tool calls for it.
//! The agent has it in its environment. The daemon stores only its hash, so that nothing on
//! disk can be used to make calls.

use std::fmt;

use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const SECRET_BYTES: usize = 32;

/// `<attempt id>.<64 hex digits>`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Capability(String);

/// The hash that the daemon stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CapabilityHash([u8; 32]);

impl Capability {
    pub(crate) fn generate(attempt_id: &str) -> Self {
        let mut secret = [0; SECRET_BYTES];
        OsRng
            .try_fill_bytes(&mut secret)
            .expect("the operating system provides random bytes");
        let digits = secret.iter().map(|byte| format!("{byte:02x}"));
        Self(format!("{attempt_id}.{}", digits.collect::<String>()))
    }

    /// The secret itself. It may only be put into the agent's environment.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    pub(crate) fn hash(&self) -> CapabilityHash {
        CapabilityHash(digest(&self.0))
    }
}

impl CapabilityHash {
    /// The attempt that a secret names; `None` if the secret is malformed.
    pub(crate) fn attempt_id_in(secret: &str) -> Option<&str> {
        secret.split_once('.').map(|(attempt_id, _)| attempt_id)
    }

    pub(crate) fn matches_secret(&self, secret: &str) -> bool {
        self.0.ct_eq(&digest(secret)).into()
    }

    pub(crate) fn from_disk(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(redacted)")
    }
}

impl fmt::Debug for CapabilityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapabilityHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_names_its_attempt_and_matches_only_its_own_hash() {
        let (one, other) = (Capability::generate("a-1"), Capability::generate("a-1"));
        assert_eq!(CapabilityHash::attempt_id_in(one.secret()), Some("a-1"));
        assert!(one.hash().matches_secret(one.secret()));
        assert!(
            !one.hash().matches_secret(other.secret()),
            "every capability is unique"
        );
        assert!(!one.hash().matches_secret("a-1."));
        assert_eq!(CapabilityHash::attempt_id_in("nothing"), None);
        assert_eq!(
            CapabilityHash::from_disk(one.hash().bytes()),
            Some(one.hash())
        );
        assert!(CapabilityHash::from_disk(b"short").is_none());
        assert!(!format!("{one:?}").contains(&one.secret()[4..]));
    }
}
