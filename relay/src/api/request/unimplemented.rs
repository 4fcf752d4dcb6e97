//! RPCs of the protocol that this version does not implement. Each fails with UNIMPLEMENTED and the
//! code `unimplemented`.
//!
//! They are refused after authentication and before decoding, so no handler is needed. Remove an
//! entry when its handler is written.

const UNIMPLEMENTED_RPCS: &[&str] = &["/baton.v1.Tasks/WatchMany"];

/// The RPC's path, if it is not implemented.
pub(crate) fn unimplemented_rpc(path: &str) -> Option<&'static str> {
    UNIMPLEMENTED_RPCS
        .iter()
        .find(|unimplemented| **unimplemented == path)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::permission::{RpcAccess, access};

    #[test]
    fn every_unimplemented_rpc_is_published() {
        for path in UNIMPLEMENTED_RPCS {
            assert!(matches!(access(path), RpcAccess::Roles(_)), "{path}");
            assert_eq!(unimplemented_rpc(path), Some(*path));
        }
        assert_eq!(unimplemented_rpc("/baton.v1.Tasks/Submit"), None);
    }
}
