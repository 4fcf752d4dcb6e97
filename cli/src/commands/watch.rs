//! `baton watch`: the events of one task until it ends. Also what `submit --wait` and `--follow` wait with.

use baton_proto::to_json;
use baton_proto::v1::{OutputCut, Task, TaskEvent, TaskEventKind, TaskState, WatchTaskRequest};
use baton_proto::{ShortName, v1::CutReason};
use clap::Args;

use crate::args::TaskArg;
use crate::client::Relay;
use crate::commands::inbox;
use crate::console::{Console, OutputSink};
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::{self, Follow, Step};
use crate::output_reader::{OutputReader, Piece, is_for_people};
use crate::prompting::Prompting;
use crate::stop::Interrupt;
use crate::task_view::{self, Progress};

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    task: TaskArg,

    /// Only show events after this revision of the task.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from_revision: u64,

    /// End after the events so far, instead of waiting for the end of the task.
    #[arg(long)]
    history: bool,

    /// Print one JSON object per event and line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: WatchArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
    let request = WatchTaskRequest {
        task_id: task_id.clone(),
        from_revision: args.from_revision,
        history_only: args.history,
    };
    let mut follow = Follow::new(&relay, request);
    let mut interrupt = Interrupt::listen()?;
    loop {
        let step = tokio::select! {
            step = follow.next() => step?,
            () = interrupt.pressed() => return Ok(detached(&task_id, console)),
        };
        match &step {
            Step::Event(event) if args.json => console.json(&to_json(&**event))?,
            Step::Event(event) => {
                console.line(&task_view::event_line(event, console.data_style()))?;
                if event.task_state() == TaskState::Running && !args.history {
                    say_how_to_answer(&relay, event, console).await?;
                }
            }
            Step::HistoryCut { from, to } => console.note(&history_cut_text(*from, *to)),
            Step::CaughtUp(_) | Step::Output(_) => {}
            Step::Ended if args.history => return Ok(Exit::Done),
            Step::Ended => {
                let task = follow::get(&relay, &task_id).await?;
                return Ok(Exit::of_task(task.state()).unwrap_or(Exit::Done));
            }
        }
    }
}

/// What a waiting command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// State changes, on stderr.
    Progress,
    /// State changes on stderr, output of the attempts on stdout; what is asked is asked the person at the terminal.
    Output,
    /// The same, with nobody there who could answer.
    Unattended,
    /// Events as JSON lines on stdout.
    Events,
}

/// How waiting ended.
#[derive(Debug)]
pub(crate) struct Settled {
    pub exit: Exit,
    /// Absent after Ctrl-C.
    pub task: Option<Task>,
}

/// Waits until the task has ended or needs attention; Ctrl-C ends the waiting only.
pub(crate) async fn until_settled(
    relay: &Relay,
    task_id: &str,
    show: Show,
    console: &Console,
) -> Result<Settled, CliError> {
    until_settled_from(relay, task_id, 0, show, console).await
}

/// The same without what was before this revision: it may have ended then, too.
pub(crate) async fn until_settled_from(
    relay: &Relay,
    task_id: &str,
    from_revision: u64,
    show: Show,
    console: &Console,
) -> Result<Settled, CliError> {
    let mut interrupt = Interrupt::listen()?;
    let request = WatchTaskRequest {
        task_id: task_id.to_owned(),
        from_revision,
        ..WatchTaskRequest::default()
    };
    let task = tokio::select! {
        task = settle_from(relay, request, show, console) => task?,
        () = interrupt.pressed() => {
            return Ok(Settled { exit: detached(task_id, console), task: None });
        }
    };
    let exit = Exit::of_task(task.state()).unwrap_or(Exit::NotCompleted);
    if exit == Exit::NeedsAttention {
        console.note(&format!("see what it needs with: baton show {task_id}"));
    }
    Ok(Settled {
        exit,
        task: Some(task),
    })
}

/// The task as it settled.
pub(crate) async fn settle(
    relay: &Relay,
    task_id: &str,
    show: Show,
    console: &Console,
) -> Result<Task, CliError> {
    let request = WatchTaskRequest {
        task_id: task_id.to_owned(),
        ..WatchTaskRequest::default()
    };
    settle_from(relay, request, show, console).await
}

