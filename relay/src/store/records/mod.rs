//! Records under keys: key and value format, schema numbers and migration, verification, and
//! the consistent dump of all records. Only the apply step and recovery write here. Must not
//! interpret tasks.

pub(crate) mod dump;
pub(crate) mod key;
pub(crate) mod migration;
pub(crate) mod schema;
pub(crate) mod tree;
pub(crate) mod value;
pub(crate) mod verification;
