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
use crate::attempt_dir::{AttemptDir, AttemptId, AttemptMeta, Attempts};
use crate::clock::Moment;
use crate::held::{Bits, Held, Reach, Remains};
use crate::outbox::{self, Tail};

/// For all shims together.
const ANSWERS: Duration = Duration::from_secs(2);

/// An attempt of an earlier daemon, ready to be held.
pub(crate) struct Adopted {
    pub(crate) id: AttemptId,
    pub(crate) held: Held,
    /// What its task goes on with; a finished one has none.
    pub(crate) errand: Option<(Errand, Bits)>,
}

/// What was found in the data directory.
#[derive(Default)]
pub(crate) struct Inheritance {
    pub(crate) attempts: Vec<Adopted>,
    /// Every attempt that has a directory, also those that cannot be read.
    pub(crate) known: BTreeSet<String>,
}

/// Looks at every directory and asks every shim.
pub(crate) async fn take_over(
    attempts: Attempts,
    boot_id: &str,
    workshop: &Workshop,
) -> io::Result<Inheritance> {
    let boot = boot_id.to_owned();
    let found = tokio::task::spawn_blocking(move || read_all(&attempts, &boot));
    let found = found.await.expect("reading files does not panic")?;
    let mut inheritance = Inheritance::default();
    let mut asked = JoinSet::new();
    let until = workshop.clock.now().after(ANSWERS);
    for left in found {
        inheritance.known.insert(left.dir.id.to_string());
        let Some(remains) = left.remains else {
            continue;
        };
        let (dir, workshop) = (left.dir, workshop.clone());
        asked.spawn(async move {
            let standing = ask(&dir, &remains, left.same_boot, &workshop, until).await;
            (dir, remains, standing)
        });
    }
    while let Some(answer) = asked.join_next().await {
        let (dir, remains, standing) = answer.expect("asking a shim does not panic");
        inheritance
            .attempts
            .push(adopt(dir, remains, standing, workshop));
    }
    Ok(inheritance)
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
        if dir.has_meta()? {
            found.push(read_one(dir, boot_id));
        } else if let Err(error) = dir.remove() {
            warn!(attempt_id = %dir.id, error = %error, "cannot remove what is left of an attempt");
        }
    }
    Ok(found)
}

fn read_one(dir: AttemptDir, boot_id: &str) -> Left {
    let meta = dir.meta();
    let is_same = |meta: &AttemptMeta| !boot_id.is_empty() && meta.boot_id == boot_id;
    let same_boot = meta.as_ref().is_ok_and(is_same);
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
    let remains = remains
        .inspect_err(|error| {
            error!(attempt_id = %dir.id, error, "an attempt cannot be taken over; its lease ends it");
        })
        .ok();
    Left {
        dir,
        same_boot,
        remains,
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
        cleanup_term: remains.meta.cleanup_term,
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
