//! The errors of RPCs: the fault as data, its gRPC status and machine code, and the hint for the
//! caller. Only this folder builds an error `Status`. It reads and changes no state.

pub(crate) mod fault;
pub(crate) mod hint;
pub(crate) mod status;
