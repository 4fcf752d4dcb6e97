//! RPCs that the protocol has and this version does not: each answers UNIMPLEMENTED with the code `unimplemented`.
//!
//! They are turned away after authentication and before decoding, so no handler need exist. Remove a row when its
//! handler is written.

const UNBUILT: &[&str] = &["/baton.v1.Tasks/WatchMany"];

/// The RPC's path, if it is not built.
pub(crate) fn unbuilt(path: &str) -> Option<&'static str> {
    UNBUILT.iter().find(|unbuilt| **unbuilt == path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::permission::{Access, access};

    #[test]
    fn every_unbuilt_rpc_is_a_published_one() {
        for path in UNBUILT {
            assert!(matches!(access(path), Access::Roles(_)), "{path}");
            assert_eq!(unbuilt(path), Some(*path));
        }
        assert_eq!(unbuilt("/baton.v1.Tasks/Submit"), None);
    }
}
