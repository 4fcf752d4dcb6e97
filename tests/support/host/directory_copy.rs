//! Copies directories recursively.

use std::path::Path;
use std::{fs, io};

/// Copies everything under `from` to `to`.
pub fn copy_directory(from: &Path, to: &Path) {
    copy(from, to).expect("the files can be copied");
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
