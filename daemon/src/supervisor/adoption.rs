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
use crate::attempt::{self, Contact, Contacted, Errand, Fold, Workshop, read_lease};
use crate::attempt_dir::{AttemptDir, AttemptId, Attempts};
use crate::clock::Moment;
use crate::held::{Bits, Held, Reach, Remains};
use crate::outbox::{self, Tail};
use crate::process::kill_strangers;

/// For all shims together.
const ANSWERS: Duration = Duration::from_secs(2);

/// An attempt of an earlier daemon, ready to be held.
pub(crate) struct Adopted {
    pub(crate) id: AttemptId,
    pub(crate) held: Held,
    /// What its task goes on with; a finished one has none.
    pub(crate) errand: Option<(Errand, Bits)>,
}

/// Looks at every directory and asks every shim. What nobody asks for any more is ended meanwhile.
pub(crate) async fn take_over(
    attempts: Attempts,
    boot_id: &str,
    workshop: &Workshop,
) -> io::Result<Vec<Adopted>> {
    let boot = boot_id.to_owned();
    let found = tokio::task::spawn_blocking(move || read_all(&attempts, &boot));
    let found = found.await.expect("reading files does not panic")?;
    let known: BTreeSet<String> = found.iter().map(|left| left.dir.id.to_string()).collect();
    let until = workshop.clock.now().after(ANSWERS);
    let (attempts, (), ()) = tokio::join!(
        ask_all(found, workshop, until),
        end_strangers(workshop, &known, until),
        end_groups(workshop, &known),
    );
    Ok(attempts)
}

