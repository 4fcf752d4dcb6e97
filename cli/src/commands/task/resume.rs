//! `baton resume`: resumes a parked task with answers or further instructions for the agent.

use baton_proto::to_json;
use baton_proto::v1::{ResumeAnswer, ResumeTaskRequest};
use clap::Args;

use crate::args::shared_args::{RequiredReasonArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::commands::task::watch;
use crate::commands::task::watch::WaitDisplay;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    task: TaskIdArg,

    #[command(flatten)]
    why: RequiredReasonArg,

    /// Further instructions for the agent.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    instructions: String,

    /// An answer to a question: "QUESTION?=ANSWER", "QUESTION = ANSWER", or the answer alone. May be repeated.
    #[arg(long = "answer", value_name = "ANSWER")]
    answers: Vec<String>,

    /// Resume only if this is still the parked attempt.
    #[arg(
        long,
        value_name = "ATTEMPT",
        default_value = "",
        hide_default_value = true
    )]
    attempt: String,

    /// Wait until the task has ended or needs attention, and exit with its code.
    #[arg(long)]
    wait: bool,

    /// Print the task as one JSON object: immediately, or with --wait when it has ended.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: ResumeArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve_with_reason(&relay, &args.why).await?;
    let reason = args.why.reason;
    let request = ResumeTaskRequest {
        task_id: task_id.clone(),
        attempt_id: id_prefix::resolve_attempt_id_with_reason(
            &relay,
            &task_id,
            &args.attempt,
            &reason,
        )
        .await?,
        reason,
        instructions: args.instructions,
        answers: args.answers.iter().map(|text| parse_answer(text)).collect(),
    };
    let response = relay.tasks().resume(request).await?.into_inner();
    if args.wait {
        let end =
            watch::wait_until_settled(&relay, &task_id, WaitDisplay::Progress, console).await?;
        if let (true, Some(task)) = (args.json, &end.task) {
            console.json(&to_json(task))?;
        }
        return Ok(end.exit);
    }
    if args.json {
        console.json(&to_json(&response.task.ok_or_else(missing_task_error)?))?;
    } else {
        console.line(&response.attempt_id)?;
        console.note(&format!("follow it with: baton watch {task_id}"));
    }
    Ok(CommandExit::Done)
}

fn parse_answer(text: &str) -> ResumeAnswer {
    // An answer may itself contain an equals sign: `set DEBUG=1`.
    let question = text.find("?=").map(|at| at + 1);
    let question = question.or_else(|| text.find(" = "));
    let (question, answer) = match question {
        Some(at) => (&text[..at], text[at..].trim_start().trim_start_matches('=')),
        None => ("", text),
    };
    ResumeAnswer {
        question: question.trim().to_owned(),
        answer: answer.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_an_optional_question_in_front() {
        let both = parse_answer("which key? = the blue one");
        assert_eq!(
            (&*both.question, &*both.answer),
            ("which key?", "the blue one")
        );
        let close = parse_answer("which key?=the blue one");
        assert_eq!(
            (&*close.question, &*close.answer),
            ("which key?", "the blue one")
        );
        for alone in ["yes", "set DEBUG=1", "a==b"] {
            let parsed = parse_answer(alone);
            assert_eq!((&*parsed.question, &*parsed.answer), ("", alone));
        }
    }
}
