//! Taking over what an earlier daemon left. Every attempt's directory says what the attempt is and what the relay has
//! not acknowledged; its shim, if it lives, says the rest. All shims are asked at once and none is waited for longer
//! than two seconds, so that one that is stuck delays nobody's Hello. Nothing is killed here and nothing is decided:
//! each attempt goes on as the task that an attempt always has.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::Supervisor;
use crate::attempt::{
    self, AttemptControlReceiver, AttemptEnvironment, AttemptRunInput, ContactOutcome, ShimContact,
    TranscriptReader, read_lease,
};
use crate::clock::BootTime;
use crate::outbox::{self, OutboxTail};
use crate::process::kill_unknown_attempts;
use crate::storage::attempt_dir::{AttemptDir, AttemptDirectories, AttemptId};
use crate::supervised_attempt::{RecoveredAttempt, ShimReach, SupervisedAttempt};

/// For all shims together.
const SHIM_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// An attempt of an earlier daemon, ready to be held.
pub(crate) struct AdoptedAttempt {
    pub(crate) id: AttemptId,
    pub(crate) attempt: SupervisedAttempt,
    /// What its task goes on with; a finished one has none.
    pub(crate) run: Option<(AttemptRunInput, AttemptControlReceiver)>,
}

/// Looks at every directory and asks every shim. What nobody asks for any more is ended meanwhile.
pub(crate) async fn adopt_attempts(
    attempts: AttemptDirectories,
    boot_id: &str,
    workshop: &AttemptEnvironment,
) -> io::Result<Vec<AdoptedAttempt>> {
    let boot = boot_id.to_owned();
    let found = tokio::task::spawn_blocking(move || scan_attempt_dirs(&attempts, &boot));
    let found = found.await.expect("reading files does not panic")?;
    let known: BTreeSet<String> = found.iter().map(|left| left.dir.id.to_string()).collect();
    let until = workshop.clock.now().after(SHIM_ANSWER_TIMEOUT);
    let (attempts, (), ()) = tokio::join!(
        contact_shims(found, workshop, until),
        kill_unknown_processes(workshop, &known, until),
        remove_unknown_groups(workshop, &known),
    );
    Ok(attempts)
}

async fn contact_shims(
    found: Vec<ScannedAttemptDir>,
    workshop: &AttemptEnvironment,
    until: BootTime,
) -> Vec<AdoptedAttempt> {
    let mut asked = JoinSet::new();
    for left in found {
        let Some(remains) = left.recovered else {
            continue;
        };
        let (dir, workshop) = (left.dir, workshop.clone());
        asked.spawn(async move {
            let standing = contact_shim(&dir, &remains, left.is_same_boot, &workshop, until).await;
            (dir, remains, standing)
        });
    }
    let mut adopted = Vec::new();
    while let Some(answer) = asked.join_next().await {
        let (dir, remains, standing) = answer.expect("asking a shim does not panic");
        adopted.push(adopt(dir, remains, standing, workshop));
    }
    adopted
}

/// Processes of this daemon whose attempts have no directory any more: nobody will ever ask for them. One that does not
/// die delays nobody's Hello.
async fn kill_unknown_processes(
    workshop: &AttemptEnvironment,
    known: &BTreeSet<String>,
    until: BootTime,
) {
    if workshop.daemon_id.is_empty() {
        return;
    }
    let ended = kill_unknown_attempts(&workshop.daemon_id, known, &workshop.clock);
    let swept = tokio::select! {
        swept = ended => swept,
        () = workshop.clock.sleep_until(until) => {
            warn!("processes of attempts that this daemon knows nothing of do not die");
            return;
        }
    };
    if swept.killed > 0 {
        warn!(
            killed = swept.killed,
            "killed processes of attempts that this daemon knows nothing of"
        );
    }
}

/// The same by their control groups.
async fn remove_unknown_groups(workshop: &AttemptEnvironment, known: &BTreeSet<String>) {
    if let Some(groups) = &workshop.control_groups {
        groups.remove_unknown_groups(|id| known.contains(id)).await;
    }
}

/// One directory as it was read.
struct ScannedAttemptDir {
    dir: AttemptDir,
    is_same_boot: bool,
    /// None where it cannot be read; then it is left alone.
    recovered: Option<RecoveredAttempt>,
}

fn scan_attempt_dirs(
    attempts: &AttemptDirectories,
    boot_id: &str,
) -> io::Result<Vec<ScannedAttemptDir>> {
    let mut found = Vec::new();
    for dir in attempts.list()? {
        match dir.has_meta() {
            Ok(true) => found.push(scan_attempt_dir(dir, boot_id)),
            Ok(false) => {
                if let Err(error) = dir.remove() {
                    warn!(attempt_id = %dir.id, error = %error, "cannot remove what is left of an attempt");
                }
            }
            // One bad entry is no reason to leave all the others alone.
            Err(error) => found.push(unreadable_dir(dir, false, &error.to_string())),
        }
    }
    Ok(found)
}

