//! `baton output`: prints the bytes that one attempt wrote.

use baton_proto::to_json;
use baton_proto::v1::{AttemptState, OutputEnd, ReadOutputRequest};
use clap::Args;

use crate::args::shared_args::TaskIdArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::commands::task::watch::cut_text;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::output_reader::{AttemptOutputReader, OutputReadItem, is_user_visible};
use crate::follow::task_follower;
use crate::render::console::{AgentOutputSink, CliConsole};
use crate::server::stop_signals::InterruptSignal;

#[derive(Args, Debug)]
pub(crate) struct ReadOutputArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Number of the attempt. The default is the newest attempt.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Keep printing new output until the attempt ends.
    #[arg(long, short = 'f')]
    follow: bool,

    /// First byte to print.
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,

    /// Print one JSON object per line: each chunk, each cut and the end.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: ReadOutputArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = ReadOutputRequest {
        attempt_id: find_attempt_id(&relay, &task_id, &args).await?,
        task_id: task_id.clone(),
        from_offset: args.from,
        follow: args.follow,
        limit_bytes: 0,
    };
    let mut reader = AttemptOutputReader::new(relay, request);
    let mut sink = AgentOutputSink::new(console);
    let mut interrupt = InterruptSignal::listen()?;
    let mut cut_is_reported = false;
    loop {
        let piece = tokio::select! {
            piece = reader.next() => piece?,
            () = interrupt.wait() => {
                sink.finish()?;
                console.note(&format!("detached; come back with: baton output {task_id} --follow"));
                return Ok(CommandExit::Interrupted);
            }
        };
        match &piece {
            OutputReadItem::Bytes(chunk) if args.json => console.json(&to_json(chunk))?,
            OutputReadItem::Cut(cut) if args.json => console.json(&to_json(cut))?,
            OutputReadItem::End(end) if args.json => console.json(&to_json(end))?,
            OutputReadItem::Bytes(chunk) if is_user_visible(chunk) => sink.write(&chunk.data)?,
            OutputReadItem::Bytes(_) => {}
            OutputReadItem::Cut(cut) => {
                cut_is_reported |= cut.length_unknown;
                console.note(&cut_text(cut));
            }
            OutputReadItem::End(_) => {}
        }
        if let OutputReadItem::End(end) = &piece {
            sink.finish()?;
            if !args.json && !cut_is_reported && has_unknown_end(end) {
                console.note(
                    "[the attempt ended without reporting the length of its output: some may be missing]",
                );
            }
            return Ok(CommandExit::Done);
        }
    }
}

/// The attempt has ended but never reported the length of its output. The output of a running attempt
/// is incomplete as well, but that needs no warning.
fn has_unknown_end(end: &OutputEnd) -> bool {
    let has_ended = match end.state() {
        AttemptState::Completed
        | AttemptState::Failed
        | AttemptState::Canceled
        | AttemptState::TimedOut
        | AttemptState::Lost => true,
        AttemptState::Unspecified
        | AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp
        | AttemptState::Parked
        | AttemptState::Released
        | AttemptState::HandedOff => false,
    };
    has_ended && !end.complete && end.offset > 0
}

/// An empty id means the newest attempt, which the relay chooses.
async fn find_attempt_id(
    relay: &RelayClient,
    task_id: &str,
    args: &ReadOutputArgs,
) -> Result<String, CliError> {
    let Some(number) = args.attempt else {
        return Ok(String::new());
    };
    let task = task_follower::get_task(relay, task_id).await?;
    let attempt = task
        .attempts
        .iter()
        .find(|attempt| attempt.attempt_number == number);
    attempt
        .map(|attempt| attempt.attempt_id.clone())
        .ok_or_else(|| {
            CliError::usage(
                format!(
                    "task {} has no attempt {number}, only {}",
                    task_id,
                    task.attempts.len()
                ),
                "omit --attempt for the newest attempt",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_attempt_that_is_over_can_have_left_its_output_open() {
        let end = |state: AttemptState, complete: bool| OutputEnd {
            state: state.into(),
            offset: 2,
            complete,
            ..OutputEnd::default()
        };
        assert!(has_unknown_end(&end(AttemptState::Lost, false)));
        assert!(!has_unknown_end(&end(AttemptState::Completed, true)));
        assert!(!has_unknown_end(&end(AttemptState::Streaming, false)));
    }
}