async fn settle_from(
    relay: &Relay,
    request: WatchTaskRequest,
    show: Show,
    console: &Console,
) -> Result<Task, CliError> {
    let task_id = request.task_id.clone();
    let mut follow = Follow::new(relay, request);
    if matches!(show, Show::Output | Show::Unattended) {
        follow = follow.with_output();
    }
    let mut printer = Printer {
        console,
        show,
        progress: Progress::default(),
        sink: OutputSink::new(console),
    };
    let mut person = match show {
        Show::Output => Prompting::begin(console),
        Show::Unattended | Show::Progress | Show::Events => None,
    };
    loop {
        let step = tokio::select! {
            step = follow.next() => step?,
            line = typed(&mut person) => {
                if let Some(person) = &mut person {
                    person.take(&line, relay, console).await?;
                }
                continue;
            }
        };
        printer.step(&step)?;
        if let Step::Event(event) = &step {
            match &mut person {
                Some(person) => person.hear(relay, event, console).await?,
                None if matches!(show, Show::Output | Show::Progress) => {
                    say_how_to_answer(relay, event, console).await?;
                }
                None => {}
            }
        }
        let settled = match follow.settled(&step) {
            // Who reads events wants all of them, and the last one of a finished task is still to come.
            Some(exit) => show != Show::Events || exit == Exit::NeedsAttention,
            None => step == Step::Ended,
        };
        if settled {
            break;
        }
    }
    printer.finish(follow.unread()).await?;
    let task = follow::get(relay, &task_id).await?;
    console.note(&task_view::ending(&task, console.note_style()));
    Ok(task)
}

async fn typed(person: &mut Option<Prompting>) -> String {
    match person {
        Some(person) => person.typed().await,
        None => std::future::pending().await,
    }
}

/// Nobody sees a task wait without being told what for. What its own rules have answered waits for nobody.
async fn say_how_to_answer(
    relay: &Relay,
    event: &TaskEvent,
    console: &Console,
) -> Result<(), CliError> {
    let task = &event.task_id;
    let asked = event.kind() == TaskEventKind::InputAsked;
    if !asked {
        return Ok(());
    }
    let open = match inbox::list(relay, task, false).await {
        Ok(open) => !open.is_empty(),
        // The task is followed on; that it asked is known.
        Err(error) if error.is_transient() => true,
        Err(error) => return Err(error),
    };
    if open {
        console.note(&format!(
            "it asks something; see it with: baton inbox --task {task}"
        ));
    }
    Ok(())
}

struct Printer<'a> {
    console: &'a Console,
    show: Show,
    progress: Progress,
    sink: OutputSink<'a>,
}

impl Printer<'_> {
    fn step(&mut self, step: &Step) -> Result<(), CliError> {
        match step {
            Step::Event(event) if self.show == Show::Events => {
                self.console.json(&to_json(&**event))
            }
            Step::Event(event) => {
                if let Some(line) = self.progress.line(event, self.console.note_style()) {
                    self.console.note(&line);
                }
                Ok(())
            }
            Step::Output(piece) => self.piece(piece),
            Step::HistoryCut { .. } | Step::CaughtUp(_) | Step::Ended => Ok(()),
        }
    }

    fn piece(&mut self, piece: &Piece) -> Result<(), CliError> {
        match piece {
            Piece::Bytes(chunk) if is_for_people(chunk) => self.sink.write(&chunk.data),
            Piece::Bytes(_) => Ok(()),
            Piece::Cut(cut) => {
                self.console.note(&cut_text(cut));
                Ok(())
            }
            Piece::End(_) => Ok(()),
        }
    }

    /// Prints what was stored but not shown yet when the task settled.
    async fn finish(mut self, unread: Vec<OutputReader>) -> Result<(), CliError> {
        for mut reader in unread {
            loop {
                let piece = reader.next().await?;
                if matches!(piece, Piece::End(_)) {
                    break;
                }
                self.piece(&piece)?;
            }
        }
        self.sink.finish()
    }
}

fn history_cut_text(from: u64, to: u64) -> String {
    format!("[events {from} to {to} are no longer kept; the task's record holds what they led to]")
}

/// Missing output is always said.
pub(crate) fn cut_text(cut: &OutputCut) -> String {
    let reason = match cut.reason() {
        CutReason::Unspecified => "for an unknown reason",
        known => known.short_name(),
    };
    if cut.length_unknown {
        let offset = cut.offset;
        return format!(
            "[output from offset {offset} on may be missing, nobody knows how much: {reason}]"
        );
    }
    format!(
        "[{} bytes of output at offset {} are missing: {reason}]",
        cut.length, cut.offset
    )
}

/// Ctrl-C ends the looking, never the task.
fn detached(task_id: &str, console: &Console) -> Exit {
    console.note(&format!(
        "detached; the task goes on\n  come back with: baton watch {task_id}\n  see its output: baton output {task_id} \
         --follow\n  stop it with:   baton cancel {task_id}"
    ));
    Exit::Interrupted
}
