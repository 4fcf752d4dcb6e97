//! Who may call what: tokens, the principals behind them, roles and the permission table.
//!
//! Authentication happens once per RPC in a tower layer, before any handler. Handlers read the
//! `Principal` from the request and take the tenant from it. Nothing in this folder reads tasks
//! or builds a Status.

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

/// Why a call was refused. `api/error/status.rs` adds the hint for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthFault {
    /// No credential, or one that is malformed, unknown, wrong, expired or revoked. Callers
    /// cannot distinguish these cases.
    #[error("the call carries no valid token")]
    Unauthenticated,
    /// The credential is valid, but its role may not call this RPC.
    #[error(
        "a token of role {role} may not make this call; allowed roles: {}",
        joined_names(may)
    )]
    Forbidden {
        role: Role,
        /// The roles that may make the call.
        may: &'static [Role],
    },
    /// The credential was revoked or expired while a stream that it opened was live.
    #[error("the token was revoked or has expired")]
    CredentialEnded,
}

/// Role names as `admin, operator`.
fn joined_names(roles: &[Role]) -> String {
    let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    names.join(", ")
}
