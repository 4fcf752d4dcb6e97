//! `baton watch`: prints the events of one task until it ends. `submit --wait` and `--follow` use the
//! same code to wait.

use baton_proto::to_json;
use baton_proto::v1::{OutputCut, Task, TaskEvent, TaskEventKind, TaskState, WatchTaskRequest};
use baton_proto::{ShortName, v1::CutReason};
use clap::Args;

use crate::args::shared_args::TaskIdArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::commands::task::inbox;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::input_prompt::InputPrompt;
use crate::follow::output_reader::{AttemptOutputReader, OutputReadItem, is_user_visible};
use crate::follow::task_follower;
use crate::follow::task_follower::{TaskFollowStep, TaskFollower};
use crate::render::console::{AgentOutputSink, CliConsole};
use crate::render::task_view;
use crate::render::task_view::ChangeLines;
use crate::server::stop_signals::InterruptSignal;

#[derive(Args, Debug)]
pub(crate) struct WatchTaskArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Only show events after this revision of the task.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from_revision: u64,

    /// Print the events so far and exit, instead of waiting for the end of the task.
    #[arg(long)]
    history: bool,

    /// Print one JSON object per event and line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: WatchTaskArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = WatchTaskRequest {
        task_id: task_id.clone(),
        from_revision: args.from_revision,
        history_only: args.history,
    };
    let mut follow = TaskFollower::new(&relay, request);
    let mut interrupt = InterruptSignal::listen()?;
    loop {
        let step = tokio::select! {
            step = follow.next() => step?,
            () = interrupt.wait() => return Ok(note_detached(&task_id, console)),
        };
        match &step {
            TaskFollowStep::Event(event) if args.json => console.json(&to_json(&**event))?,
            TaskFollowStep::Event(event) => {
                console.line(&task_view::event_line(event, console.data_style()))?;
                if event.task_state() == TaskState::Running && !args.history {
                    note_open_input(&relay, event, console).await?;
                }
            }
            TaskFollowStep::HistoryCut { from, to } => console.note(&history_cut_text(*from, *to)),
            TaskFollowStep::CaughtUp(_) | TaskFollowStep::Output(_) => {}
            TaskFollowStep::Ended if args.history => return Ok(CommandExit::Done),
            TaskFollowStep::Ended => {
                let task = task_follower::get_task(&relay, &task_id).await?;
                return Ok(CommandExit::for_task_state(task.state()).unwrap_or(CommandExit::Done));
            }
        }
    }
}

/// What a waiting command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitDisplay {
    /// State changes, on stderr.
    Progress,
    /// State changes on stderr, output of the attempts on stdout. Inputs are answered at the terminal.
    Output,
    /// Like `Output`, without a person who could answer.
    Unattended,
    /// Events as JSON lines on stdout.
    Events,
}

/// How waiting ended.
#[derive(Debug)]
pub(crate) struct WaitResult {
    pub exit: CommandExit,
    /// Absent after Ctrl-C.
    pub task: Option<Task>,
}

/// Waits until the task has ended or needs attention; Ctrl-C ends the waiting only.
pub(crate) async fn wait_until_settled(
    relay: &RelayClient,
    task_id: &str,
    show: WaitDisplay,
    console: &CliConsole,
) -> Result<WaitResult, CliError> {
    wait_until_settled_from(relay, task_id, 0, show, console).await
}

/// Like [`wait_until_settled`], but skips the events before this revision. The task may have ended
/// before it as well.
pub(crate) async fn wait_until_settled_from(
    relay: &RelayClient,
    task_id: &str,
    from_revision: u64,
    show: WaitDisplay,
    console: &CliConsole,
) -> Result<WaitResult, CliError> {
    let mut interrupt = InterruptSignal::listen()?;
    let request = WatchTaskRequest {
        task_id: task_id.to_owned(),
        from_revision,
        ..WatchTaskRequest::default()
    };
    let task = tokio::select! {
        task = follow_until_settled_from(relay, request, show, console) => {
            task.map_err(|error| with_watch_hint(error, task_id))?
        }
        () = interrupt.wait() => {
            return Ok(WaitResult { exit: note_detached(task_id, console), task: None });
        }
    };
    let exit = CommandExit::for_task_state(task.state()).unwrap_or(CommandExit::NotCompleted);
    if exit == CommandExit::NeedsAttention {
        console.note(&format!("see why with: baton show {task_id}"));
    }
    Ok(WaitResult {
        exit,
        task: Some(task),
    })
}

/// Repeating the command could submit the work a second time. The task is stored, so it is enough to
/// watch it again.
fn with_watch_hint(error: CliError, task_id: &str) -> CliError {
    match error {
        CliError::Unreachable(mut text) => {
            text.hint = format!(
                "the task continues without this command; when the relay is up again, use: baton watch {task_id}"
            );
            CliError::Unreachable(text)
        }
        CliError::Usage(_)
        | CliError::Rejected(_)
        | CliError::Local(_)
        | CliError::Damaged(_)
        | CliError::OutputClosed => error,
    }
}

/// Returns the task when it has ended or needs attention.
pub(crate) async fn follow_until_settled(
    relay: &RelayClient,
    task_id: &str,
    show: WaitDisplay,
    console: &CliConsole,
) -> Result<Task, CliError> {
    let request = WatchTaskRequest {
        task_id: task_id.to_owned(),
        ..WatchTaskRequest::default()
    };
    follow_until_settled_from(relay, request, show, console).await
}

