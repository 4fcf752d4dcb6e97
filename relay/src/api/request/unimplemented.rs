//! RPCs that the protocol has and this version does not: each answers UNIMPLEMENTED with the code `unimplemented`.
//!
//! They are turned away after authentication and before decoding, so no handler need exist. Remove a row when its
//! handler is written.

const UNIMPLEMENTED_RPCS: &[&str] = &["/baton.v1.Tasks/WatchMany"];

/// The RPC's path, if it is not built.
pub(crate) fn unimplemented_rpc(path: &str) -> Option<&'static str> {
    UNIMPLEMENTED_RPCS
        .iter()
        .find(|unbuilt| **unbuilt == path)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::permission::{RpcAccess, access};

    #[test]
    fn every_unbuilt_rpc_is_a_published_one() {
        for path in UNIMPLEMENTED_RPCS {
            assert!(matches!(access(path), RpcAccess::Roles(_)), "{path}");
            assert_eq!(unimplemented_rpc(path), Some(*path));
        }
        assert_eq!(unimplemented_rpc("/baton.v1.Tasks/Submit"), None);
    }
}
