//! `baton inbox`: what waits for an answer, and with --follow what is asked and answered from now on.

use std::collections::HashMap;

use baton_proto::to_json;
use baton_proto::v1::{
    Input, InputState, ListInputsRequest, ListInputsResponse, WatchInputsRequest,
};
use clap::Args;

use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::{Patience, ended_early};
use crate::ids;
use crate::input_view;
use crate::stop::Interrupt;

#[derive(Args, Debug)]
pub(crate) struct InboxArgs {
    /// Only what this task asks.
    #[arg(
        long,
        value_name = "TASK",
        default_value = "",
        hide_default_value = true
    )]
    task: String,

    /// Also what is no longer open, of one task.
    #[arg(long, requires = "task", conflicts_with = "follow")]
    all: bool,

    /// Stay, and show what is asked and what becomes of it, until Ctrl-C.
    #[arg(long)]
    follow: bool,

    /// Print one JSON object with the list in `inputs`; with --follow one object per input and line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(mut args: InboxArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    args.task = ids::task(&relay, &args.task).await?;
    if args.follow {
        return follow(&relay, args, console).await;
    }
    let inputs = list(&relay, &args.task, args.all).await?;
    if args.json {
        let list = ListInputsResponse {
            inputs,
            ..ListInputsResponse::default()
        };
        console.json(&to_json(&list))?;
        return Ok(Exit::Done);
    }
    if inputs.is_empty() {
        console.note("nothing waits for an answer");
    }
    for input in &inputs {
        show(input, false, console)?;
    }
    Ok(Exit::Done)
}

/// Every page of what is asked.
pub(crate) async fn list(
    relay: &Relay,
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

fn show(input: &Input, json: bool, console: &Console) -> Result<(), CliError> {
    if json {
        return console.json(&to_json(input));
    }
    for line in input_view::lines(input, clock::wall_ms(), console.data_style()) {
        console.line(&line)?;
    }
    console.flush()
}

async fn follow(relay: &Relay, args: InboxArgs, console: &Console) -> Result<Exit, CliError> {
    let mut interrupt = Interrupt::listen()?;
    tokio::select! {
        ended = watch(relay, &args, console) => ended,
        () = interrupt.pressed() => Ok(Exit::Interrupted),
    }
}

/// A stream that broke is opened again; what was shown is not shown twice.
async fn watch(relay: &Relay, args: &InboxArgs, console: &Console) -> Result<Exit, CliError> {
    let mut shown: HashMap<String, InputState> = HashMap::new();
    let mut patience = Patience::default();
    loop {
        let error = match watch_once(relay, args, &mut shown, &mut patience, console).await {
            Ok(()) => ended_early(),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        patience.wait(error).await?;
    }
}

async fn watch_once(
    relay: &Relay,
    args: &InboxArgs,
    shown: &mut HashMap<String, InputState>,
    patience: &mut Patience,
    console: &Console,
) -> Result<(), CliError> {
    let request = WatchInputsRequest {
        task_id: args.task.clone(),
    };
    let mut inputs = relay.inputs().watch_inputs(request).await?.into_inner();
    while let Some(message) = inputs.message().await? {
        *patience = Patience::default();
        // An empty message says that a quiet stream lives.
        let Some(input) = message.input else { continue };
        let state = input.state();
        if shown.insert(input.input_id.clone(), state) != Some(state) {
            show(&input, args.json, console)?;
        }
        if matches!(state, InputState::Received | InputState::Closed) {
            shown.remove(&input.input_id);
        }
    }
    Ok(())
}
