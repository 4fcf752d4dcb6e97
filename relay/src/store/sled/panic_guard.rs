//! Guards calls into sled that may meet damage. sled reports some damage as an error and panics
//! over other damage. Here both become the same error, so that a bad page costs its own records
//! and not the thread that met it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a step; a panic becomes sled's error for corruption.
pub(crate) fn catch_sled_panic<T>(step: impl FnOnce() -> sled::Result<T>) -> sled::Result<T> {
    // sled keeps no lock while it asserts something about a page; at worst a later call panics
    // again.
    catch_unwind(AssertUnwindSafe(step))
        .unwrap_or(Err(sled::Error::Corruption { at: None, bt: () }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sled_panic_becomes_a_corruption_error_and_other_results_pass() {
        assert_eq!(catch_sled_panic(|| Ok(7)).unwrap(), 7);
        let other = catch_sled_panic::<()>(|| Err(sled::Error::ReportableBug("x".to_owned())));
        assert!(matches!(other, Err(sled::Error::ReportableBug(_))));
        let damage = catch_sled_panic::<()>(|| panic!("cannot find pid 5"));
        assert!(matches!(damage, Err(sled::Error::Corruption { .. })));
    }
}
