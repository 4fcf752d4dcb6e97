//! Adopts the attempts of an earlier daemon. An attempt's directory contains its description
//! and the frames that the relay has not acknowledged; its shim, if it lives, has the rest. All
//! shims are contacted at once, for at most two seconds, so that a stuck one does not delay
//! Hello. Nothing is killed or decided here: each attempt goes on in its usual task.

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

/// The time limit for all shims together.
const SHIM_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// An attempt of an earlier daemon, ready to be supervised.
pub(crate) struct AdoptedAttempt {
    pub(crate) id: AttemptId,
    pub(crate) attempt: SupervisedAttempt,
    /// What its task continues with; `None` for a finished attempt.
    pub(crate) run: Option<(AttemptRunInput, AttemptControlReceiver)>,
}

/// Reads every directory and contacts every shim. Processes of unknown attempts are killed
/// meanwhile.
pub(crate) async fn adopt_attempts(
    attempts: AttemptDirectories,
    boot_id: &str,
    environment: &AttemptEnvironment,
) -> io::Result<Vec<AdoptedAttempt>> {
    let boot = boot_id.to_owned();
    let scanned = tokio::task::spawn_blocking(move || scan_attempt_dirs(&attempts, &boot));
    let scanned = scanned.await.expect("reading files does not panic")?;
    let known: BTreeSet<String> = scanned.iter().map(|left| left.dir.id.to_string()).collect();
    let until = environment.clock.now().after(SHIM_ANSWER_TIMEOUT);
    let (attempts, (), ()) = tokio::join!(
        contact_shims(scanned, environment, until),
        kill_unknown_processes(environment, &known, until),
        remove_unknown_groups(environment, &known),
    );
    Ok(attempts)
}

async fn contact_shims(
    scanned: Vec<ScannedAttemptDir>,
    environment: &AttemptEnvironment,
    until: BootTime,
) -> Vec<AdoptedAttempt> {
    let mut contacts = JoinSet::new();
    for left in scanned {
        let Some(recovered) = left.recovered else {
            continue;
        };
        let (dir, environment) = (left.dir, environment.clone());
        contacts.spawn(async move {
            let state =
                contact_shim(&dir, &recovered, left.is_same_boot, &environment, until).await;
            (dir, recovered, state)
        });
    }
    let mut adopted = Vec::new();
    while let Some(answer) = contacts.join_next().await {
        let (dir, recovered, state) = answer.expect("contacting a shim does not panic");
        adopted.push(adopt(dir, recovered, state, environment));
    }
    adopted
}

/// Kills processes of this daemon whose attempts have no directory any more, because they have
/// no owner. Those that do not die do not delay Hello.
async fn kill_unknown_processes(
    environment: &AttemptEnvironment,
    known: &BTreeSet<String>,
    until: BootTime,
) {
    if environment.daemon_id.is_empty() {
        return;
    }
    let ended = kill_unknown_attempts(&environment.daemon_id, known, &environment.clock);
    let swept = tokio::select! {
        swept = ended => swept,
        () = environment.clock.sleep_until(until) => {
            warn!("processes of unknown attempts cannot be killed");
            return;
        }
    };
    if swept.killed > 0 {
        warn!(
            killed = swept.killed,
            "killed processes of unknown attempts"
        );
    }
}

/// Removes control groups of unknown attempts.
async fn remove_unknown_groups(environment: &AttemptEnvironment, known: &BTreeSet<String>) {
    if let Some(groups) = &environment.control_groups {
        groups.remove_unknown_groups(|id| known.contains(id)).await;
    }
}

/// One directory as it was read.
struct ScannedAttemptDir {
    dir: AttemptDir,
    is_same_boot: bool,
    /// `None` when it cannot be read; then it is left alone.
    recovered: Option<RecoveredAttempt>,
}

fn scan_attempt_dirs(
    attempts: &AttemptDirectories,
    boot_id: &str,
) -> io::Result<Vec<ScannedAttemptDir>> {
    let mut scanned = Vec::new();
    for dir in attempts.list()? {
        match dir.has_meta() {
            Ok(true) => scanned.push(scan_attempt_dir(dir, boot_id)),
            Ok(false) => {
                if let Err(error) = dir.remove() {
                    warn!(attempt_id = %dir.id, error = %error, "cannot remove what is left of an attempt");
                }
            }
            // One unreadable entry does not prevent the adoption of the others.
            Err(error) => scanned.push(unreadable_dir(dir, false, &error.to_string())),
        }
    }
    Ok(scanned)
}

