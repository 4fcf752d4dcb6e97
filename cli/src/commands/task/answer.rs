//! `baton answer`: a word to something that an agent asked.

use baton_proto::to_json;
use baton_proto::v1::{Input, InputState, ListTasksRequest};
use clap::Args;

use crate::args::task_spec::COMMAND_AGENT;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::commands::task::inbox;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::exit_code::CommandExit;
use crate::follow::answer;
use crate::follow::answer::AnswerContent;
use crate::render::console::CliConsole;
use crate::render::input_view;

#[derive(Args, Debug)]
pub(crate) struct AnswerArgs {
    /// Id of the input, as `baton inbox` shows it, or as much of it as no other open one has.
    #[arg(value_name = "INPUT")]
    input_id: String,

    /// Let the tool run, with exactly what was shown.
    #[arg(long, conflicts_with_all = ["deny", "option", "text"])]
    allow: bool,

    /// Do not let the tool run.
    #[arg(long, conflicts_with_all = ["option", "text"])]
    deny: bool,

    /// With --allow: not only this once, but as long as the attempt lasts, where the agent can take that.
    #[arg(long, requires = "allow")]
    for_attempt: bool,

    /// With --allow or --deny: a word to the agent.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          conflicts_with_all = ["option", "text"])]
    message: String,

    /// Choose this option of a question, by its label or its number. May be repeated where several may be chosen.
    #[arg(long, value_name = "OPTION")]
    option: Vec<String>,

    /// Answer a question in words.
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// The task that asks. Needed only to learn what became of an input that was closed long ago.
    #[arg(
        long,
        value_name = "TASK",
        default_value = "",
        hide_default_value = true
    )]
    task: String,

    /// Print the input after the answer as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

impl AnswerArgs {
    fn take_content(&mut self) -> Result<AnswerContent, CliError> {
        let allow = (self.allow || self.deny).then_some(self.allow);
        if allow.is_none() && self.option.is_empty() && self.text.is_none() {
            return Err(CliError::usage(
                "there is no answer in this",
                "say --allow or --deny to a permission, --option or --text to a question",
            ));
        }
        Ok(AnswerContent {
            allow,
            for_attempt: self.for_attempt,
            message: std::mem::take(&mut self.message),
            options: std::mem::take(&mut self.option),
            text: self.text.take(),
        })
    }
}

pub(crate) async fn run(
    mut args: AnswerArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let words = args.take_content()?;
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = id_prefix::resolve_task_id(&relay, &args.task).await?;
    let input_id = id_prefix::resolve_input_id(&relay, &task_id, &args.input_id).await?;
    let input = find_input(&relay, &input_id, &task_id).await?;
    let request = answer::build_answer_request(&input, words)?;
    let response = relay.inputs().answer(request).await?.into_inner();
    let after = response.input.unwrap_or(input);
    if args.json {
        console.json(&to_json(&after))?;
        return Ok(CommandExit::Done);
    }
    if response.already_answered {
        console.note("this had been answered so before");
    }
    console.line(&input_view::outcome_text(&after))?;
    if after.state() == InputState::Answered {
        console.note(
            "it is stored and on its way; the agent gets it even if its daemon is away just now",
        );
    }
    Ok(CommandExit::Done)
}

/// Newest tasks in which an input that is no longer open is looked for; of older ones only --task tells.
const MAX_TASKS_SEARCHED: u32 = 50;

async fn find_input(relay: &RelayClient, input_id: &str, task_id: &str) -> Result<Input, CliError> {
    let is_it = |input: &Input| input.input_id == input_id;
    let listed = inbox::list_inputs(relay, task_id, !task_id.is_empty()).await?;
    let found = match listed.into_iter().find(is_it) {
        None if task_id.is_empty() => find_closed_input(relay, is_it).await?,
        found => found,
    };
    found.ok_or_else(|| {
        CliError::Usage(ErrorText {
            what: format!("nothing with the id {input_id:?} waits for an answer"),
            why: "it was answered, withdrawn or expired, its attempt has ended, or it never was".to_owned(),
            hint: "`baton inbox` lists what is open; with --task TASK this tells what became of one that is not"
                .to_owned(),
        })
    })
}

/// Who comes second learns who was quicker, so what was closed a moment ago is looked for, too.
async fn find_closed_input(
    relay: &RelayClient,
    is_it: impl Fn(&Input) -> bool,
) -> Result<Option<Input>, CliError> {
    let request = ListTasksRequest {
        page_size: MAX_TASKS_SEARCHED,
        ..ListTasksRequest::default()
    };
    let newest = relay.tasks().list(request).await?.into_inner().tasks;
    // Plain commands ask nobody.
    for task in newest.iter().filter(|task| task.agent != COMMAND_AGENT) {
        let listed = inbox::list_inputs(relay, &task.task_id, true).await?;
        if let Some(found) = listed.into_iter().find(&is_it) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
