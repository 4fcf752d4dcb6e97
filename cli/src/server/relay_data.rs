//! A relay's data where no relay is asked: whether one runs on it, and the library's exports, imports and verifies.
//! The only file besides `servers.rs` that touches the relay's library.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) use baton_relay::archive::{ExportSummary, ImportSummary, VerifiedArchive};

use baton_proto::v1::{TransferProgress, VerifyFinding, VerifySummary};
use baton_relay::archive::{
    self, ArchiveProgress, ExportError, ExportOptions, ImportError, ImportOptions, VerifyError,
    VerifyEvent,
};
use baton_relay::store;

use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::{CliError, ErrorText};
use crate::render::console::CliConsole;
use crate::render::progress_line::ProgressLine;

/// Who can be asked about the data that a command line means.
#[derive(Debug)]
pub(crate) enum DataSource {
    /// A relay that runs.
    Relay(RelayClient),
    /// Nobody: the directory is read as it lies.
    Directory(PathBuf),
}

impl DataSource {
    /// A named relay; else the relay that runs on the data directory; else the directory itself, if there is one.
    pub(crate) async fn find(
        args: &ConnectionArgs,
        console: &CliConsole,
    ) -> Result<Self, CliError> {
        let data = args.data_dir();
        if args.named_relay().is_some() || !data.join("store").exists() || is_in_use(&data)? {
            return RelayClient::discover(args).await.map(Self::Relay);
        }
        console.note(&format!(
            "no relay runs on {}; reading it as it lies",
            data.display()
        ));
        Ok(Self::Directory(data))
    }
}

/// Whether a relay runs on the directory.
pub(crate) fn is_in_use(data: &Path) -> Result<bool, CliError> {
    store::is_in_use(&data.join("store"))
        .map_err(|error| CliError::local("look at the data directory", error))
}

/// Whether an import may make its data here.
pub(crate) fn can_import_into(data: &Path) -> bool {
    let empty = fs::read_dir(data).map_or_else(
        |error| error.kind() == io::ErrorKind::NotFound,
        |mut entries| entries.next().is_none(),
    );
    empty || data.join("importing").exists()
}

pub(crate) fn export(
    data: &Path,
    (without_output, without_tokens): (bool, bool),
    out: impl Write + Send,
    meter: &mut ProgressLine<'_>,
) -> Result<ExportSummary, CliError> {
    let options = ExportOptions {
        without_output,
        without_tokens,
        made_at_ms: clock::wall_ms(),
    };
    let mut watch = |progress: ArchiveProgress| meter.show(&to_wire_progress(&progress));
    let exported = archive::export_directory(data, options, out, &mut watch);
    exported
        .map(|(exported, _)| exported)
        .map_err(|error| match error {
            ExportError::Write(error) => CliError::local("write the export", error),
            other => local_error("export the data", &other),
        })
}

