//! Colour for the few words that deserve it, and none where nobody sees it: not on a terminal, `NO_COLOR`, a dumb one.

use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    colour: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Tone {
    Good,
    Bad,
    Caution,
    Quiet,
}

impl Style {
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
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

    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Caution => "33",
            Tone::Quiet => "2",
        };
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
