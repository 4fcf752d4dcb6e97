//! `baton export`: writes all data of a relay, as of one commit, to one file with checksums.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use baton_proto::v1::export_response::Item;
use baton_proto::v1::{ExportRequest, ExportTrailer};
use clap::Args;
use serde_json::json;

use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::progress_line::{ProgressLine, format_size};
use crate::render::sanitizer::one_line;
use crate::server::relay_data;
use crate::server::relay_data::{DataSource, ExportSummary};

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// File to write, readable only by its owner. It gets its final name after it was read back and checked.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,

    /// Replace an existing file.
    #[arg(long)]
    force: bool,

    /// Leave out the output of attempts.
    #[arg(long)]
    without_output: bool,

    /// Leave out the hashes of tokens. After an import only new tokens work.
    #[arg(long)]
    without_tokens: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

/// The result of an export, by a relay or from a directory.
struct ExportResult {
    bytes: u64,
    sha256: String,
    records: u64,
    commit_seq: u64,
    incarnation: String,
    skipped: u64,
    missing_bodies: u64,
    /// What is missing and why; `None` for a complete export.
    missing: Option<String>,
}

pub(crate) async fn run(args: ExportArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    if args.out.exists() && !args.force {
        return Err(CliError::usage(
            format!("{} already exists", args.out.display()),
            "choose another file, or replace it with --force",
        ));
    }
    let source = DataSource::find(&args.relay, console).await?;
    let partial = PartialFile::create(&args.out)?;
    let mut meter = ProgressLine::new(console, "export");
    let out = BufWriter::with_capacity(1 << 20, partial.open()?);
    let without = (args.without_output, args.without_tokens);
    let mut made = match &source {
        DataSource::Relay(relay) => receive_export(relay, without, out, &mut meter).await?,
        DataSource::Directory(data) => {
            relay_data::export(data, without, out, &mut meter).map(ExportResult::from)?
        }
    };
    // The export is read back now, so that a bad one is not noticed only when it is needed.
    let (read_back, _) = relay_data::verify_file(&partial.path, &mut meter, &mut |_| Ok(()))?;
    if hex(&read_back.sha256) != made.sha256 {
        let why = "its checksum differs from the relay's";
        return Err(CliError::local("the written export is damaged", why));
    }
    made.missing = read_back.missing_data();
    partial.finish(&args.out)?;
    meter.clear();
    print_result(&made, &args, console)
}

async fn receive_export(
    relay: &RelayClient,
    (without_output, without_tokens): (bool, bool),
    mut out: impl Write,
    meter: &mut ProgressLine<'_>,
) -> Result<ExportResult, CliError> {
    let request = ExportRequest {
        without_output,
        without_tokens,
    };
    let mut pieces = relay.operator().export(request).await?.into_inner();
    let write_error = |error: io::Error| CliError::local("cannot write the export", error);
    let mut bytes = 0;
    while let Some(piece) = pieces.message().await? {
        match piece.item {
            Some(Item::Chunk(chunk)) => {
                bytes += chunk.len() as u64;
                out.write_all(&chunk).map_err(write_error)?;
            }
            Some(Item::Progress(progress)) => meter.show(&progress),
            Some(Item::Trailer(trailer)) if trailer.bytes == bytes => {
                out.flush().map_err(write_error)?;
                return Ok(ExportResult::from(&trailer));
            }
            Some(Item::Trailer(_)) | None => break,
        }
    }
    Err(CliError::Local(ErrorText {
        what: "the export is incomplete".to_owned(),
        why: "the relay ended it early".to_owned(),
        hint: "check the relay's log, then export again".to_owned(),
    }))
}

fn print_result(
    made: &ExportResult,
    args: &ExportArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let file = args.out.display().to_string();
    if args.json {
        console.json(&json!({
            "file": file,
            "bytes": made.bytes,
            "sha256": made.sha256,
            "records": made.records,
            "commitSeq": made.commit_seq,
            "incarnation": made.incarnation,
            "skipped": made.skipped,
            "missingBodies": made.missing_bodies,
            "missing": made.missing,
        }))?;
    } else {
        console.line(&format!(
            "exported {} records as of commit {} to {file} ({})",
            made.records,
            made.commit_seq,
            format_size(made.bytes)
        ))?;
    }
    let Some(missing) = &made.missing else {
        return Ok(CommandExit::Done);
    };
    console.note(&format!(
        "THIS EXPORT IS INCOMPLETE: {}; see the details with `baton verify` on the same data",
        one_line(missing)
    ));
    Ok(CommandExit::NeedsAttention)
}

impl From<&ExportTrailer> for ExportResult {
    fn from(trailer: &ExportTrailer) -> Self {
        Self {
            bytes: trailer.bytes,
            sha256: hex(&trailer.sha256),
            records: trailer.records,
            commit_seq: trailer.commit_seq,
            incarnation: trailer.incarnation.clone(),
            skipped: trailer.skipped,
            missing_bodies: trailer.missing_bodies,
            missing: None,
        }
    }
}

impl From<ExportSummary> for ExportResult {
    fn from(exported: ExportSummary) -> Self {
        let incarnation = exported.head.incarnation;
        Self {
            bytes: exported.bytes,
            sha256: hex(&exported.sha256),
            records: exported.trailer.puts,
            commit_seq: exported.trailer.revision,
            incarnation: incarnation.map(|id| id.to_string()).unwrap_or_default(),
            skipped: exported.trailer.skipped,
            missing_bodies: exported.trailer.missing_bodies,
            missing: None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file with a temporary name; dropping it removes it.
struct PartialFile {
    path: PathBuf,
    finished: bool,
}

impl PartialFile {
    fn create(out: &Path) -> Result<Self, CliError> {
        let mut name = out.as_os_str().to_owned();
        name.push(".partial");
        let partial = Self {
            path: name.into(),
            finished: false,
        };
        partial.open().map(|_| partial)
    }

    fn open(&self) -> Result<File, CliError> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&self.path).map_err(|error| {
            CliError::local(format!("cannot create {}", self.path.display()), error)
        })
    }

    /// Syncs the file and then gives it its final name.
    fn finish(mut self, out: &Path) -> Result<(), CliError> {
        let done = || -> io::Result<()> {
            File::open(&self.path)?.sync_all()?;
            fs::rename(&self.path, out)?;
            let parent = out.parent().filter(|dir| !dir.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        };
        done()
            .map_err(|error| CliError::local(format!("cannot finish {}", out.display()), error))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            drop(fs::remove_file(&self.path));
        }
    }
}
