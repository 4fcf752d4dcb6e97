//! The baton executable.
fn main() {}
