//! All tokens in memory, so that authentication never reads the disk.
//!
//! The table is loaded at start and changed only after the store has made the change durable
//! (`insert`, `revoke`). It contains hashes, no secrets. Revoking a token wakes the streams
//! that it opened.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use baton_core::ids::TokenId;
use baton_core::time::WallTime;
use tokio_util::sync::CancellationToken;

use super::principal::Principal;
use super::token::{Token, TokenRecord};
use crate::clock::RelayClock;

/// Compared with when the id is unknown, so that an unknown id takes as long as a wrong secret.
/// No secret is known to hash to it.
const NO_HASH: [u8; 32] = [0; 32];

/// Table of all tokens. Clones share it.
#[derive(Clone, Debug)]
pub struct TokenTable {
    entries: Arc<RwLock<HashMap<TokenId, TokenEntry>>>,
    clock: RelayClock,
}

#[derive(Clone, Debug)]
struct TokenEntry {
    record: Arc<TokenRecord>,
    revoked: CancellationToken,
}

impl TokenTable {
    pub fn load(records: impl IntoIterator<Item = TokenRecord>, clock: RelayClock) -> Self {
        let tokens = Self {
            entries: Arc::default(),
            clock,
        };
        records.into_iter().for_each(|record| tokens.insert(record));
        tokens
    }

    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// The caller has made `record` durable.
    pub fn insert(&self, record: TokenRecord) {
        let entry = TokenEntry {
            revoked: CancellationToken::new(),
            record: Arc::new(record),
        };
        self.write().insert(entry.record.id, entry);
    }

    /// The caller has made the revocation durable. Ends the token's live streams.
    pub fn revoke(&self, id: TokenId, at: WallTime) {
        if let Some(entry) = self.write().get_mut(&id) {
            Arc::make_mut(&mut entry.record).revoked_at = Some(at);
            entry.revoked.cancel();
        }
    }

    pub fn get(&self, id: TokenId) -> Option<Arc<TokenRecord>> {
        self.read().get(&id).map(|entry| entry.record.clone())
    }

    /// Whether the token exists and is neither revoked nor expired.
    pub fn is_valid(&self, id: TokenId) -> bool {
        let wall = self.clock.now().wall;
        self.get(id).is_some_and(|record| record.is_usable(wall))
    }

    /// All tokens, oldest first.
    pub fn list(&self) -> Vec<Arc<TokenRecord>> {
        let mut records: Vec<_> = self.read().values().map(|k| k.record.clone()).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// The principal of a presented token. `None` does not reveal whether it is unknown, wrong,
    /// expired or revoked.
    pub fn authenticate(&self, token: &Token) -> Option<Principal> {
        let wall = self.clock.now().wall;
        let entry = self.read().get(&token.id).cloned();
        let expected = entry.as_ref().map_or(&NO_HASH, |k| &k.record.secret_sha256);
        let secret_matches = token.matches(expected);
        entry
            .filter(|entry| secret_matches && entry.record.is_usable(wall))
            .map(|entry| Principal::new(&entry.record, entry.revoked))
    }

    // A poisoned lock is safe to use: every change is one insert or one field.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<TokenId, TokenEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<TokenId, TokenEntry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_core::ids::TenantScope;

    use super::super::principal::default_tenant;
    use super::super::role::Role;
    use super::*;
    use crate::clock::RelayClock;

    fn record(token: &Token, expires_at: Option<WallTime>) -> TokenRecord {
        TokenRecord {
            id: token.id,
            name: "ci".into(),
            scope: TenantScope::One(default_tenant()),
            role: Role::Submitter,
            agent_scope: None,
            secret_sha256: token.secret_sha256(),
            created_at: WallTime(1),
            expires_at,
            revoked_at: None,
            created_by: "test".into(),
        }
    }

    #[test]
    fn only_a_known_unexpired_unrevoked_token_authenticates() {
        let (clock, control) = RelayClock::controlled();
        control.freeze();
        let wall = clock.now().wall;
        let (good, expiring, unknown) = (Token::generate(), Token::generate(), Token::generate());
        let records = [
            record(&good, None),
            record(&expiring, Some(WallTime(wall.0 + 50))),
        ];
        let tokens = TokenTable::load(records, clock);
        let (own, other) = (
            good.id.0.simple().to_string(),
            unknown.id.0.simple().to_string(),
        );
        let wrong_secret = Token::parse(&unknown.reveal().replace(&other, &own)).unwrap();

        assert_eq!(tokens.authenticate(&good).unwrap().token, good.id);
        assert!(tokens.authenticate(&unknown).is_none());
        assert!(tokens.authenticate(&wrong_secret).is_none());
        control.jump_wall(49);
        assert!(tokens.authenticate(&expiring).is_some() && tokens.is_valid(expiring.id));
        control.jump_wall(1);
        assert!(tokens.authenticate(&expiring).is_none() && !tokens.is_valid(expiring.id));
        tokens.revoke(good.id, wall);
        assert!(tokens.authenticate(&good).is_none() && !tokens.is_valid(good.id));
        assert_eq!(tokens.get(good.id).unwrap().revoked_at, Some(wall));
    }

    #[tokio::test]
    async fn revocation_and_expiry_end_live_streams() {
        let (clock, control) = RelayClock::controlled();
        control.freeze();
        let wall = clock.now().wall;
        let (revoked, expiring) = (Token::generate(), Token::generate());
        let records = [
            record(&revoked, None),
            record(&expiring, Some(WallTime(wall.0 + 60_000))),
        ];
        let tokens = TokenTable::load(records, clock.clone());
        for (token, revoke) in [(&revoked, true), (&expiring, false)] {
            let principal = tokens.authenticate(token).unwrap();
            let clock = clock.clone();
            let stream = tokio::spawn(async move { principal.ended(&clock).await });
            if revoke {
                tokens.revoke(token.id, wall);
            } else {
                control.jump(60_000);
            }
            let ended = tokio::time::timeout(Duration::from_secs(20), stream).await;
            ended.expect("the stream ends").unwrap();
        }
    }
}
