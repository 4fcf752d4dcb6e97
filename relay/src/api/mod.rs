//! The clients' side of the relay: gRPC handlers, checks of shape, conversions and errors.
//!
//! Order in every handler: the principal (from the authentication layer), shape, look-up within the principal's tenant,
//! one request to the dispatcher. Nothing here decides about tasks, and a refused request writes nothing.

pub mod fault;
pub mod limits;
pub mod status;
pub mod validate;
