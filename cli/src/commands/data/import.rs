//! `baton import`: imports an export into a new directory, or into a running relay without tasks.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::import_request::Item as Sent;
use baton_proto::v1::import_response::Item;
use baton_proto::v1::{ImportRequest, ImportSummary, RelayInfoRequest, TransferProgress};
use clap::Args;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::args::duration;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::progress_line::ProgressLine;
use crate::render::sanitizer::one_line;
use crate::server::relay_data;

/// Size of one message of an upload.
const CHUNK_BYTES: usize = 256 * 1024;
/// Chunks that are queued for the relay. When the queue is full, reading the file waits.
const CHUNKS_IN_FLIGHT: usize = 4;
/// Pause between two checks whether the relay is back, and the number of checks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const MAX_POLLS: u32 = 150;

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// File with the export.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Import an incomplete export: some records could not be read when it was made, or no relay could have started on
    /// the exported directory.
    #[arg(long)]
    accept_loss: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: ImportArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let data = args.relay.data_dir();
    let mut meter = ProgressLine::new(console, "import");
    let (summary, missing) = if args.relay.named_relay().is_some() || relay_data::is_in_use(&data)?
    {
        let relay = RelayClient::discover(&args.relay).await?;
        // A bad file is reported before it is sent.
        let (checked, _) = relay_data::verify_file(&args.file, &mut meter, &mut |_| Ok(()))?;
        let missing = checked.missing_data();
        if let Some(missing) = missing.clone().filter(|_| !args.accept_loss) {
            return Err(relay_data::incomplete_export_error(missing));
        }
        let summary = upload(&relay, &args.file, checked.sha256, &mut meter).await?;
        wait_until_restarted(&args.relay, &summary.incarnation).await?;
        (summary, missing)
    } else if relay_data::can_import_into(&data) {
        let imported = relay_data::import(&args.file, &data, args.accept_loss, &mut meter)?;
        let summary = ImportSummary {
            records: imported.trailer.puts,
            tasks: imported.tasks,
            incarnation: imported.incarnation.to_string(),
            hold_ms: imported.hold_ms,
            findings: imported.findings,
        };
        (summary, imported.missing)
    } else {
        return Err(CliError::usage(
            format!("the directory {} is not empty", data.display()),
            "choose a new one with --data, or start a relay on it and import again if it has no tasks",
        ));
    };
    meter.clear();
    print_summary(&summary, missing.as_deref(), args.json, console)
}

/// Sends the file and shows the relay's progress.
async fn upload(
    relay: &RelayClient,
    file: &Path,
    sha256: [u8; 32],
    meter: &mut ProgressLine<'_>,
) -> Result<ImportSummary, CliError> {
    let input = File::open(file)
        .map_err(|error| CliError::local(format!("cannot read {}", file.display()), error))?;
    let total = input.metadata().map(|metadata| metadata.len()).ok();
    let (chunks, sent) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let reading = tokio::task::spawn_blocking(move || send_file_chunks(input, sha256, &chunks));
    let mut answers = relay
        .operator()
        .import(ReceiverStream::new(sent))
        .await?
        .into_inner();
    while let Some(answer) = answers.message().await? {
        match answer.item {
            Some(Item::Progress(progress)) => meter.show(&TransferProgress {
                total_bytes: progress.total_bytes.or(total),
                ..progress
            }),
            Some(Item::Summary(summary)) => return Ok(summary),
            None => {}
        }
    }
    let why = match reading.await {
        Ok(Err(error)) => format!("the file cannot be read: {error}"),
        Ok(Ok(())) | Err(_) => "the relay ended the import early".to_owned(),
    };
    Err(CliError::local("the import failed", why))
}

/// Ends without an error if the receiver is gone: the relay's response has the reason.
fn send_file_chunks(
    mut input: File,
    sha256: [u8; 32],
    chunks: &mpsc::Sender<ImportRequest>,
) -> io::Result<()> {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        let read = Read::take(&mut input, CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
        let item = if read == 0 {
            Sent::Sha256(sha256.to_vec().into())
        } else {
            Sent::Chunk(chunk.into())
        };
        let message = ImportRequest { item: Some(item) };
        if chunks.blocking_send(message).is_err() || read == 0 {
            return Ok(());
        }
    }
}

/// The relay has stored the data and restarts with it.
async fn wait_until_restarted(args: &ConnectionArgs, incarnation: &str) -> Result<(), CliError> {
    for _ in 0..MAX_POLLS {
        if let Ok(relay) = RelayClient::discover(args).await
            && let Ok(info) = relay.operator().relay_info(RelayInfoRequest {}).await
            && info.get_ref().incarnation == incarnation
        {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(CliError::Unreachable(ErrorText {
        what: "the relay has stored the import but did not come back".to_owned(),
        why: String::new(),
        hint: "check its log, and start it again if it has ended".to_owned(),
    }))
}

fn print_summary(
    summary: &ImportSummary,
    missing: Option<&str>,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    if json {
        console.json(&json!({
            "records": summary.records,
            "tasks": summary.tasks,
            "incarnation": summary.incarnation,
            "holdMs": summary.hold_ms,
            "findings": summary.findings,
            "missing": missing,
        }))?;
    } else {
        console.line(&format!(
            "imported {} tasks in {} records; the data is now incarnation {}",
            summary.tasks, summary.records, summary.incarnation
        ))?;
    }
    console.note(&format!(
        "open tasks wait for {} after the relay's start, because an old daemon may still run them; when the old fleet \
         is down, dispatch them with `baton release-inherited --reason …`",
        duration::format_short(summary.hold_ms)
    ));
    if let Some(missing) = missing {
        console.note(&format!(
            "the imported data is incomplete: {}",
            one_line(missing)
        ));
    }
    if summary.findings > 0 {
        console.note(&format!(
            "{} records have problems; `baton verify` lists them",
            summary.findings
        ));
    }
    Ok(CommandExit::Done)
}
