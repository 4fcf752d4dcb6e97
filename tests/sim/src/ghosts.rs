//! Words that nobody who may say them is saying now: frames and output of long ago, of another daemon, of nobody, and a last
//! word after the last word. A disk was restored, something on the way kept them, or somebody lies.

use std::collections::VecDeque;

use baton_core::id::{AttemptId, SessionId};
use baton_core::input::{
    Activity, Completed, Frame, FrameBody, FrameRef, Input, LeaseToken, Termination,
};
use baton_core::record::EndedBy;
use baton_core::time::Wall;

use crate::agent::gone;
use crate::links::Up;
use crate::world::World;

/// A token that no relay ever made.
pub(crate) const FORGED: LeaseToken = LeaseToken([0xee; 32]);

/// What can come again.
const REMEMBERED: usize = 200;

/// A frame as it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) re: FrameRef,
    pub(crate) control_seq: u64,
    pub(crate) observed: Wall,
    pub(crate) body: FrameBody,
    /// Which word of its attempt it is, if the attempt ever said it.
    pub(crate) nth: Option<u64>,
}

impl Said {
    pub(crate) fn frame(self, session: SessionId, proof: Option<LeaseToken>) -> Frame {
        Frame {
            session,
            re: self.re,
            control_seq: self.control_seq,
            observed: self.observed,
            proof,
            body: self.body,
            workspace: None,
            finished: None,
            known: Ok(None),
        }
    }
}

/// The newest of what a daemon has sent.
#[derive(Debug, Default)]
pub(crate) struct Past {
    frames: VecDeque<Said>,
    output: VecDeque<Activity>,
}

impl Past {
    pub(crate) fn said(&mut self, said: Said) {
        remember(&mut self.frames, said);
    }

    pub(crate) fn printed(&mut self, activity: Activity) {
        remember(&mut self.output, activity);
    }
}

fn remember<T>(past: &mut VecDeque<T>, item: T) {
    past.push_back(item);
    if past.len() > REMEMBERED {
        past.pop_front();
    }
}

impl World {
    pub(crate) fn haunt(&mut self, index: usize) {
        let daemon = &self.daemons[index];
        let (Some(conn), true) = (daemon.conn, daemon.welcomed) else {
            return;
        };
        let other = self.rng.index(self.daemons.len());
        let (ghost, proof) = match self.rng.below(8) {
            // It claims no death: of what is parked no hash is kept, and its own daemon's word about that would count.
            0 => (self.unreached(index, Termination::default()), Some(FORGED)),
            1 if other != index => (self.unreached(other, gone()), None),
            2 => (self.second_word(index), None),
            3 | 4 => return self.print_again(other, conn),
            5 => (self.past_frame(other), None),
            _ => (self.past_frame(index), None),
        };
        if let Some(said) = ghost {
            self.say_as_ghost(index, conn, said, proof);
        }
    }

    /// Whatever the relay answers to this, the daemon did not say it.
    pub(crate) fn say_as_ghost(
        &mut self,
        index: usize,
        conn: usize,
        said: Said,
        proof: Option<LeaseToken>,
    ) {
        self.counts.ghosts += 1;
        let ghost = (said.re.attempt, said.control_seq);
        self.daemons[index].ghosts.insert(ghost);
        let nth = said.nth;
        let frame = Box::new(said.frame(self.conns[conn].session, proof));
        let ghost = true;
        self.send_up(conn, Up::Said { frame, nth, ghost });
    }

    fn past_frame(&mut self, index: usize) -> Option<Said> {
        let said = &self.daemons[index].past.frames;
        said.get(self.rng.index(said.len())).cloned()
    }

    /// Output that was told before, most often that of an attempt which has a successor.
    fn print_again(&mut self, of: usize, conn: usize) {
        let view = &self.relay.store.view;
        let succeeded = |activity: &&Activity| {
            let newest = view.live.get(&activity.re.task).and_then(|t| t.newest());
            newest.is_some_and(|n| n.id != activity.re.attempt && n.state.is_leased())
        };
        let printed = &self.daemons[of].past.output;
        let late: Vec<&Activity> = printed.iter().filter(succeeded).collect();
        let chosen = match self.rng.pick(&late) {
            Some(late) => Some(late.clone()),
            None => printed.get(self.rng.index(printed.len())).cloned(),
        };
        let Some(activity) = chosen else {
            return;
        };
        self.counts.ghosts += 1;
        let session = self.conns[conn].session;
        let again = Activity {
            session,
            ..activity
        };
        self.send_up(conn, Up::Input(Input::Activity(again)));
    }

    /// A result that this daemon's attempt has not reached, under the very number that comes next.
    fn unreached(&mut self, index: usize, end: Termination) -> Option<Said> {
        let held: Vec<FrameRef> = self.daemons[index].held.values().map(|h| h.re).collect();
        let re = self.rng.pick(&held)?;
        Some(self.result_of(re, self.known_seq(re)?, end))
    }

    /// Another result of an attempt whose worker has told its end, while its task goes on.
    fn second_word(&mut self, index: usize) -> Option<Said> {
        let view = &self.relay.store.view;
        let told = |re: &FrameRef| {
            let attempt = view.live.get(&re.task).and_then(|t| t.attempt(re.attempt));
            let end = attempt.and_then(|attempt| attempt.state.end());
            end.is_some_and(|end| end.by == EndedBy::Daemon)
        };
        let past = self.daemons[index].past.frames.iter().map(|said| said.re);
        let over: Vec<FrameRef> = past.filter(told).collect();
        let re = self.rng.pick(&over)?;
        Some(self.result_of(re, self.known_seq(re)?, Termination::default()))
    }

    fn known_seq(&self, re: FrameRef) -> Option<u64> {
        let attempt = self.relay.store.view.attempt(re.task, re.attempt)?;
        Some(attempt.control_seq)
    }

    fn result_of(&self, re: FrameRef, after: u64, termination: Termination) -> Said {
        let body = FrameBody::Completed(Completed {
            termination,
            in_lease: true,
            ..Completed::default()
        });
        Said {
            re,
            control_seq: after + 1,
            observed: self.wall(),
            body,
            nth: None,
        }
    }

    /// The link gives a frame twice, or gives it before the one that it follows.
    pub(crate) fn doubled(&mut self, index: usize, conn: usize, sent: &[Said]) {
        if !self.options.doubles || self.healing || !self.rng.chance(15) {
            return;
        }
        if let Some(said) = sent.last().cloned() {
            self.say_as_ghost(index, conn, said, None);
        }
    }

    /// Whether the relay's word on this frame is for its ghost.
    pub(crate) fn is_ghost(&self, index: usize, attempt: AttemptId, control_seq: u64) -> bool {
        self.daemons[index].ghosts.contains(&(attempt, control_seq))
    }
}
