//! One attempt on its machine. Its outbox, its lease clock and the course of its shim are the daemon's own code; only what they
//! stand on, the disk, the transcript and the processes, is a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_core::id::InputId;
use baton_core::input::{CanceledBody, Completed, Errored, FrameBody, FrameRef, LeaseToken};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use baton_daemon_core::course::Course;
use baton_daemon_core::lease::LeaseClock;
use baton_daemon_core::outbox::{Acked, Body, CutWhy, Leaves, Outbox, Progress};
use baton_daemon_core::stake::Share;
use baton_daemon_core::time::Moment;
use bytes::Bytes;

use crate::agent::Plan;
use crate::disk::Disk;
use crate::outputs::printed;
use crate::rng::Rng;

pub(crate) type Sayings = Outbox<Word, bool, Wall>;

/// A control frame, and which of all words of its attempt it is: numbers may change on the way, this does not.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) nth: u64,
    pub(crate) body: FrameBody,
}

/// Small, all of them: who is held back for what the relay does not take is the daemon's affair.
impl Body for Word {
    fn size(&self) -> usize {
        0
    }
}

/// What an attempt came to, in order, as its transcript has it. Folded into the outbox by whichever daemon is there.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Word(Word),
    Output {
        from: u64,
        length: u64,
        visible: bool,
    },
    /// Printed, and lost with the machine.
    Lost {
        length: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) plan: Plan,
    pub(crate) stage: u32,
    /// Its processes run.
    pub(crate) alive: bool,
    pub(crate) confirmed: bool,
    pub(crate) accepted_at: u64,
    pub(crate) lease: Option<LeaseClock>,
    pub(crate) cleanup_term: Duration,
    /// Ends its processes, with or without a daemon.
    pub(crate) shim: Option<Shim>,
    pub(crate) rights: Rights,
    /// Why it is being killed, if it is.
    pub(crate) killing: Option<Kill>,
    /// A terminal frame was made.
    pub(crate) ended: bool,
    pub(crate) reachable: bool,
    /// Its frames were read back from the disk: they carry no token.
    pub(crate) restored: bool,
    /// Not even its receipt is wanted.
    pub(crate) unwanted: bool,
    /// The relay took it away: only a receipt is said, whatever was dropped before it.
    pub(crate) fenced: bool,
    pub(crate) tool: Option<Arc<str>>,
    pub(crate) asked: Option<InputId>,
    pub(crate) script: Vec<Item>,
    words: u64,
    /// Bytes that the child has printed.
    pub(crate) printed: u64,
    pub(crate) outbox: Sayings,
    pub(crate) disk: Disk,
    /// Words that the relay has not acknowledged and must not miss.
    pub(crate) untold: BTreeSet<u64>,
    /// Which word went out under which number.
    pub(crate) spoken: BTreeMap<u64, u64>,
}

/// The course of its processes' end, and how they take it.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) course: Course,
    /// When it is looked after next.
    pub(crate) tend_at: Option<u64>,
    /// How long after TERM they end by themselves; `None`: never.
    pub(crate) takes: Option<u64>,
    pub(crate) term_at: Option<u64>,
    pub(crate) is_killed: bool,
    /// An order wants it over by then.
    pub(crate) over_by: Option<u64>,
}

/// The judge's own count of what the relay granted, from the send of what it answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// By then its processes are dead.
    pub(crate) until: u64,
    pub(crate) least_granted: u64,
}

impl Default for Rights {
    fn default() -> Self {
        Self {
            until: 0,
            least_granted: u64::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// The relay asked for it in a Cancel.
    Canceled,
    /// It is over for the relay, and nothing of it will count.
    GivenUp,
    /// The lease ran out.
    Limit,
    /// It told its end before its processes were gone.
    Lingering,
    /// The daemon has seen a deadline pass.
    Deadline,
}

/// What a dispatch makes.
pub(crate) struct Offer {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) plan: Plan,
    pub(crate) at: u64,
    pub(crate) cleanup_term: Duration,
    pub(crate) outbox: Sayings,
}

pub(crate) fn moment(now: u64) -> Moment {
    Moment::from_millis(now)
}

impl Held {
    pub(crate) fn new(offer: Offer) -> Self {
        Self {
            re: offer.re,
            token: offer.token,
            spec: offer.spec,
            plan: offer.plan,
            stage: 0,
            alive: false,
            confirmed: false,
            accepted_at: offer.at,
            lease: None,
            cleanup_term: offer.cleanup_term,
            shim: None,
            rights: Rights::default(),
            killing: None,
            ended: false,
            reachable: true,
            restored: false,
            unwanted: false,
            fenced: false,
            tool: None,
            asked: None,
            script: Vec::new(),
            words: 0,
            printed: 0,
            outbox: offer.outbox,
            disk: Disk::default(),
            untold: BTreeSet::new(),
            spoken: BTreeMap::new(),
        }
    }

    pub(crate) fn write_down(&mut self, body: FrameBody) {
        self.words += 1;
        let nth = self.words;
        self.untold.insert(nth);
        self.script.push(Item::Word(Word { nth, body }));
    }

    pub(crate) fn print(&mut self, length: u64, visible: bool) {
        let from = self.printed;
        self.printed += length;
        self.script.push(Item::Output {
            from,
            length,
            visible,
        });
    }

