//! Calls into sled that may meet damage. Some damage is an error of sled's, some is a panic inside it; here both are the
//! same error, so that one bad page costs its own records and not the thread that met it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error that sled has for damage, for what it panicked over.
pub(crate) fn catch_sled_panic<T>(step: impl FnOnce() -> sled::Result<T>) -> sled::Result<T> {
    // sled holds no lock over what it asserts about a page; at worst a later call panics again.
    catch_unwind(AssertUnwindSafe(step))
        .unwrap_or(Err(sled::Error::Corruption { at: None, bt: () }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_damage_and_everything_else_is_what_it_was() {
        assert_eq!(catch_sled_panic(|| Ok(7)).unwrap(), 7);
        let other = catch_sled_panic::<()>(|| Err(sled::Error::ReportableBug("x".to_owned())));
        assert!(matches!(other, Err(sled::Error::ReportableBug(_))));
        let damage = catch_sled_panic::<()>(|| panic!("cannot find pid 5"));
        assert!(matches!(damage, Err(sled::Error::Corruption { .. })));
    }
}
