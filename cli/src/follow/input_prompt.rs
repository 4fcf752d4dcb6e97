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

use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::commands::task::inbox;
use crate::error::cli_error::CliError;
use crate::follow::answer;
use crate::follow::task_follower::ReconnectBackoff;
use crate::render::console::CliConsole;
use crate::render::input_view;

#[derive(Debug)]
pub(crate) struct InputPrompt {
    /// Lines that were typed, each with the number of what was asked then. Full: a second line to the same question is none.
    typed_lines: mpsc::Receiver<(u64, String)>,
    open_inputs: VecDeque<Input>,
    /// How often something was asked.
    prompt_count: u64,
    /// The number of what is asked now; zero is nothing.
    current_prompt: Arc<AtomicU64>,
}

impl InputPrompt {
    /// None where nobody could answer: stdin, stdout and stderr must all be a terminal.
    pub(crate) fn start(console: &CliConsole) -> Option<Self> {
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
            typed_lines: lines,
            open_inputs: VecDeque::new(),
            prompt_count: 0,
            current_prompt: asked,
        })
    }

    fn is_prompting(&self) -> bool {
        self.current_prompt.load(Ordering::Acquire) != 0
    }

    /// Nothing that is typed from here on is an answer. Says whether something was asked.
    fn end_prompt(&self) -> bool {
        self.current_prompt.swap(0, Ordering::AcqRel) != 0
    }

    /// What the task's events say about inputs.
    pub(crate) async fn handle_event(
        &mut self,
        relay: &RelayClient,
        event: &TaskEvent,
        console: &CliConsole,
    ) -> Result<(), CliError> {
        match event.kind() {
            TaskEventKind::InputAsked => {
                let asked = find_input(relay, event, false).await?;
                self.open_inputs.extend(asked);
            }
            TaskEventKind::InputAnswered | TaskEventKind::InputClosed => {
                self.remove_closed_input(relay, event, console).await?;
            }
            TaskEventKind::Ended => {
                self.open_inputs.clear();
                self.end_prompt();
            }
            _other => {}
        }
        self.show_next_prompt(console);
        Ok(())
    }

    /// It needs no answer any more: somebody else gave one, or nobody will. Whoever sits there learns which.
    async fn remove_closed_input(
        &mut self,
        relay: &RelayClient,
        event: &TaskEvent,
        console: &CliConsole,
    ) -> Result<(), CliError> {
        let first = self.open_inputs.front();
        let first = first.is_some_and(|input| input.input_id == event.input_id);
        self.open_inputs
            .retain(|input| input.input_id != event.input_id);
        if first && self.end_prompt() {
            let now = find_input(relay, event, true).await?;
            let became = now.map(|input| input_view::outcome_text(&input));
            let became = became.unwrap_or_else(|| "it waits for no answer any more".to_owned());
            console.note(&format!("\n({became})"));
        }
        Ok(())
    }

    fn show_next_prompt(&mut self, console: &CliConsole) {
        let Some(input) = self.open_inputs.front().filter(|_| !self.is_prompting()) else {
            return;
        };
        for line in input_view::input_lines(input, clock::wall_ms(), console.note_style()) {
            console.note(&line);
        }
        self.prompt_count += 1;
        self.current_prompt
            .store(self.prompt_count, Ordering::Release);
        console.print_prompt(answer::prompt_text(input));
    }

    /// The next line that was typed to what is asked. Never, where nothing more can be typed. Safe to drop.
    pub(crate) async fn next_typed_line(&mut self) -> String {
        while let Some((asked_then, line)) = self.typed_lines.recv().await {
            if asked_then != 0 && asked_then == self.current_prompt.load(Ordering::Acquire) {
                return line;
            }
        }
        std::future::pending().await
    }

    /// Gives the answer that a line is, if it is one.
    pub(crate) async fn submit_typed_line(
        &mut self,
        line: &str,
        relay: &RelayClient,
        console: &CliConsole,
    ) -> Result<(), CliError> {
        let Some(input) = self.open_inputs.front().cloned() else {
            return Ok(());
        };
        match answer::parse_typed_answer(&input, line) {
            Err(unclear) => {
                console.note(&unclear.to_string());
                console.print_prompt(answer::prompt_text(&input));
                return Ok(());
            }
            Ok(None) => console.note(&format!(
                "left open; {}",
                input_view::answer_command(&input)
            )),
            Ok(Some(words)) => {
                if !send_answer(relay, &input, words, console).await? {
                    console.print_prompt(answer::prompt_text(&input));
                    return Ok(());
                }
            }
        }
        self.open_inputs.pop_front();
        self.end_prompt();
        self.show_next_prompt(console);
        Ok(())
    }
}

/// What an event is about, as it is now. A relay that is away for a moment is asked again: the task is still followed.
async fn find_input(
    relay: &RelayClient,
    event: &TaskEvent,
    include_closed: bool,
) -> Result<Option<Input>, CliError> {
    let mut patience = ReconnectBackoff::default();
    loop {
        match inbox::list_inputs(relay, &event.task_id, include_closed).await {
            Ok(listed) => {
                let mut listed = listed.into_iter();
                return Ok(listed.find(|input| input.input_id == event.input_id));
            }
            Err(error) if error.is_transient() => patience.wait_or_give_up(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Whether it needs no answer any more. A refusal is told and not the end: what was refused as an answer is asked again, and
/// so is what the relay may not have heard.
async fn send_answer(
    relay: &RelayClient,
    input: &Input,
    words: answer::AnswerContent,
    console: &CliConsole,
) -> Result<bool, CliError> {
    let request = match answer::build_answer_request(input, words) {
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
                console.note(&input_view::outcome_text(&after));
            }
            Ok(true)
        }
        Err(error @ (CliError::Rejected(_) | CliError::Unreachable(_))) => {
            console.note(&error.to_string());
            Ok(is_input_closed(&error))
        }
        Err(error) => Err(error),
    }
}

/// Somebody else was quicker, or nobody waits for it any more. Everything else may still be answered.
fn is_input_closed(refused: &CliError) -> bool {
    const OVER: [Code; 5] = [
        Code::Aborted,
        Code::AlreadyExists,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::PermissionDenied,
    ];
    match refused {
        CliError::Rejected(refusal) => OVER.contains(&refusal.code),
        CliError::Usage(_)
        | CliError::Unreachable(_)
        | CliError::Local(_)
        | CliError::Damaged(_)
        | CliError::OutputClosed => false,
    }
}
