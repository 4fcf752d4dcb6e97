//! What a command gets of the attempts before it. A coding agent reads it in its prompt. A
//! command's stdin belongs to the task, so the context is in a file beside the attempt, and its
//! environment has the path. The context itself is neither on the command line nor in the
//! environment: both are readable by other users, and too short.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use baton_proto::to_json;
use baton_proto::v1::ResumeContext;

use super::AttemptTask;
use crate::process::ChildSpec;
use crate::storage::atomic_file;

/// In the attempt's directory, and removed with it.
pub(crate) const RESUME_FILE: &str = "resume.json";

const RESUME_VARIABLE: &str = "BATON_RESUME_FILE";

impl AttemptTask {
    /// Before the child may run.
    pub(super) async fn store_resume_context(
        &self,
        resume: Option<ResumeContext>,
        child: &mut ChildSpec,
    ) -> io::Result<()> {
        let Some(resume) = resume else {
            return Ok(());
        };
        let directory = self.directory.clone();
        let written = tokio::task::spawn_blocking(move || write_resume_file(&directory, &resume));
        let path = written.await.expect("writing a file does not panic")?;
        child
            .environment
            .insert(RESUME_VARIABLE.into(), path.into());
        Ok(())
    }
}

/// Returns an absolute path, so that the child can use it from any directory.
fn write_resume_file(directory: &Path, resume: &ResumeContext) -> io::Result<PathBuf> {
    let path = std::path::absolute(directory.join(RESUME_FILE))?;
    let mut file = atomic_file::open_private(&path)?;
    writeln!(file, "{}", to_json(resume))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use baton_proto::v1::{Checkpoint, ResumeAnswer};

    use super::*;

    #[test]
    fn the_resume_context_is_in_a_private_file_as_json() {
        let dir = tempfile::tempdir().unwrap();
        let resume = ResumeContext {
            previous_attempt_id: "before".to_owned(),
            resume_reason: "access is \"there\"".to_owned(),
            instructions: "Use the blue key.".to_owned(),
            answers: vec![ResumeAnswer {
                question: "which key?".to_owned(),
                answer: "blue\n".to_owned(),
            }],
            checkpoint: Some(Checkpoint {
                summary: "half".to_owned(),
                cursor: "line 7".to_owned(),
                ..Checkpoint::default()
            }),
        };
        let path = write_resume_file(dir.path(), &resume).unwrap();
        assert!(path.is_absolute());
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["previousAttemptId"], "before");
        assert_eq!(read["resumeReason"], "access is \"there\"");
        assert_eq!(read["instructions"], "Use the blue key.");
        assert_eq!(read["answers"][0]["question"], "which key?");
        assert_eq!(read["answers"][0]["answer"], "blue\n");
        assert_eq!(read["checkpoint"]["cursor"], "line 7");
    }

    #[test]
    fn a_resume_file_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        assert!(write_resume_file(&gone, &ResumeContext::default()).is_err());
    }
}
