//! Who may call what: tokens, the principals behind them, roles and the permission table.
//!
//! Authentication happens once per RPC in a tower layer, before any handler; handlers read the `Principal` from the
//! request and take the tenant from it. Nothing here reads tasks or builds a Status.

pub mod auth_layer;
pub mod bootstrap;
pub mod connection_peer;
pub mod permission;
pub mod principal;
pub mod role;
pub mod token;
pub mod token_table;

pub use auth_layer::AuthLayer;
pub use connection_peer::ConnectionPeer;
pub use principal::Principal;
pub use role::Role;
pub use token::{Token, TokenRecord};
pub use token_table::TokenTable;

/// Why a caller was turned away. What it is advised stands in `api/status.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthFault {
    /// No credential, or one that is malformed, unknown, wrong, expired or revoked: all look alike outside.
    #[error("the call carries no valid token")]
    Unauthenticated,
    /// A good credential whose role may not call this.
    #[error("a token of role {role} may not do this; {} may", listed(may))]
    Forbidden {
        role: Role,
        /// Who may instead.
        may: &'static [Role],
    },
    /// The credential ended while a stream that it opened was live.
    #[error("the token was revoked or has expired")]
    CredentialEnded,
}

/// `admin, operator`.
fn listed(roles: &[Role]) -> String {
    let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    names.join(", ")
}
