//! Credentials: `btn_<id>_<secret>`, of which only the SHA-256 of the secret is ever stored.
//!
//! The secret has 256 random bits, so a plain hash is safe against guessing. Hashes are
//! compared in constant time. This file generates, parses and verifies tokens; `permission.rs`
//! decides which calls they allow.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use baton_core::ids::{TenantScope, TokenId};
use baton_core::time::WallTime;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::role::Role;

const PREFIX: &str = "btn_";
const SECRET_BYTES: usize = 32;

/// A token as it is stored. It contains the hash of the secret, not the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    pub id: TokenId,
    pub name: String,
    pub scope: TenantScope,
    pub role: Role,
    /// Only for role agent: the scope of the tasks that it may claim and pick up.
    pub agent_scope: Option<String>,
    pub secret_sha256: [u8; 32],
    pub created_at: WallTime,
    pub expires_at: Option<WallTime>,
    pub revoked_at: Option<WallTime>,
    /// Name of the credential that created it; `bootstrap` for the first tokens.
    pub created_by: String,
}

impl TokenRecord {
    pub fn is_usable(&self, wall: WallTime) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expiry| wall < expiry)
    }
}

/// A whole token with its secret. `reveal` shows it once; Debug shows only the public half.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    secret: [u8; SECRET_BYTES],
}

impl Token {
    pub fn generate() -> Self {
        Self {
            id: TokenId(Uuid::now_v7()),
            secret: rand::random(),
        }
    }

    /// Accepts exactly one spelling of each token: the one that `reveal` returns.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id = Uuid::try_parse(id)
            .ok()
            .filter(|uuid| uuid.simple().to_string() == id)?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok()?;
        Some(Self {
            id: TokenId(id),
            secret: secret.try_into().ok()?,
        })
    }

    pub fn reveal(&self) -> String {
        let secret = URL_SAFE_NO_PAD.encode(self.secret);
        format!("{PREFIX}{}_{secret}", self.id.0.simple())
    }

    pub fn secret_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.secret).into()
    }

    /// Compares in constant time, so that timing reveals nothing about the secret.
    pub fn matches(&self, secret_sha256: &[u8; 32]) -> bool {
        self.secret_sha256().ct_eq(secret_sha256).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_…", self.id.0.simple())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_as_text_and_debug_hides_its_secret() {
        for _ in 0..64 {
            let token = Token::generate();
            let text = token.reveal();
            assert_eq!(Token::parse(&text), Some(token.clone()));
            assert!(token.matches(&token.secret_sha256()));
            let secret = text.splitn(3, '_').nth(2).unwrap();
            assert!(!format!("{token:?}").contains(secret));
        }
        assert!(!Token::generate().matches(&Token::generate().secret_sha256()));
    }

    #[test]
    fn only_the_canonical_spelling_is_a_token() {
        let good = Token::generate().reveal();
        let upper = good.to_uppercase().replace("BTN_", "btn_");
        let bad = [
            "",
            "btn_",
            "btn__",
            "btn_0197c1de7a4e7d619f3c2f1f6f2c9a10_short",
            &good[1..],
            &format!("{good}="),
            &format!("{good}A"),
            &format!(" {good}"),
            &upper,
        ];
        for text in bad {
            assert_eq!(Token::parse(text), None, "{text:?}");
        }
    }
}
