//! Asks the person at the terminal what an agent asks, in the middle of `submit --follow`. Only where a person can both
//! see and type; the task goes on meanwhile, and somebody else may be quicker.

use std::collections::VecDeque;
use std::io::{BufRead, IsTerminal};

use baton_proto::v1::{Input, InputState, TaskEvent, TaskEventKind};
use tokio::sync::mpsc;

use crate::answers;
use crate::client::Relay;
use crate::clock;
use crate::commands::inbox;
use crate::console::Console;
use crate::errors::CliError;
use crate::input_view;

#[derive(Debug)]
pub(crate) struct Prompting {
    /// Lines that were typed. One that nobody asked for waits; more wait in the terminal.
    lines: mpsc::Receiver<String>,
    open: VecDeque<Input>,
    asked: bool,
}

impl Prompting {
    /// None where nobody could answer: stdin, stdout and stderr must all be a terminal.
    pub(crate) fn begin(console: &Console) -> Option<Self> {
        let person = std::io::stdin().is_terminal()
            && console.stdout_is_terminal()
            && console.stderr_is_terminal();
        if !person {
            return None;
        }
        let (typed, lines) = mpsc::channel(1);
        // A thread of its own: reading a terminal cannot be called off, and must not keep the command from ending.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                if typed.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Some(Self {
            lines,
            open: VecDeque::new(),
            asked: false,
        })
    }

    /// What the task's events say about inputs.
    pub(crate) async fn hear(
        &mut self,
        relay: &Relay,
        event: &TaskEvent,
        console: &Console,
    ) -> Result<(), CliError> {
        match event.kind() {
            TaskEventKind::InputAsked => {
                let listed = inbox::list(relay, &event.task_id, false).await?;
                let asked = listed
                    .into_iter()
                    .find(|input| input.input_id == event.input_id);
                self.open.extend(asked);
            }
            TaskEventKind::InputAnswered | TaskEventKind::InputClosed => {
                self.over(&event.input_id, console);
            }
            TaskEventKind::Ended => {
                self.open.clear();
                self.asked = false;
            }
            _other => {}
        }
        self.ask(console);
        Ok(())
    }

    fn over(&mut self, input_id: &str, console: &Console) {
        let first = self
            .open
            .front()
            .is_some_and(|input| input.input_id == input_id);
        self.open.retain(|input| input.input_id != input_id);
        if first && std::mem::take(&mut self.asked) {
            console.note("\n(it has been answered)");
        }
    }

    fn ask(&mut self, console: &Console) {
        let Some(input) = self.open.front().filter(|_| !self.asked) else {
            return;
        };
        self.asked = true;
        for line in input_view::lines(input, clock::wall_ms(), console.note_style()) {
            console.note(&line);
        }
        console.ask(answers::prompt(input));
    }

    /// The next typed line. Never, where nothing is asked or nothing more can be typed. Safe to drop.
    pub(crate) async fn typed(&mut self) -> String {
        if self.asked
            && let Some(line) = self.lines.recv().await
        {
            return line;
        }
        std::future::pending().await
    }

    /// Gives the answer that a line is, if it is one.
    pub(crate) async fn take(
        &mut self,
        line: &str,
        relay: &Relay,
        console: &Console,
    ) -> Result<(), CliError> {
        let Some(input) = self.open.front().cloned() else {
            return Ok(());
        };
        match answers::typed(&input, line) {
            Err(unclear) => {
                console.note(&unclear.to_string());
                console.ask(answers::prompt(&input));
                return Ok(());
            }
            Ok(None) => console.note(&format!("left open; {}", input_view::how_to_answer(&input))),
            Ok(Some(words)) => give(relay, &input, words, console).await?,
        }
        self.open.pop_front();
        self.asked = false;
        self.ask(console);
        Ok(())
    }
}

/// A refusal is told and not the end: somebody else may have been quicker.
async fn give(
    relay: &Relay,
    input: &Input,
    words: answers::Words,
    console: &Console,
) -> Result<(), CliError> {
    let request = answers::request(input, words)?;
    match relay.inputs().answer(request).await.map_err(CliError::from) {
        Ok(response) => {
            let after = response.into_inner().input.unwrap_or_default();
            if after.state() != InputState::Open {
                console.note(&input_view::became(&after));
            }
            Ok(())
        }
        Err(error @ (CliError::Refused(_) | CliError::Unreachable(_))) => {
            console.note(&error.to_string());
            Ok(())
        }
        Err(error) => Err(error),
    }
}
