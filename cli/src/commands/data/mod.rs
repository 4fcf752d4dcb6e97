//! Export, import and verification of all data of a relay, through a running relay or on its directory.
//! server/relay_data reads a directory; these files contain flags, transfer and printing.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod verify;