    /// Takes what is new in the transcript into the outbox, each item with how far it comes.
    pub(crate) fn fold(&mut self, wall: Wall) {
        let from = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        for (index, item) in self.script.iter().enumerate().skip(from) {
            self.outbox.advance(Progress {
                consumed: index as u64 + 1,
                snapshot: Bytes::new(),
            });
            match item {
                Item::Word(word) => {
                    let body = ending_at(word.body.clone(), self.outbox.end_offset());
                    let leaves = leaves(&body);
                    self.outbox.push_control(
                        Word {
                            nth: word.nth,
                            body,
                        },
                        wall,
                        leaves,
                    );
                }
                Item::Output {
                    from,
                    length,
                    visible,
                } => {
                    let bytes: Bytes = printed(*from, *length).collect();
                    self.outbox.push_output(*visible, bytes, wall);
                }
                Item::Lost { length } => {
                    self.outbox.push_cut(*length, CutWhy::WorkerCrash, wall);
                }
            }
        }
    }

    /// What the relay acknowledged is told.
    pub(crate) fn acked(&mut self, acked: Acked) {
        self.outbox.ack(acked);
        self.told(acked.control_seq);
    }

    /// A new stream, and what the relay has.
    pub(crate) fn settled(&mut self, acked: Acked) {
        self.outbox.settle(acked);
        self.told(acked.control_seq);
    }

    fn told(&mut self, upto: u64) {
        let later = self.spoken.split_off(&(upto + 1));
        for nth in std::mem::replace(&mut self.spoken, later).values() {
            self.untold.remove(nth);
        }
    }

    /// Nobody wants what it had to say.
    pub(crate) fn drop_words(&mut self) {
        let folded = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        self.script.truncate(folded);
        self.outbox.drop_unacked();
        self.untold.clear();
    }

    /// Only its last word is still wanted.
    pub(crate) fn keep_last_word(&mut self) {
        self.outbox.keep_last_control();
        if let Some(last) = self.untold.pop_last() {
            self.untold = BTreeSet::from([last]);
        }
    }

    /// All that it has written down is in its outbox.
    pub(crate) fn is_folded(&self) -> bool {
        self.outbox.progress().consumed == self.script.len() as u64
    }

    /// The relay has everything that it says.
    pub(crate) fn is_told(&self) -> bool {
        self.is_folded() && self.outbox.acked().control_seq >= self.outbox.last_control_seq()
    }

    /// Nothing is left to run or to say.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.alive && self.is_told()
    }

    /// The daemon that held it is gone, and another reads what is on the disk.
    pub(crate) fn restore(&mut self, limit: usize) {
        self.disk.lose_daemon();
        self.outbox = self.disk.restored(limit);
    }

    /// The power went. Of the transcript any of what was not folded and synced may be gone, too.
    pub(crate) fn lose_power(&mut self, limit: usize, rng: &mut Rng) {
        self.disk.lose_power(rng);
        self.restore(limit);
        let folded = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        let kept = folded + rng.index(self.script.len().saturating_sub(folded) + 1);
        let mut lost = 0;
        for item in self.script.drain(kept.min(self.script.len())..) {
            match item {
                Item::Word(word) => {
                    self.untold.remove(&word.nth);
                    self.ended &= !is_last(&word.body);
                }
                Item::Output { length, .. } | Item::Lost { length } => lost += length,
            }
        }
        if lost > 0 {
            self.script.push(Item::Lost { length: lost });
        }
    }

    /// Its shim starts nothing that it would have to end at once.
    pub(crate) fn may_start(&self, now: u64) -> bool {
        let term_at = self.lease.map(|lease| lease.term_at(self.cleanup_term));
        self.is_within_lease(now) && term_at.is_some_and(|at| moment(now) < at)
    }

    pub(crate) fn is_within_lease(&self, now: u64) -> bool {
        self.lease.is_some_and(|lease| !lease.is_over(moment(now)))
    }

    /// Its lease is over and something of it may still run: it has no right to be heard.
    pub(crate) fn is_muted(&self, now: u64) -> bool {
        self.alive && self.lease.is_some_and(|lease| lease.is_over(moment(now)))
    }

    pub(crate) fn at_stake(&self) -> Share {
        match self.lease.filter(|_| self.alive) {
            Some(lease) => Share::Lease(lease.limit()),
            None if !self.ended => Share::Nothing,
            None => Share::LastWords(self.lease.map(|lease| lease.ttl())),
        }
    }
}

/// What nobody could say again must be on the disk for good before it leaves.
pub(crate) fn leaves(body: &FrameBody) -> Leaves {
    match body {
        FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::Completed(_)
        | FrameBody::Errored(_)
        | FrameBody::Canceled(_)
        | FrameBody::Released { .. }
        | FrameBody::Goal(_)
        | FrameBody::Receipt { .. } => Leaves::Synced,
        FrameBody::Accepted
        | FrameBody::Rejected { .. }
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Unknown => Leaves::Written,
    }
}

fn is_last(body: &FrameBody) -> bool {
    matches!(
        body,
        FrameBody::Completed(_)
            | FrameBody::Errored(_)
            | FrameBody::Canceled(_)
            | FrameBody::Released { .. }
            | FrameBody::Rejected { .. }
            | FrameBody::Receipt { .. }
    )
}

/// The last word of an attempt says how much output there is.
fn ending_at(mut body: FrameBody, end: u64) -> FrameBody {
    match &mut body {
        FrameBody::Completed(Completed { final_offset, .. })
        | FrameBody::Errored(Errored { final_offset, .. })
        | FrameBody::Canceled(CanceledBody { final_offset, .. }) => *final_offset = end,
        _ => {}
    }
    body
}
