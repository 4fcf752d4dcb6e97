//! What a piece of output is, as the wire calls it.

use baton_proto::v1;

use crate::spool::OutputKind;

/// What a piece of output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: v1::OutputKind,
    /// A person would see it.
    pub(crate) visible: bool,
    /// The tool call that it belongs to; empty for none.
    pub(crate) tool: String,
    /// The agent had no prompt yet.
    pub(crate) before_prompt: bool,
}

impl Label {
    pub(crate) fn is_stderr(&self) -> bool {
        self.kind == v1::OutputKind::Stderr
    }
}

/// Whatever a command prints is for people.
impl From<OutputKind> for Label {
    fn from(kind: OutputKind) -> Self {
        Self {
            kind: match kind {
                OutputKind::Stdout => v1::OutputKind::Stdout,
                OutputKind::Stderr => v1::OutputKind::Stderr,
            },
            visible: true,
            tool: String::new(),
            before_prompt: false,
        }
    }
}
