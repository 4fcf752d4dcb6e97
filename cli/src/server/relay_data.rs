//! Direct access to a relay's data directory: whether a relay runs on it, and export, import and verification by
//! the relay's library. Only this file and `start.rs` use that library.

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

/// Where a command reads the data from.
#[derive(Debug)]
pub(crate) enum DataSource {
    /// A running relay.
    Relay(RelayClient),
    /// The directory, because no relay runs on it.
    Directory(PathBuf),
}

impl DataSource {
    /// The configured relay; else the relay that runs on the data directory; else the directory itself, if it exists.
    pub(crate) async fn find(
        args: &ConnectionArgs,
        console: &CliConsole,
    ) -> Result<Self, CliError> {
        let data = args.data_dir();
        if args.named_relay().is_some() || !data.join("store").exists() || is_in_use(&data)? {
            return RelayClient::discover(args).await.map(Self::Relay);
        }
        console.note(&format!(
            "no relay runs on {}; reading the directory directly",
            data.display()
        ));
        Ok(Self::Directory(data))
    }
}

/// Whether a relay runs on the directory.
pub(crate) fn is_in_use(data: &Path) -> Result<bool, CliError> {
    store::is_in_use(&data.join("store"))
        .map_err(|error| CliError::local("cannot check the data directory", error))
}

/// Whether an import may write to this directory: it is empty, or an import was interrupted there.
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
            ExportError::Write(error) => CliError::local("cannot write the export", error),
            other => local_error("cannot export the data", &other),
        })
}

/// Runs on its own thread, because the library starts a runtime of its own.
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
            ImportError::Check(error) => local_error("the export is not valid", &error),
            ImportError::NotWhole { missing } => incomplete_export_error(missing),
            other => local_error("cannot import the data", &other),
        }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The error for an export that was already incomplete when it was made.
pub(crate) fn incomplete_export_error(missing: String) -> CliError {
    CliError::Local(ErrorText {
        what: "the export is incomplete, and nothing was imported".to_owned(),
        why: missing,
        hint: "use an older, complete export, or import this one with --accept-loss".to_owned(),
    })
}

/// Receives the findings of a verification, by a relay or in a directory.
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
    let summary = summary.map_err(|error| local_error("cannot verify the data", &error))?;
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

/// Scripts use the exit code to distinguish a missing file, a damaged file, and damaged data in it.
fn verify_file_error(error: VerifyError) -> CliError {
    match error {
        VerifyError::File { path, source } => missing_file_error(&path, &source),
        VerifyError::Archive(fault) => {
            CliError::Damaged(split_error_text("the export is damaged", &fault))
        }
        other => local_error("cannot check the export", &other),
    }
}

fn missing_file_error(path: &str, error: &io::Error) -> CliError {
    CliError::usage(
        format!("cannot open the export {path}: {error}"),
        "pass a file that `baton export --out FILE` wrote",
    )
}

/// Returns false if stdout was closed, which ends the verification.
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

/// The library's errors contain what happened and, after a semicolon, what to try.
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
        local_error("cannot check the export", &error)
    }
}
