//! `baton answer`: answers a permission request or a question of an agent.

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
    /// Id of the input as `baton inbox` shows it, or a unique prefix of it.
    #[arg(value_name = "INPUT")]
    input_id: String,

    /// Allow the tool call exactly as it was shown.
    #[arg(long, conflicts_with_all = ["deny", "option", "text"])]
    allow: bool,

    /// Deny the tool call.
    #[arg(long, conflicts_with_all = ["option", "text"])]
    deny: bool,

    /// With --allow: allow such calls for the rest of the attempt, if the agent supports that.
    #[arg(long, requires = "allow")]
    for_attempt: bool,

    /// With --allow or --deny: a message for the agent.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          conflicts_with_all = ["option", "text"])]
    message: String,

    /// Choose this option of a question, by its label or its number. May be repeated if the question allows several.
    #[arg(long, value_name = "OPTION")]
    option: Vec<String>,

    /// Answer a question with free text.
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// The task that the input belongs to. Only needed to see the outcome of an input that was closed long ago.
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
                "no answer was given",
                "use --allow or --deny for a permission request, --option or --text for a question",
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
    let content = args.take_content()?;
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = id_prefix::resolve_task_id(&relay, &args.task).await?;
    let input_id = id_prefix::resolve_input_id(&relay, &task_id, &args.input_id).await?;
    let input = find_input(&relay, &input_id, &task_id).await?;
    let request = answer::build_answer_request(&input, content)?;
    let response = relay.inputs().answer(request).await?.into_inner();
    let after = response.input.unwrap_or(input);
    if args.json {
        console.json(&to_json(&after))?;
        return Ok(CommandExit::Done);
    }
    if response.already_answered {
        console.note("it was already answered this way");
    }
    console.line(&input_view::outcome_text(&after))?;
    if after.state() == InputState::Answered {
        console
            .note("the answer is stored; the agent receives it even if its daemon is offline now");
    }
    Ok(CommandExit::Done)
}

/// A closed input is searched in this many newest tasks. For older tasks, --task is needed.
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
            what: format!("no input with the id {input_id:?} is waiting for an answer"),
            why: "it was answered, withdrawn or expired, its attempt has ended, or it never existed".to_owned(),
            hint: "list open inputs with `baton inbox`; add --task TASK to see the outcome of a closed one"
                .to_owned(),
        })
    })
}

/// Searches inputs that were closed a moment ago, so that the second of two people who answer sees
/// who answered first.
async fn find_closed_input(
    relay: &RelayClient,
    is_it: impl Fn(&Input) -> bool,
) -> Result<Option<Input>, CliError> {
    let request = ListTasksRequest {
        page_size: MAX_TASKS_SEARCHED,
        ..ListTasksRequest::default()
    };
    let newest = relay.tasks().list(request).await?.into_inner().tasks;
    // Plain commands have no inputs.
    for task in newest.iter().filter(|task| task.agent != COMMAND_AGENT) {
        let listed = inbox::list_inputs(relay, &task.task_id, true).await?;
        if let Some(found) = listed.into_iter().find(&is_it) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
