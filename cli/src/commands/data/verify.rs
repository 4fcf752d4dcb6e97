//! `baton verify`: reads all data of a relay, or an export, and reports damage.

use std::path::PathBuf;

use baton_proto::to_json;
use baton_proto::v1::verify_response::Item;
use baton_proto::v1::{VerifyFinding, VerifyRequest, VerifyResponse, VerifySummary};
use clap::Args;

use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::progress_line::ProgressLine;
use crate::render::sanitizer::one_line;
use crate::server::relay_data;
use crate::server::relay_data::DataSource;

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Export to check. The default is the data of the relay: checked by the relay if it runs, else directly in the
    /// directory of --data.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Skip the output of attempts.
    #[arg(long, conflicts_with = "file")]
    without_output: bool,

    /// Print one JSON object per line: each finding, then the summary.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: VerifyArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let mut meter = ProgressLine::new(console, "verify");
    let mut on_finding = |finding| print_finding(finding, args.json, console);
    let summary = if let Some(file) = &args.file {
        relay_data::verify_file(file, &mut meter, &mut on_finding)?.1
    } else {
        match DataSource::find(&args.relay, console).await? {
            DataSource::Relay(relay) => {
                verify_on_relay(&relay, !args.without_output, &mut meter, &mut on_finding).await?
            }
            DataSource::Directory(data) => {
                relay_data::verify(&data, !args.without_output, &mut meter, &mut on_finding)?
            }
        }
    };
    meter.clear();
    print_summary(&summary, args.json, console)?;
    Ok(if summary.findings == 0 {
        CommandExit::Done
    } else {
        CommandExit::NotCompleted
    })
}

async fn verify_on_relay(
    relay: &RelayClient,
    include_output: bool,
    meter: &mut ProgressLine<'_>,
    on_finding: relay_data::FindingCallback<'_>,
) -> Result<VerifySummary, CliError> {
    let request = VerifyRequest { include_output };
    let mut answers = relay.operator().verify(request).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        match answer.item {
            Some(Item::Progress(progress)) => meter.show(&progress),
            Some(Item::Finding(finding)) => {
                meter.clear();
                on_finding(finding)?;
            }
            Some(Item::Summary(summary)) => return Ok(summary),
            None => {}
        }
    }
    Err(CliError::local(
        "the verification is incomplete",
        "the relay ended it without a summary",
    ))
}

fn print_finding(finding: VerifyFinding, json: bool, console: &CliConsole) -> Result<(), CliError> {
    if json {
        let item = Some(Item::Finding(finding));
        return console.json(&to_json(&VerifyResponse { item }));
    }
    let (kind, key) = (one_line(&finding.kind), one_line(&finding.key));
    console.line(&format!("{kind} {key}: {}", one_line(&finding.message)))
}

fn print_summary(
    summary: &VerifySummary,
    json: bool,
    console: &CliConsole,
) -> Result<(), CliError> {
    if json {
        let item = Some(Item::Summary(*summary));
        return console.json(&to_json(&VerifyResponse { item }));
    }
    console.line(&format!(
        "{} findings in {} records of {} tasks, as of commit {}",
        summary.findings, summary.records, summary.tasks, summary.commit_seq
    ))
}
