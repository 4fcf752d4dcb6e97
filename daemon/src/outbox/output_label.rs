//! What a piece of output is, as the wire calls it.

use baton_proto::v1;

use crate::spool::ChildPipe;

/// What a piece of output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputLabel {
    pub(crate) kind: v1::OutputKind,
    /// A person would see it.
    pub(crate) visible: bool,
    /// The tool call that it belongs to; empty for none.
    pub(crate) tool_call_id: String,
    /// The agent had no prompt yet.
    pub(crate) before_prompt: bool,
}

impl OutputLabel {
    pub(crate) fn is_stderr(&self) -> bool {
        self.kind == v1::OutputKind::Stderr
    }
}

/// Whatever a command prints is for people.
impl From<ChildPipe> for OutputLabel {
    fn from(kind: ChildPipe) -> Self {
        Self {
            kind: match kind {
                ChildPipe::Stdout => v1::OutputKind::Stdout,
                ChildPipe::Stderr => v1::OutputKind::Stderr,
            },
            visible: true,
            tool_call_id: String::new(),
            before_prompt: false,
        }
    }
}