/// Runs beside the runtime, because the library has one of its own for a while.
pub(crate) fn import(
    file: &Path,
    data: &Path,
    accept_loss: bool,
    meter: &mut ProgressLine<'_>,
) -> Result<ImportSummary, CliError> {
    let mut watch = |seen: VerifyEvent| {
        if let VerifyEvent::Progress(progress) = seen {
            meter.show(&to_wire_progress(&progress));
        }
        true
    };
    let options = ImportOptions {
        accept_loss,
        now_ms: clock::wall_ms(),
    };
    let imported = std::thread::scope(|scope| {
        let importing = scope.spawn(|| archive::import_file(file, data, options, &mut watch));
        importing.join()
    });
    match imported {
        Ok(imported) => imported.map_err(|error| match error {
            ImportError::Check(VerifyError::File { path, source }) => {
                missing_file_error(&path, &source)
            }
            ImportError::Check(error) => local_error("check the export", &error),
            ImportError::NotWhole { missing } => incomplete_export_error(missing),
            other => local_error("import the data", &other),
        }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Why an export is not taken that its maker knew to lack something.
pub(crate) fn incomplete_export_error(missing: String) -> CliError {
    CliError::Local(ErrorText {
        what: "the export is not whole, and nothing of it was taken".to_owned(),
        why: missing,
        hint: "use an older export that is whole, or take what is in this one with --accept-loss"
            .to_owned(),
    })
}

/// What a verify tells, wherever it runs.
pub(crate) type FindingCallback<'a> = &'a mut dyn FnMut(VerifyFinding) -> Result<(), CliError>;

pub(crate) fn verify(
    data: &Path,
    with_output: bool,
    meter: &mut ProgressLine<'_>,
    on_finding: FindingCallback<'_>,
) -> Result<VerifySummary, CliError> {
    let mut failed = None;
    let mut watch = |seen| handle_verify_event(seen, meter, on_finding, &mut failed);
    let summary = archive::verify_directory(data, with_output, &mut watch);
    failed.map_or(Ok(()), Err)?;
    let summary = summary.map_err(|error| local_error("verify the data", &error))?;
    Ok(to_wire_summary(&summary))
}

pub(crate) fn verify_file(
    file: &Path,
    meter: &mut ProgressLine<'_>,
    on_finding: FindingCallback<'_>,
) -> Result<(VerifiedArchive, VerifySummary), CliError> {
    let mut failed = None;
    let mut watch = |seen| handle_verify_event(seen, meter, on_finding, &mut failed);
    let verified = archive::verify_file(file, &mut watch);
    failed.map_or(Ok(()), Err)?;
    let verified = verified.map_err(verify_file_error)?;
    let summary = to_wire_summary(&verified.summary);
    Ok((verified, summary))
}

/// Scripts tell by the exit code whether there is no such file, it is not whole, or something is wrong with what it holds.
fn verify_file_error(error: VerifyError) -> CliError {
    match error {
        VerifyError::File { path, source } => missing_file_error(&path, &source),
        VerifyError::Archive(fault) => {
            CliError::Damaged(split_error_text("check the export", &fault))
        }
        other => local_error("check the export", &other),
    }
}

fn missing_file_error(path: &str, error: &io::Error) -> CliError {
    CliError::usage(
        format!("check the export: cannot open {path}: {error}"),
        "name a file that `baton export --out FILE` wrote",
    )
}

/// False ends the verify: our own stdout is gone.
fn handle_verify_event(
    seen: VerifyEvent,
    meter: &mut ProgressLine<'_>,
    on_finding: FindingCallback<'_>,
    failed: &mut Option<CliError>,
) -> bool {
    match seen {
        VerifyEvent::Progress(progress) => meter.show(&to_wire_progress(&progress)),
        VerifyEvent::Finding(finding) => {
            meter.clear();
            let finding = VerifyFinding {
                kind: finding.kind.to_owned(),
                key: finding.key,
                message: finding.message,
            };
            *failed = on_finding(finding).err();
        }
    }
    failed.is_none()
}

fn to_wire_summary(summary: &archive::VerifySummary) -> VerifySummary {
    VerifySummary {
        records: summary.records,
        findings: summary.findings,
        commit_seq: summary.revision,
        tasks: summary.tasks,
    }
}

fn to_wire_progress(progress: &ArchiveProgress) -> TransferProgress {
    TransferProgress {
        records: progress.records,
        bytes: progress.bytes,
        total_records: None,
        stage: progress.stage.as_str().to_owned(),
        total_bytes: progress.total_bytes,
    }
}

/// The library's errors say what happened, and after a semicolon what to try.
fn local_error(what: &str, error: &dyn std::fmt::Display) -> CliError {
    CliError::Local(split_error_text(what, error))
}

fn split_error_text(what: &str, error: &dyn std::fmt::Display) -> ErrorText {
    let text = error.to_string();
    let (why, hint) = text.split_once("; ").unwrap_or((&text, ""));
    ErrorText {
        what: what.to_owned(),
        why: why.to_owned(),
        hint: hint.to_owned(),
    }
}

impl From<VerifyError> for CliError {
    fn from(error: VerifyError) -> Self {
        local_error("check the export", &error)
    }
}