async fn follow_until_settled_from(
    relay: &RelayClient,
    request: WatchTaskRequest,
    show: WaitDisplay,
    console: &CliConsole,
) -> Result<Task, CliError> {
    let task_id = request.task_id.clone();
    let mut follow = TaskFollower::new(relay, request);
    if matches!(show, WaitDisplay::Output | WaitDisplay::Unattended) {
        follow = follow.with_output();
    }
    let mut printer = FollowPrinter {
        console,
        show,
        progress: ChangeLines::default(),
        sink: AgentOutputSink::new(console),
    };
    let mut person = match show {
        WaitDisplay::Output => InputPrompt::start(console),
        WaitDisplay::Unattended | WaitDisplay::Progress | WaitDisplay::Events => None,
    };
    loop {
        let step = tokio::select! {
            step = follow.next() => step?,
            line = next_typed_line(&mut person) => {
                if let Some(person) = &mut person {
                    person.submit_typed_line(&line, relay, console).await?;
                }
                continue;
            }
        };
        printer.print_step(&step)?;
        if let TaskFollowStep::Event(event) = &step {
            match &mut person {
                Some(person) => person.handle_event(relay, event, console).await?,
                None if matches!(show, WaitDisplay::Output | WaitDisplay::Progress) => {
                    note_open_input(relay, event, console).await?;
                }
                None => {}
            }
        }
        let settled = match follow.exit_if_settled(&step) {
            // A reader of events gets all of them, and the last event of a finished task is still to
            // come.
            Some(exit) => show != WaitDisplay::Events || exit == CommandExit::NeedsAttention,
            None => step == TaskFollowStep::Ended,
        };
        if settled {
            break;
        }
    }
    printer.finish(follow.unread_outputs()).await?;
    let task = task_follower::get_task(relay, &task_id).await?;
    console.note(&task_view::ending_line(&task, console.note_style()));
    Ok(task)
}

async fn next_typed_line(person: &mut Option<InputPrompt>) -> String {
    match person {
        Some(person) => person.next_typed_line().await,
        None => std::future::pending().await,
    }
}

/// Prints a note when the task asks for input. An input that a permission rule has answered already
/// needs none.
async fn note_open_input(
    relay: &RelayClient,
    event: &TaskEvent,
    console: &CliConsole,
) -> Result<(), CliError> {
    let task = &event.task_id;
    let asked = event.kind() == TaskEventKind::InputAsked;
    if !asked {
        return Ok(());
    }
    let open = match inbox::list_inputs(relay, task, false).await {
        Ok(open) => !open.is_empty(),
        // The event shows that an input was asked; following continues.
        Err(error) if error.is_transient() => true,
        Err(error) => return Err(error),
    };
    if open {
        console.note(&format!(
            "the task asks for input; see it with: baton inbox --task {task}"
        ));
    }
    Ok(())
}

struct FollowPrinter<'a> {
    console: &'a CliConsole,
    show: WaitDisplay,
    progress: ChangeLines,
    sink: AgentOutputSink<'a>,
}

impl FollowPrinter<'_> {
    fn print_step(&mut self, step: &TaskFollowStep) -> Result<(), CliError> {
        match step {
            TaskFollowStep::Event(event) if self.show == WaitDisplay::Events => {
                self.console.json(&to_json(&**event))
            }
            TaskFollowStep::Event(event) => {
                if let Some(line) = self.progress.next_line(event, self.console.note_style()) {
                    self.console.note(&line);
                }
                Ok(())
            }
            TaskFollowStep::Output(piece) => self.print_piece(piece),
            TaskFollowStep::HistoryCut { .. }
            | TaskFollowStep::CaughtUp(_)
            | TaskFollowStep::Ended => Ok(()),
        }
    }

    fn print_piece(&mut self, piece: &OutputReadItem) -> Result<(), CliError> {
        match piece {
            OutputReadItem::Bytes(chunk) if is_user_visible(chunk) => self.sink.write(&chunk.data),
            OutputReadItem::Bytes(_) => Ok(()),
            OutputReadItem::Cut(cut) => {
                self.console.note(&cut_text(cut));
                Ok(())
            }
            OutputReadItem::End(_) => Ok(()),
        }
    }

    /// Prints output that was stored but not printed yet when the task settled.
    async fn finish(mut self, unread: Vec<AttemptOutputReader>) -> Result<(), CliError> {
        for mut reader in unread {
            loop {
                let piece = reader.next().await?;
                if matches!(piece, OutputReadItem::End(_)) {
                    break;
                }
                self.print_piece(&piece)?;
            }
        }
        self.sink.finish()
    }
}

fn history_cut_text(from: u64, to: u64) -> String {
    format!("[events {from} to {to} are no longer stored; the task's record has their result]")
}

/// A note about missing output.
pub(crate) fn cut_text(cut: &OutputCut) -> String {
    let reason = match cut.reason() {
        CutReason::Unspecified => "for an unknown reason",
        known => known.short_name(),
    };
    if cut.length_unknown {
        let offset = cut.offset;
        return format!(
            "[output from offset {offset} on may be missing, length unknown: {reason}]"
        );
    }
    format!(
        "[{} bytes of output at offset {} are missing: {reason}]",
        cut.length, cut.offset
    )
}

/// Ctrl-C ends this command, not the task.
fn note_detached(task_id: &str, console: &CliConsole) -> CommandExit {
    console.note(&format!(
        "detached; the task continues\n  watch it again: baton watch {task_id}\n  see its output: baton output {task_id} \
         --follow\n  cancel it:      baton cancel {task_id}"
    ));
    CommandExit::Interrupted
}
