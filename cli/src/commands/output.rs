//! `baton output`: the bytes that one attempt wrote.

use baton_proto::to_json;
use baton_proto::v1::{AttemptState, OutputEnd, ReadOutputRequest};
use clap::Args;

use crate::args::TaskArg;
use crate::client::Relay;
use crate::commands::watch::cut_text;
use crate::console::{Console, OutputSink};
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow;
use crate::output_reader::{OutputReader, Piece, is_for_people};
use crate::stop::Interrupt;

#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    #[command(flatten)]
    task: TaskArg,

    /// Number of the attempt whose output is printed. Without it, the newest attempt's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Go on with what comes until the attempt ends.
    #[arg(long, short = 'f')]
    follow: bool,

    /// First byte to print.
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,

    /// Print one JSON object per chunk and line, and one for each cut and for the end.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: OutputArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
    let request = ReadOutputRequest {
        attempt_id: attempt_id(&relay, &task_id, &args).await?,
        task_id: task_id.clone(),
        from_offset: args.from,
        follow: args.follow,
        limit_bytes: 0,
    };
    let mut reader = OutputReader::new(relay, request);
    let mut sink = OutputSink::new(console);
    let mut interrupt = Interrupt::listen()?;
    let mut cut_is_told = false;
    loop {
        let piece = tokio::select! {
            piece = reader.next() => piece?,
            () = interrupt.pressed() => {
                sink.finish()?;
                console.note(&format!("detached; come back with: baton output {task_id} --follow"));
                return Ok(Exit::Interrupted);
            }
        };
        match &piece {
            Piece::Bytes(chunk) if args.json => console.json(&to_json(chunk))?,
            Piece::Cut(cut) if args.json => console.json(&to_json(cut))?,
            Piece::End(end) if args.json => console.json(&to_json(end))?,
            Piece::Bytes(chunk) if is_for_people(chunk) => sink.write(&chunk.data)?,
            Piece::Bytes(_) => {}
            Piece::Cut(cut) => {
                cut_is_told |= cut.length_unknown;
                console.note(&cut_text(cut));
            }
            Piece::End(_) => {}
        }
        if let Piece::End(end) = &piece {
            sink.finish()?;
            if !args.json && !cut_is_told && ends_unsaid(end) {
                console.note(
                    "[the attempt ended without saying where its output ends: more may be missing]",
                );
            }
            return Ok(Exit::Done);
        }
    }
}

/// It is over and never said how much there is of it. What still runs is not complete either, and nobody thinks so.
fn ends_unsaid(end: &OutputEnd) -> bool {
    let over = match end.state() {
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
    over && !end.complete && end.offset > 0
}

/// Empty for the newest one, which the relay chooses.
async fn attempt_id(relay: &Relay, task_id: &str, args: &OutputArgs) -> Result<String, CliError> {
    let Some(number) = args.attempt else {
        return Ok(String::new());
    };
    let task = follow::get(relay, task_id).await?;
    let attempt = task
        .attempts
        .iter()
        .find(|attempt| attempt.attempt_number == number);
    attempt
        .map(|attempt| attempt.attempt_id.clone())
        .ok_or_else(|| {
            CliError::usage(
                format!(
                    "task {} has no attempt {number}; it has {}",
                    task_id,
                    task.attempts.len()
                ),
                "leave --attempt out for the newest one",
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
        assert!(ends_unsaid(&end(AttemptState::Lost, false)));
        assert!(!ends_unsaid(&end(AttemptState::Completed, true)));
        assert!(!ends_unsaid(&end(AttemptState::Streaming, false)));
    }
}
