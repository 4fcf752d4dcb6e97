//! Colours for a few words. No colour without a terminal, with `NO_COLOR`, or on a dumb terminal.

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
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colour: stream.is_terminal() && !no_color && !dumb,
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
