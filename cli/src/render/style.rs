//! Colour for the few words that deserve it, and none where nobody sees it: not on a terminal, `NO_COLOR`, a dumb one.

use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextStyle {
    colour: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TextTone {
    Good,
    Bad,
    Caution,
    Quiet,
}

impl TextStyle {
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colour: stream.is_terminal() && !unwanted && !dumb,
        }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { colour: false }
    }

    pub(crate) fn paint(self, tone: TextTone, text: &str) -> String {
        let code = match tone {
            TextTone::Good => "32",
            TextTone::Bad => "31",
            TextTone::Caution => "33",
            TextTone::Quiet => "2",
        };
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
