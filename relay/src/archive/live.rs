//! An import into a relay that runs and has no tasks: the export is uploaded, checked and written beside the relay's data,
//! and put in its place by the relay's next start.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use baton_core::time::Wall;

use super::import::{self, ImportError, Imported, Staging, io_error};
use super::incoming;
use super::verify::{VerifiedFile, Watch, verify_file};
use crate::store::{Change, KeyRange, Kind, Page, Store};

/// Records carried over at one time.
const PAGE: usize = 256;
/// What the relay had of its own before: without its tokens, who imports would lock themselves out.
const OWN: [Kind; 3] = [Kind::Profile, Kind::Token, Kind::Daemon];

/// An upload, until it is staged. Dropping it takes it away again.
#[derive(Debug)]
pub(crate) struct Upload {
    data: PathBuf,
    file: PathBuf,
    kept: bool,
}

impl Upload {
    /// Clears away what an earlier one left, and makes the file that the export is written to.
    pub(crate) fn begin(data: &Path) -> Result<(Self, File), ImportError> {
        incoming::clear(data)?;
        let dir = incoming::place(data);
        import::make_private(&dir).map_err(io_error("create", &dir))?;
        let path = dir.join("upload");
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(io_error("create", &path))?;
        let upload = Self {
            data: data.to_owned(),
            file: path,
            kept: false,
        };
        Ok((upload, file))
    }

    /// Checks everything, then writes it beside the relay's data. Nothing of it counts yet.
    pub(crate) fn stage(self, now: Wall, watch: Watch<'_>) -> Result<Staged, ImportError> {
        let checked = verify_file(&self.file, watch)?;
        let mut staging = Staging::begin(&incoming::place(&self.data), now)?;
        staging.take_all(&self.file, &checked, watch)?;
        fs::remove_file(&self.file).map_err(io_error("remove", &self.file))?;
        Ok(Staged {
            staging,
            upload: self,
            checked,
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = incoming::clear(&self.data)
        {
            tracing::warn!(%error, "an import that failed could not be cleared away; the next start does it");
        }
    }
}

/// An import that is whole but for what the relay keeps of its own.
pub(crate) struct Staged {
    /// Goes before the upload, which takes its files away.
    staging: Staging,
    upload: Upload,
    checked: VerifiedFile,
}

impl Staged {
    /// From here on the next start takes it. `own` is the relay's store, to which nobody writes any more.
    pub(crate) fn finish(mut self, own: &Store) -> Result<Imported, ImportError> {
        self.carry_over(own)?;
        let incarnation = self.staging.finish()?;
        self.upload.kept = true;
        Ok(import::imported(self.checked, incarnation))
    }

    fn carry_over(&mut self, own: &Store) -> Result<(), ImportError> {
        let unreadable = |error: crate::store::ReadError| ImportError::Write(error.to_string());
        for tenant in own.tenants().map_err(unreadable)? {
            for kind in OWN {
                let (range, mut page) = (KeyRange::of(&tenant, kind), Page::first(PAGE));
                loop {
                    let scan = own.scan(&range, &page).map_err(unreadable)?;
                    page.after = scan.entries.last().map(|(key, _)| key.clone());
                    for (key, body) in scan.entries {
                        if !self.staging.has(&key) {
                            self.staging.add(Change::Put(key, body.to_vec()))?;
                        }
                    }
                    if !scan.more {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
