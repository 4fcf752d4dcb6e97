//! `baton inbox`: lists inputs that wait for an answer. With --follow it shows new inputs and answers.

use std::collections::HashMap;

use baton_proto::to_json;
use baton_proto::v1::{
    Input, InputState, ListInputsRequest, ListInputsResponse, WatchInputsRequest,
};
use clap::Args;

use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::{ReconnectBackoff, stream_closed_error};
use crate::render::console::CliConsole;
use crate::render::input_view;
use crate::server::stop_signals::InterruptSignal;

#[derive(Args, Debug)]
pub(crate) struct InboxArgs {
    /// Only inputs of this task.
    #[arg(
        long,
        value_name = "TASK",
        default_value = "",
        hide_default_value = true
    )]
    task: String,

    /// Include closed inputs. Needs --task.
    #[arg(long, requires = "task", conflicts_with = "follow")]
    all: bool,

    /// Keep running and show new inputs and their outcomes until Ctrl-C.
    #[arg(long)]
    follow: bool,

    /// Print one JSON object with the list in `inputs`. With --follow, print one object per input and line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    mut args: InboxArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    args.task = id_prefix::resolve_task_id(&relay, &args.task).await?;
    if args.follow {
        return follow_until_interrupted(&relay, args, console).await;
    }
    let inputs = list_inputs(&relay, &args.task, args.all).await?;
    if args.json {
        let list = ListInputsResponse {
            inputs,
            ..ListInputsResponse::default()
        };
        console.json(&to_json(&list))?;
        return Ok(CommandExit::Done);
    }
    if inputs.is_empty() {
        console.note("no open inputs");
    }
    for input in &inputs {
        print_input(input, false, console)?;
    }
    Ok(CommandExit::Done)
}

/// The inputs of all pages.
pub(crate) async fn list_inputs(
    relay: &RelayClient,
    task_id: &str,
    include_closed: bool,
) -> Result<Vec<Input>, CliError> {
    let mut request = ListInputsRequest {
        task_id: task_id.to_owned(),
        include_closed,
        ..ListInputsRequest::default()
    };
    let mut inputs = Vec::new();
    loop {
        let page = relay.inputs().list_inputs(request.clone()).await?;
        let page = page.into_inner();
        inputs.extend(page.inputs);
        if page.next_page_token.is_empty() {
            return Ok(inputs);
        }
        request.page_token = page.next_page_token;
    }
}

fn print_input(input: &Input, json: bool, console: &CliConsole) -> Result<(), CliError> {
    if json {
        return console.json(&to_json(input));
    }
    for line in input_view::input_lines(input, clock::wall_ms(), console.data_style()) {
        console.line(&line)?;
    }
    console.flush()
}

async fn follow_until_interrupted(
    relay: &RelayClient,
    args: InboxArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let mut interrupt = InterruptSignal::listen()?;
    tokio::select! {
        ended = watch_inputs(relay, &args, console) => ended,
        () = interrupt.wait() => Ok(CommandExit::Interrupted),
    }
}

/// Opens a broken stream again and prints each state of an input only once.
async fn watch_inputs(
    relay: &RelayClient,
    args: &InboxArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let mut shown: HashMap<String, InputState> = HashMap::new();
    let mut backoff = ReconnectBackoff::default();
    loop {
        let error = match watch_stream(relay, args, &mut shown, &mut backoff, console).await {
            Ok(()) => stream_closed_error(),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        backoff.wait_or_give_up(error).await?;
    }
}

async fn watch_stream(
    relay: &RelayClient,
    args: &InboxArgs,
    shown: &mut HashMap<String, InputState>,
    backoff: &mut ReconnectBackoff,
    console: &CliConsole,
) -> Result<(), CliError> {
    let request = WatchInputsRequest {
        task_id: args.task.clone(),
    };
    let mut inputs = relay.inputs().watch_inputs(request).await?.into_inner();
    while let Some(message) = inputs.message().await? {
        *backoff = ReconnectBackoff::default();
        // An empty message only shows that the stream is alive.
        let Some(input) = message.input else { continue };
        let state = input.state();
        if shown.insert(input.input_id.clone(), state) != Some(state) {
            print_input(&input, args.json, console)?;
        }
        if matches!(state, InputState::Received | InputState::Closed) {
            shown.remove(&input.input_id);
        }
    }
    Ok(())
}
