//! Asks the person at the terminal what an agent asks, in the middle of `submit --follow`. Only where a person can both
//! see and type; the task goes on meanwhile, and somebody else may be quicker.

use std::collections::VecDeque;
use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_proto::v1::{Input, InputState, TaskEvent, TaskEventKind};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Code;

use crate::answers;
use crate::client::Relay;
use crate::clock;
use crate::commands::inbox;
use crate::console::Console;
use crate::errors::CliError;
use crate::follow::Patience;
use crate::input_view;

#[derive(Debug)]
pub(crate) struct Prompting {
    /// Lines that were typed, each with the number of what was asked then. Full: a second line to the same question is none.
    lines: mpsc::Receiver<(u64, String)>,
    open: VecDeque<Input>,
    /// How often something was asked.
    count: u64,
    /// The number of what is asked now; zero is nothing.
    asked: Arc<AtomicU64>,
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
        let asked = Arc::new(AtomicU64::new(0));
        let asked_then = Arc::clone(&asked);
        // A thread of its own: reading a terminal cannot be called off, and must not keep the command from ending. It reads at
        // once, so that a line is known by what was asked when it was typed.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                let stamped = (asked_then.load(Ordering::Acquire), line);
                if let Err(TrySendError::Closed(_)) = typed.try_send(stamped) {
                    return;
                }
            }
        });
        Some(Self {
            lines,
            open: VecDeque::new(),
            count: 0,
            asked,
        })
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) != 0
    }

    /// Nothing that is typed from here on is an answer. Says whether something was asked.
    fn stop_asking(&self) -> bool {
        self.asked.swap(0, Ordering::AcqRel) != 0
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
                let asked = find(relay, event, false).await?;
                self.open.extend(asked);
            }
            TaskEventKind::InputAnswered | TaskEventKind::InputClosed => {
                self.over(relay, event, console).await?;
            }
            TaskEventKind::Ended => {
                self.open.clear();
                self.stop_asking();
            }
            _other => {}
        }
        self.ask(console);
        Ok(())
    }

    /// It needs no answer any more: somebody else gave one, or nobody will. Whoever sits there learns which.
    async fn over(
        &mut self,
        relay: &Relay,
        event: &TaskEvent,
        console: &Console,
    ) -> Result<(), CliError> {
        let first = self.open.front();
        let first = first.is_some_and(|input| input.input_id == event.input_id);
        self.open.retain(|input| input.input_id != event.input_id);
        if first && self.stop_asking() {
            let now = find(relay, event, true).await?;
            let became = now.map(|input| input_view::became(&input));
            let became = became.unwrap_or_else(|| "it waits for no answer any more".to_owned());
            console.note(&format!("\n({became})"));
        }
        Ok(())
    }

    fn ask(&mut self, console: &Console) {
        let Some(input) = self.open.front().filter(|_| !self.is_asked()) else {
            return;
        };
        for line in input_view::lines(input, clock::wall_ms(), console.note_style()) {
            console.note(&line);
        }
        self.count += 1;
        self.asked.store(self.count, Ordering::Release);
        console.ask(answers::prompt(input));
    }

    /// The next line that was typed to what is asked. Never, where nothing more can be typed. Safe to drop.
    pub(crate) async fn typed(&mut self) -> String {
        while let Some((asked_then, line)) = self.lines.recv().await {
            if asked_then != 0 && asked_then == self.asked.load(Ordering::Acquire) {
                return line;
            }
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
            Ok(Some(words)) => {
                if !give(relay, &input, words, console).await? {
                    console.ask(answers::prompt(&input));
                    return Ok(());
                }
            }
        }
        self.open.pop_front();
        self.stop_asking();
        self.ask(console);
        Ok(())
    }
}

/// What an event is about, as it is now. A relay that is away for a moment is asked again: the task is still followed.
async fn find(
    relay: &Relay,
    event: &TaskEvent,
    include_closed: bool,
) -> Result<Option<Input>, CliError> {
    let mut patience = Patience::default();
    loop {
        match inbox::list(relay, &event.task_id, include_closed).await {
            Ok(listed) => {
                let mut listed = listed.into_iter();
                return Ok(listed.find(|input| input.input_id == event.input_id));
            }
            Err(error) if error.is_transient() => patience.wait(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Whether it needs no answer any more. A refusal is told and not the end: what was refused as an answer is asked again, and
/// so is what the relay may not have heard.
async fn give(
    relay: &Relay,
    input: &Input,
    words: answers::Words,
    console: &Console,
) -> Result<bool, CliError> {
    let request = match answers::request(input, words) {
        Ok(request) => request,
        Err(unclear) => {
            console.note(&unclear.to_string());
            return Ok(false);
        }
    };
    match relay.inputs().answer(request).await.map_err(CliError::from) {
        Ok(response) => {
            let after = response.into_inner().input.unwrap_or_default();
            if after.state() != InputState::Open {
                console.note(&input_view::became(&after));
            }
            Ok(true)
        }
        Err(error @ (CliError::Refused(_) | CliError::Unreachable(_))) => {
            console.note(&error.to_string());
            Ok(is_over(&error))
        }
        Err(error) => Err(error),
    }
}

/// Somebody else was quicker, or nobody waits for it any more. Everything else may still be answered.
fn is_over(refused: &CliError) -> bool {
    const OVER: [Code; 5] = [
        Code::Aborted,
        Code::AlreadyExists,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::PermissionDenied,
    ];
    match refused {
        CliError::Refused(refusal) => OVER.contains(&refusal.code),
        CliError::Usage(_)
        | CliError::Unreachable(_)
        | CliError::Local(_)
        | CliError::Damaged(_)
        | CliError::OutputClosed => false,
    }
}
