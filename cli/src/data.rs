//! A relay's data where no relay is asked: whether one runs on it, and the library's exports, imports and verifies.
//! The only file besides `servers.rs` that touches the relay's library.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) use baton_relay::archive::{Exported, Imported, VerifiedFile};

use baton_proto::v1::{TransferProgress, VerifyFinding, VerifySummary};
use baton_relay::archive::{
    self, ExportError, ExportOptions, ImportError, ImportOptions, Progress, Seen, VerifyError,
};
use baton_relay::store;

use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::{CliError, Story};
use crate::progress::Meter;

/// Who can be asked about the data that a command line means.
#[derive(Debug)]
pub(crate) enum Holder {
    /// A relay that runs.
    Relay(Relay),
    /// Nobody: the directory is read as it lies.
    Nobody(PathBuf),
}

impl Holder {
    /// A named relay; else the relay that runs on the data directory; else the directory itself, if there is one.
    pub(crate) async fn find(args: &RelayArgs, console: &Console) -> Result<Self, CliError> {
        let data = args.data_dir();
        if args.named_relay().is_some() || !data.join("store").exists() || is_in_use(&data)? {
            return Relay::discover(args).await.map(Self::Relay);
        }
        console.note(&format!(
            "no relay runs on {}; reading it as it lies",
            data.display()
        ));
        Ok(Self::Nobody(data))
    }
}

/// Whether a relay runs on the directory.
pub(crate) fn is_in_use(data: &Path) -> Result<bool, CliError> {
    store::is_in_use(&data.join("store"))
        .map_err(|error| CliError::local("look at the data directory", error))
}

/// Whether an import may make its data here.
pub(crate) fn is_free(data: &Path) -> bool {
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
    meter: &mut Meter<'_>,
) -> Result<Exported, CliError> {
    let options = ExportOptions {
        without_output,
        without_tokens,
        made_at_ms: clock::wall_ms(),
    };
    let mut watch = |progress: Progress| meter.show(&shown(&progress));
    let exported = archive::export_directory(data, options, out, &mut watch);
    exported
        .map(|(exported, _)| exported)
        .map_err(|error| match error {
            ExportError::Write(error) => CliError::local("write the export", error),
            other => told("export the data", &other),
        })
}

/// Runs beside the runtime, because the library has one of its own for a while.
pub(crate) fn import(
    file: &Path,
    data: &Path,
    accept_loss: bool,
    meter: &mut Meter<'_>,
) -> Result<Imported, CliError> {
    let mut watch = |seen: Seen| {
        if let Seen::Progress(progress) = seen {
            meter.show(&shown(&progress));
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
            ImportError::Check(VerifyError::File { path, source }) => no_file(&path, &source),
            ImportError::Check(error) => told("check the export", &error),
            ImportError::NotWhole { missing } => not_whole(missing),
            other => told("import the data", &other),
        }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Why an export is not taken that its maker knew to lack something.
pub(crate) fn not_whole(missing: String) -> CliError {
    CliError::Local(Story {
        what: "the export is not whole, and nothing of it was taken".to_owned(),
        why: missing,
        hint: "use an older export that is whole, or take what is in this one with --accept-loss"
            .to_owned(),
    })
}

/// What a verify tells, wherever it runs.
pub(crate) type OnFinding<'a> = &'a mut dyn FnMut(VerifyFinding) -> Result<(), CliError>;

pub(crate) fn verify(
    data: &Path,
    with_output: bool,
    meter: &mut Meter<'_>,
    on_finding: OnFinding<'_>,
) -> Result<VerifySummary, CliError> {
    let mut failed = None;
    let mut watch = |seen| watch(seen, meter, on_finding, &mut failed);
    let summary = archive::verify_directory(data, with_output, &mut watch);
    failed.map_or(Ok(()), Err)?;
    let summary = summary.map_err(|error| told("verify the data", &error))?;
    Ok(summed(&summary))
}

pub(crate) fn verify_file(
    file: &Path,
    meter: &mut Meter<'_>,
    on_finding: OnFinding<'_>,
) -> Result<(VerifiedFile, VerifySummary), CliError> {
    let mut failed = None;
    let mut watch = |seen| watch(seen, meter, on_finding, &mut failed);
    let verified = archive::verify_file(file, &mut watch);
    failed.map_or(Ok(()), Err)?;
    let verified = verified.map_err(unverifiable)?;
    let summary = summed(&verified.summary);
    Ok((verified, summary))
}

/// Scripts tell by the exit code whether there is no such file, it is not whole, or something is wrong with what it holds.
fn unverifiable(error: VerifyError) -> CliError {
    match error {
        VerifyError::File { path, source } => no_file(&path, &source),
        VerifyError::Archive(fault) => CliError::Damaged(story("check the export", &fault)),
        other => told("check the export", &other),
    }
}

fn no_file(path: &str, error: &io::Error) -> CliError {
    CliError::usage(
        format!("check the export: cannot open {path}: {error}"),
        "name a file that `baton export --out FILE` wrote",
    )
}

/// False ends the verify: our own stdout is gone.
fn watch(
    seen: Seen,
    meter: &mut Meter<'_>,
    on_finding: OnFinding<'_>,
    failed: &mut Option<CliError>,
) -> bool {
    match seen {
        Seen::Progress(progress) => meter.show(&shown(&progress)),
        Seen::Finding(finding) => {
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

fn summed(summary: &archive::VerifySummary) -> VerifySummary {
    VerifySummary {
        records: summary.records,
        findings: summary.findings,
        commit_seq: summary.revision,
        tasks: summary.tasks,
    }
}

fn shown(progress: &Progress) -> TransferProgress {
    TransferProgress {
        records: progress.records,
        bytes: progress.bytes,
        total_records: None,
        stage: progress.stage.as_str().to_owned(),
        total_bytes: progress.total_bytes,
    }
}

/// The library's errors say what happened, and after a semicolon what to try.
fn told(what: &str, error: &dyn std::fmt::Display) -> CliError {
    CliError::Local(story(what, error))
}

fn story(what: &str, error: &dyn std::fmt::Display) -> Story {
    let text = error.to_string();
    let (why, hint) = text.split_once("; ").unwrap_or((&text, ""));
    Story {
        what: what.to_owned(),
        why: why.to_owned(),
        hint: hint.to_owned(),
    }
}

impl From<VerifyError> for CliError {
    fn from(error: VerifyError) -> Self {
        told("check the export", &error)
    }
}
