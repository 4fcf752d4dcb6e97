//! Why a bench could not be run to its end. The caller turns this into its own error and exit code.

use std::fmt;

use tonic::Status;

/// An error that ends a bench. A bench that ran but lost work reports a failed check instead.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The bench was asked for something that cannot work, such as an unwritable directory.
    #[error("{what}")]
    Usage { what: String, hint: String },
    /// The relay under measurement did not accept a connection.
    #[error("connect to the relay at {url}: {why}")]
    Unreachable { url: String, why: String },
    /// A call to the relay failed.
    #[error(transparent)]
    Status(#[from] Status),
    /// Something on this machine failed, or the relay did not do its part.
    #[error("{what}: {why}")]
    Local { what: String, why: String },
}

impl BenchError {
    pub(crate) fn local(what: impl Into<String>, why: impl fmt::Display) -> Self {
        BenchError::Local {
            what: what.into(),
            why: why.to_string(),
        }
    }
}