async fn ask_all(found: Vec<Left>, workshop: &Workshop, until: Moment) -> Vec<Adopted> {
    let mut asked = JoinSet::new();
    for left in found {
        let Some(remains) = left.remains else {
            continue;
        };
        let (dir, workshop) = (left.dir, workshop.clone());
        asked.spawn(async move {
            let standing = ask(&dir, &remains, left.same_boot, &workshop, until).await;
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
async fn end_strangers(workshop: &Workshop, known: &BTreeSet<String>, until: Moment) {
    if workshop.daemon_id.is_empty() {
        return;
    }
    let ended = kill_strangers(&workshop.daemon_id, known, &workshop.clock);
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
async fn end_groups(workshop: &Workshop, known: &BTreeSet<String>) {
    if let Some(groups) = &workshop.groups {
        groups.end_strangers(|id| known.contains(id)).await;
    }
}

/// One directory as it was read.
struct Left {
    dir: AttemptDir,
    same_boot: bool,
    /// None where it cannot be read; then it is left alone.
    remains: Option<Remains>,
}

fn read_all(attempts: &Attempts, boot_id: &str) -> io::Result<Vec<Left>> {
    let mut found = Vec::new();
    for dir in attempts.list()? {
        match dir.has_meta() {
            Ok(true) => found.push(read_one(dir, boot_id)),
            Ok(false) => {
                if let Err(error) = dir.remove() {
                    warn!(attempt_id = %dir.id, error = %error, "cannot remove what is left of an attempt");
                }
            }
            // One bad entry is no reason to leave all the others alone.
            Err(error) => found.push(unreadable(dir, false, &error.to_string())),
        }
    }
    Ok(found)
}

fn read_one(dir: AttemptDir, boot_id: &str) -> Left {
    let meta = dir.meta();
    let same_boot = meta.as_ref().is_ok_and(|meta| meta.boot_id == boot_id);
    // A machine that stopped may have written the last record wrong; a daemon that was killed may not.
    let tail = if same_boot { Tail::Short } else { Tail::Wrong };
    let remains = meta.map_err(|error| error.to_string()).and_then(|meta| {
        let stored = outbox::read(&dir.outbox(), tail).map_err(|error| error.to_string())?;
        if stored.torn > 0 {
            info!(attempt_id = %dir.id, bytes = stored.torn, "the end of an outbox was cut short");
        }
        Ok(Remains {
            id: dir.id,
            meta,
            stored,
        })
    });
    let started = read_lease(dir.path()).is_some();
    match remains {
        Ok(remains) if remains.lacks_its_talk() && (started || remains.has_begun()) => {
            unreadable(dir, same_boot, "what was said with its agent is not there")
        }
        Ok(remains) => Left {
            dir,
            same_boot,
            remains: Some(remains),
        },
        Err(error) => unreadable(dir, same_boot, &error),
    }
}

fn unreadable(dir: AttemptDir, same_boot: bool, error: &str) -> Left {
    error!(attempt_id = %dir.id, error, "an attempt cannot be taken over; its lease ends it");
    Left {
        dir,
        same_boot,
        remains: None,
    }
}

/// How an attempt stands, as far as its directory and its shim say.
enum Standing {
    Finished,
    NeverStarted,
    Started(Contact),
}

async fn ask(
    dir: &AttemptDir,
    remains: &Remains,
    same_boot: bool,
    workshop: &Workshop,
    until: Moment,
) -> Standing {
    if remains.is_finished() {
        return Standing::Finished;
    }
    if !same_boot {
        return Standing::Started(Contact::Gone { same_boot });
    }
    // Written right before the shim is started.
    if read_lease(dir.path()).is_none() && !remains.has_begun() {
        let left = attempt::leave_unused(
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
        return Standing::NeverStarted;
    }
    let id = dir.id.to_string();
    let contacted = tokio::select! {
        contacted = attempt::contact(dir.path(), &id, &workshop.instance_id) => contacted,
        () = workshop.clock.sleep_until(until) => Contacted::Silent,
    };
    Standing::Started(match contacted {
        Contacted::Found(found) => Contact::Adopted(found),
        Contacted::Gone => Contact::Gone { same_boot },
        Contacted::Silent => Contact::Unreachable,
    })
}

fn adopt(dir: AttemptDir, remains: Remains, standing: Standing, workshop: &Workshop) -> Adopted {
    let (held, errand) = match standing {
        Standing::Finished => (Held::finished(remains), None),
        Standing::NeverStarted => (Held::never_started(remains, &workshop.clock), None),
        Standing::Started(contact) => resume(&dir, remains, contact, workshop),
    };
    Adopted {
        id: dir.id,
        held,
        errand,
    }
}

fn resume(
    dir: &AttemptDir,
    remains: Remains,
    contact: Contact,
    workshop: &Workshop,
) -> (Held, Option<(Errand, Bits)>) {
    let (reach, token, lease) = match &contact {
        Contact::Adopted(found) => (Reach::Linked, found.presence.token.clone(), found.lease()),
        Contact::Unreachable => (Reach::Unreachable, None, read_lease(dir.path())),
        Contact::Gone { .. } | Contact::Launch { .. } => (Reach::Over, None, None),
    };
    info!(attempt_id = %dir.id, ?reach, "took over an attempt");
    let snapshot = remains.snapshot();
    let position = remains.stored.outbox.progress().consumed;
    let fold = Fold::restore(
        remains.meta.deadlines,
        &snapshot,
        position,
        workshop.clock.now(),
    );
    let errand = Errand {
        attempt_id: dir.id.to_string(),
        task_id: remains.meta.attempt.task_id.clone(),
        workspace: remains.meta.workspace.clone(),
        cleanup_term: remains.meta.cleanup_term,
        files: remains.meta.files.clone(),
        directory: dir.path().to_owned(),
        fold,
        recall_from: snapshot.position,
        position,
        contact,
    };
    let (held, bits) = Held::resumed(remains, token, lease, reach);
    (held, Some((errand, bits)))
}

impl Supervisor {
    /// Holds what was taken over; each goes on where it was.
    pub(crate) fn adopt_all(&mut self, adopted: Vec<Adopted>) {
        for Adopted { id, held, errand } in adopted {
            let id = id.to_string();
            self.held.insert(id.clone(), held);
            if let Some((errand, bits)) = errand {
                self.run_attempt(errand, bits);
            }
            self.enqueue(&id);
            self.forget_if_settled(&id);
        }
    }
}