fn scan_attempt_dir(dir: AttemptDir, boot_id: &str) -> ScannedAttemptDir {
    let meta = dir.read_meta();
    let same_boot = meta.as_ref().is_ok_and(|meta| meta.boot_id == boot_id);
    // A machine that stopped may have written the last record wrong; a daemon that was killed may not.
    let tail = if same_boot {
        OutboxTail::MayBeTorn
    } else {
        OutboxTail::MayBeCorrupt
    };
    let remains = meta.map_err(|error| error.to_string()).and_then(|meta| {
        let stored = outbox::read_outbox(&dir.outbox_path(), tail).map_err(|error| error.to_string())?;
        if stored.torn_bytes > 0 {
            info!(attempt_id = %dir.id, bytes = stored.torn_bytes, "the end of an outbox was cut short");
        }
        Ok(RecoveredAttempt {
            id: dir.id,
            meta,
            stored,
        })
    });
    let started = read_lease(dir.path()).is_some();
    match remains {
        Ok(remains)
            if remains.lacks_agent_session() && (started || remains.is_launch_reported()) =>
        {
            unreadable_dir(dir, same_boot, "what was said with its agent is not there")
        }
        Ok(remains) => ScannedAttemptDir {
            dir,
            is_same_boot: same_boot,
            recovered: Some(remains),
        },
        Err(error) => unreadable_dir(dir, same_boot, &error),
    }
}

fn unreadable_dir(dir: AttemptDir, same_boot: bool, error: &str) -> ScannedAttemptDir {
    error!(attempt_id = %dir.id, error, "an attempt cannot be taken over; its lease ends it");
    ScannedAttemptDir {
        dir,
        is_same_boot: same_boot,
        recovered: None,
    }
}

/// How an attempt stands, as far as its directory and its shim say.
enum AdoptionState {
    Finished,
    NeverStarted,
    Started(ShimContact),
}

async fn contact_shim(
    dir: &AttemptDir,
    remains: &RecoveredAttempt,
    same_boot: bool,
    workshop: &AttemptEnvironment,
    until: BootTime,
) -> AdoptionState {
    if remains.is_finished() {
        return AdoptionState::Finished;
    }
    if !same_boot {
        return AdoptionState::Started(ShimContact::Gone { same_boot });
    }
    // Written right before the shim is started.
    if read_lease(dir.path()).is_none() && !remains.is_launch_reported() {
        let left = attempt::clean_up_unused(
            remains.meta.workspace.as_ref(),
            &remains.meta.attempt,
            dir,
            workshop,
        );
        tokio::select! {
            () = left => {}
            () = workshop.clock.sleep_until(until) => {
                warn!(attempt_id = %dir.id, "no time to leave the workspace of an attempt that never started");
            }
        }
        return AdoptionState::NeverStarted;
    }
    let id = dir.id.to_string();
    let contacted = tokio::select! {
        contacted = attempt::contact_shim(dir.path(), &id, &workshop.instance_id) => contacted,
        () = workshop.clock.sleep_until(until) => ContactOutcome::Silent,
    };
    AdoptionState::Started(match contacted {
        ContactOutcome::Reached(found) => ShimContact::Adopted(found),
        ContactOutcome::Gone => ShimContact::Gone { same_boot },
        ContactOutcome::Silent => ShimContact::Unreachable,
    })
}

fn adopt(
    dir: AttemptDir,
    remains: RecoveredAttempt,
    standing: AdoptionState,
    workshop: &AttemptEnvironment,
) -> AdoptedAttempt {
    let (held, errand) = match standing {
        AdoptionState::Finished => (SupervisedAttempt::restore_finished(remains), None),
        AdoptionState::NeverStarted => (
            SupervisedAttempt::restore_unstarted(remains, &workshop.clock),
            None,
        ),
        AdoptionState::Started(contact) => resume_attempt(&dir, remains, contact, workshop),
    };
    AdoptedAttempt {
        id: dir.id,
        attempt: held,
        run: errand,
    }
}

fn resume_attempt(
    dir: &AttemptDir,
    remains: RecoveredAttempt,
    contact: ShimContact,
    workshop: &AttemptEnvironment,
) -> (
    SupervisedAttempt,
    Option<(AttemptRunInput, AttemptControlReceiver)>,
) {
    let (reach, token, lease) = match &contact {
        ShimContact::Adopted(found) => (
            ShimReach::Linked,
            found.presence.token.clone(),
            found.lease(),
        ),
        ShimContact::Unreachable => (ShimReach::Unreachable, None, read_lease(dir.path())),
        ShimContact::Gone { .. } | ShimContact::Launch { .. } => (ShimReach::Ended, None, None),
    };
    info!(attempt_id = %dir.id, ?reach, "took over an attempt");
    let snapshot = remains.snapshot();
    let position = remains.stored.outbox.progress().consumed;
    let fold = TranscriptReader::restore(
        remains.meta.deadlines,
        &snapshot,
        position,
        workshop.clock.now(),
    );
    let errand = AttemptRunInput {
        attempt_id: dir.id.to_string(),
        task_id: remains.meta.attempt.task_id.clone(),
        workspace: remains.meta.workspace.clone(),
        cleanup_term: remains.meta.cleanup_term,
        required_files: remains.meta.required_files.clone(),
        directory: dir.path().to_owned(),
        transcript_reader: fold,
        replay_from: snapshot.position,
        position,
        shim_contact: contact,
    };
    let (held, bits) = SupervisedAttempt::restore_running(remains, token, lease, reach);
    (held, Some((errand, bits)))
}

impl Supervisor {
    /// Holds what was taken over; each goes on where it was.
    pub(crate) fn adopt_all(&mut self, adopted: Vec<AdoptedAttempt>) {
        for AdoptedAttempt { id, attempt, run } in adopted {
            let id = id.to_string();
            self.attempts.insert(&id, attempt);
            if let Some((input, control)) = run {
                self.tasks.run(input, control, self.identity.daemon_id());
            }
            self.disk.remove_dirs(self.attempts.remove_if_settled(&id));
        }
    }
}
