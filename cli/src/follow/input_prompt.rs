//! Prompts the person at the terminal for open inputs during `submit --follow`. Only active if stdin,
//! stdout and stderr are terminals. The task is followed meanwhile, and another person may answer first.

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
    /// Typed lines, each with the number of the prompt at that time. A line that finds the queue full is
    /// dropped: it is a second line for the same prompt.
    typed_lines: mpsc::Receiver<(u64, String)>,
    open_inputs: VecDeque<Input>,
    /// Number of prompts shown so far.
    prompt_count: u64,
    /// The number of the current prompt; zero without one.
    current_prompt: Arc<AtomicU64>,
}

impl InputPrompt {
    /// `None` unless stdin, stdout and stderr are all terminals.
    pub(crate) fn start(console: &CliConsole) -> Option<Self> {
        let is_interactive = std::io::stdin().is_terminal()
            && console.stdout_is_terminal()
            && console.stderr_is_terminal();
        if !is_interactive {
            return None;
        }
        let (typed, lines) = mpsc::channel(1);
        let current_prompt = Arc::new(AtomicU64::new(0));
        let prompt_of_line = Arc::clone(&current_prompt);
        // A separate thread, because a read from a terminal cannot be canceled and must not keep the
        // command from ending. It reads at once, so that each line gets the number of the prompt at the
        // time it was typed.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                let stamped = (prompt_of_line.load(Ordering::Acquire), line);
                if let Err(TrySendError::Closed(_)) = typed.try_send(stamped) {
                    return;
                }
            }
        });
        Some(Self {
            typed_lines: lines,
            open_inputs: VecDeque::new(),
            prompt_count: 0,
            current_prompt,
        })
    }

    fn is_prompting(&self) -> bool {
        self.current_prompt.load(Ordering::Acquire) != 0
    }

    /// Lines typed from now on are no answers. Returns whether there was a prompt.
    fn end_prompt(&self) -> bool {
        self.current_prompt.swap(0, Ordering::AcqRel) != 0
    }

    /// Opens, removes and shows prompts after an event of the task.
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

    /// Removes an input that another person has answered or that was closed, and shows its outcome.
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
            let outcome = now.map(|input| input_view::outcome_text(&input));
            let outcome = outcome.unwrap_or_else(|| "no answer is needed any more".to_owned());
            console.note(&format!("\n({outcome})"));
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

    /// The next line that was typed at the current prompt. Pending forever once stdin is closed. Safe to
    /// drop.
    pub(crate) async fn next_typed_line(&mut self) -> String {
        while let Some((prompt, line)) = self.typed_lines.recv().await {
            if prompt != 0 && prompt == self.current_prompt.load(Ordering::Acquire) {
                return line;
            }
        }
        std::future::pending().await
    }

    /// Sends the answer of a typed line, or repeats the prompt.
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
            Ok(Some(content)) => {
                if !send_answer(relay, &input, content, console).await? {
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

/// The current state of an event's input. Retries if the relay is briefly unreachable, because the
/// task is still followed.
async fn find_input(
    relay: &RelayClient,
    event: &TaskEvent,
    include_closed: bool,
) -> Result<Option<Input>, CliError> {
    let mut backoff = ReconnectBackoff::default();
    loop {
        match inbox::list_inputs(relay, &event.task_id, include_closed).await {
            Ok(listed) => {
                let mut listed = listed.into_iter();
                return Ok(listed.find(|input| input.input_id == event.input_id));
            }
            Err(error) if error.is_transient() => backoff.wait_or_give_up(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Returns whether the input is closed now. A rejection is shown and does not end the command: the
/// prompt is repeated, also if the relay may not have received the answer.
async fn send_answer(
    relay: &RelayClient,
    input: &Input,
    content: answer::AnswerContent,
    console: &CliConsole,
) -> Result<bool, CliError> {
    let request = match answer::build_answer_request(input, content) {
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

/// Whether the rejection means that another person has answered or that the input was closed. After
/// any other error it may still be answered.
fn is_input_closed(error: &CliError) -> bool {
    const CLOSED: [Code; 5] = [
        Code::Aborted,
        Code::AlreadyExists,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::PermissionDenied,
    ];
    match error {
        CliError::Rejected(rejection) => CLOSED.contains(&rejection.code),
        CliError::Usage(_)
        | CliError::Unreachable(_)
        | CliError::Local(_)
        | CliError::Damaged(_)
        | CliError::OutputClosed => false,
    }
}
