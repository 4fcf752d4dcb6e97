//! The kind and visibility of a piece of output.

use baton_proto::v1;

use crate::spool::ChildPipe;

/// What a piece of output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputLabel {
    pub(crate) kind: v1::OutputKind,
    /// Whether people are shown it.
    pub(crate) visible: bool,
    /// The tool call that it belongs to; empty for none.
    pub(crate) tool_call_id: String,
    /// It was printed before the agent had its prompt.
    pub(crate) before_prompt: bool,
}

impl OutputLabel {
    pub(crate) fn is_stderr(&self) -> bool {
        self.kind == v1::OutputKind::Stderr
    }
}

/// All output of a command is visible.
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