fn scan_attempt_dir(dir: AttemptDir, boot_id: &str) -> ScannedAttemptDir {
    let meta = dir.read_meta();
    let same_boot = meta.as_ref().is_ok_and(|meta| meta.boot_id == boot_id);
    // After a crash of the machine the last record may have wrong contents; after a killed
    // daemon it can only be incomplete.
    let tail = if same_boot {
        OutboxTail::MayBeTorn
    } else {
        OutboxTail::MayBeCorrupt
    };
    let recovered = meta.map_err(|error| error.to_string()).and_then(|meta| {
        let stored = outbox::read_outbox(&dir.outbox_path(), tail).map_err(|error| error.to_string())?;
        if stored.torn_bytes > 0 {
            info!(attempt_id = %dir.id, bytes = stored.torn_bytes, "the torn end of an outbox was cut off");
        }
        Ok(RecoveredAttempt {
            id: dir.id,
            meta,
            stored,
        })
    });
    let started = read_lease(dir.path()).is_some();
    match recovered {
        Ok(recovered)
            if recovered.lacks_agent_session() && (started || recovered.is_launch_reported()) =>
        {
            unreadable_dir(
                dir,
                same_boot,
                "the stored session with its agent is missing",
            )
        }
        Ok(recovered) => ScannedAttemptDir {
            dir,
            is_same_boot: same_boot,
            recovered: Some(recovered),
        },
        Err(error) => unreadable_dir(dir, same_boot, &error),
    }
}

fn unreadable_dir(dir: AttemptDir, same_boot: bool, error: &str) -> ScannedAttemptDir {
    error!(attempt_id = %dir.id, error, "an attempt cannot be adopted; it ends with its lease");
    ScannedAttemptDir {
        dir,
        is_same_boot: same_boot,
        recovered: None,
    }
}

/// The state of an attempt by its directory and its shim.
enum AdoptionState {
    Finished,
    NeverStarted,
    Started(ShimContact),
}

async fn contact_shim(
    dir: &AttemptDir,
    recovered: &RecoveredAttempt,
    same_boot: bool,
    environment: &AttemptEnvironment,
    until: BootTime,
) -> AdoptionState {
    if recovered.is_finished() {
        return AdoptionState::Finished;
    }
    if !same_boot {
        return AdoptionState::Started(ShimContact::Gone { same_boot });
    }
    // The lease file is written right before the shim is started.
    if read_lease(dir.path()).is_none() && !recovered.is_launch_reported() {
        let left = attempt::clean_up_unused(
            recovered.meta.workspace.as_ref(),
            &recovered.meta.attempt,
            dir,
            environment,
        );
        tokio::select! {
            () = left => {}
            () = environment.clock.sleep_until(until) => {
                warn!(attempt_id = %dir.id, "the workspace of an unstarted attempt was not cleaned up in time");
            }
        }
        return AdoptionState::NeverStarted;
    }
    let id = dir.id.to_string();
    let contacted = tokio::select! {
        contacted = attempt::contact_shim(dir.path(), &id, &environment.instance_id) => contacted,
        () = environment.clock.sleep_until(until) => ContactOutcome::Silent,
    };
    AdoptionState::Started(match contacted {
        ContactOutcome::Reached(scanned) => ShimContact::Adopted(scanned),
        ContactOutcome::Gone => ShimContact::Gone { same_boot },
        ContactOutcome::Silent => ShimContact::Unreachable,
    })
}

fn adopt(
    dir: AttemptDir,
    recovered: RecoveredAttempt,
    state: AdoptionState,
    environment: &AttemptEnvironment,
) -> AdoptedAttempt {
    let (attempt, input) = match state {
        AdoptionState::Finished => (SupervisedAttempt::restore_finished(recovered), None),
        AdoptionState::NeverStarted => (
            SupervisedAttempt::restore_unstarted(recovered, &environment.clock),
            None,
        ),
        AdoptionState::Started(contact) => resume_attempt(&dir, recovered, contact, environment),
    };
    AdoptedAttempt {
        id: dir.id,
        attempt,
        run: input,
    }
}

fn resume_attempt(
    dir: &AttemptDir,
    recovered: RecoveredAttempt,
    contact: ShimContact,
    environment: &AttemptEnvironment,
) -> (
    SupervisedAttempt,
    Option<(AttemptRunInput, AttemptControlReceiver)>,
) {
    let (reach, token, lease) = match &contact {
        ShimContact::Adopted(scanned) => (
            ShimReach::Linked,
            scanned.presence.token.clone(),
            scanned.lease(),
        ),
        ShimContact::Unreachable => (ShimReach::Unreachable, None, read_lease(dir.path())),
        ShimContact::Gone { .. } | ShimContact::Launch { .. } => (ShimReach::Ended, None, None),
    };
    info!(attempt_id = %dir.id, ?reach, "adopted an attempt");
    let snapshot = recovered.snapshot();
    let position = recovered.stored.outbox.progress().consumed;
    let reader = TranscriptReader::restore(
        recovered.meta.deadlines,
        &snapshot,
        position,
        environment.clock.now(),
    );
    let input = AttemptRunInput {
        attempt_id: dir.id.to_string(),
        task_id: recovered.meta.attempt.task_id.clone(),
        workspace: recovered.meta.workspace.clone(),
        cleanup_term: recovered.meta.cleanup_term,
        required_files: recovered.meta.required_files.clone(),
        directory: dir.path().to_owned(),
        transcript_reader: reader,
        replay_from: snapshot.position,
        position,
        shim_contact: contact,
    };
    let (attempt, control) = SupervisedAttempt::restore_running(recovered, token, lease, reach);
    (attempt, Some((input, control)))
}

impl Supervisor {
    /// Supervises the adopted attempts; each goes on where it was.
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
