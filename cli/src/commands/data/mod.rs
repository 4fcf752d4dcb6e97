//! Export, import and verify of all that a relay stores, through a running relay or on its directory.
//! Reading a directory is done by server/relay_data; these files hold flags, transfer and printing.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod verify;
