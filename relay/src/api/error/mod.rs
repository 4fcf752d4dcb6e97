//! Every way an RPC can be refused: the fault as data, its gRPC status and machine code, and the hint for the caller.
//! The only place in the relay that builds an error Status.
//! Looks nothing up and changes no state.

pub(crate) mod fault;
pub(crate) mod hint;
pub(crate) mod status;
