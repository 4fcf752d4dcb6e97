//! An import into a running relay without tasks. The export is uploaded, verified and written
//! beside the relay's data. The relay's next start replaces the data with it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use baton_core::time::WallTime;

use super::import::{self, ImportError, ImportStaging, ImportSummary, io_error};
use super::import_directory;
use super::verification::{VerifiedArchive, VerifyWatcher, verify_file};
use crate::store::{KeyRange, RecordKind, ScanPage, Store, StoreChange};

/// Records copied at a time.
const PAGE: usize = 256;
/// Kinds of the relay's own records to keep. Without its tokens, the importing administrator
/// would be locked out.
const CARRIED_KINDS: [RecordKind; 3] = [RecordKind::Profile, RecordKind::Token, RecordKind::Daemon];

/// An upload until it is staged. Dropping it removes its files.
#[derive(Debug)]
pub(crate) struct ImportUpload {
    data: PathBuf,
    file: PathBuf,
    is_staged: bool,
}

impl ImportUpload {
    /// Removes the files of an earlier upload, and creates the file for the export.
    pub(crate) fn begin(data: &Path) -> Result<(Self, File), ImportError> {
        import_directory::clear(data)?;
        let dir = import_directory::incoming_dir(data);
        import::create_private_dir(&dir).map_err(io_error("create", &dir))?;
        let path = dir.join("upload");
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(io_error("create", &path))?;
        let upload = Self {
            data: data.to_owned(),
            file: path,
            is_staged: false,
        };
        Ok((upload, file))
    }

    /// Verifies everything, then writes it beside the relay's data. It has no effect yet.
    pub(crate) fn stage(
        self,
        now: WallTime,
        watch: VerifyWatcher<'_>,
    ) -> Result<StagedImport, ImportError> {
        let checked = verify_file(&self.file, watch)?;
        let mut staging = ImportStaging::begin(&import_directory::incoming_dir(&self.data), now)?;
        staging.import_all(&self.file, &checked, watch)?;
        fs::remove_file(&self.file).map_err(io_error("remove", &self.file))?;
        Ok(StagedImport {
            staging,
            upload: self,
            checked,
        })
    }
}

impl Drop for ImportUpload {
    fn drop(&mut self) {
        if !self.is_staged
            && let Err(error) = import_directory::clear(&self.data)
        {
            tracing::warn!(%error, "removing the files of a failed import failed; the next start tries again");
        }
    }
}

/// An import that is complete except for the relay's own records.
pub(crate) struct StagedImport {
    /// Must be dropped before the upload, which removes its files.
    staging: ImportStaging,
    upload: ImportUpload,
    checked: VerifiedArchive,
}

impl StagedImport {
    /// Completes the import, so that the next start uses it. `own` is the relay's store, which
    /// must not change any more.
    pub(crate) fn finish(mut self, own: &Store) -> Result<ImportSummary, ImportError> {
        self.carry_over_own_records(own)?;
        let incarnation = self.staging.finish()?;
        self.upload.is_staged = true;
        Ok(import::import_summary(self.checked, incarnation))
    }

    fn carry_over_own_records(&mut self, own: &Store) -> Result<(), ImportError> {
        let unreadable =
            |error: crate::store::StoreReadError| ImportError::Write(error.to_string());
        for tenant in own.tenants().map_err(unreadable)? {
            for kind in CARRIED_KINDS {
                let (range, mut page) = (KeyRange::of_kind(&tenant, kind), ScanPage::first(PAGE));
                loop {
                    let scan = own.scan(&range, &page).map_err(unreadable)?;
                    page.after = scan.entries.last().map(|(key, _)| key.clone());
                    for (key, body) in scan.entries {
                        if !self.staging.has(&key) {
                            self.staging.add(StoreChange::Put(key, body.to_vec()))?;
                        }
                    }
                    if !scan.has_more {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
