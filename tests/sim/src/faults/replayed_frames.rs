//! Frames whose sender is not entitled to them now: old frames and output, frames of another
//! daemon, forged ones, and a second terminal frame. Causes are a restored disk, a delayed
//! packet or a faulty peer.

use std::collections::VecDeque;

use baton_core::ids::{AttemptId, SessionId};
use baton_core::io::session_input::SessionInput;
use baton_core::io::session_input::{
    AttemptFrame, CompletedBody, FrameBody, FrameRef, LeaseToken, OutputActivity,
    ProcessTermination,
};
use baton_core::record::EndedBy;
use baton_core::time::WallTime;

use crate::daemon::agent_process::confirmed_termination;
use crate::simulation::Simulation;
use crate::stream::UpstreamItem;

/// A token that no relay ever created.
pub(crate) const FORGED_TOKEN: LeaseToken = LeaseToken([0xee; 32]);

/// Number of frames that can be replayed.
const MAX_SENT_HISTORY: usize = 200;

/// A frame as it was sent.
#[derive(Clone, Debug)]
pub(crate) struct SentFrame {
    pub(crate) re: FrameRef,
    pub(crate) control_seq: u64,
    pub(crate) observed: WallTime,
    pub(crate) body: FrameBody,
    /// Its position in the attempt's sequence, if the attempt ever sent it.
    pub(crate) frame_number: Option<u64>,
}

impl SentFrame {
    pub(crate) fn into_frame(self, session: SessionId, proof: Option<LeaseToken>) -> AttemptFrame {
        AttemptFrame {
            session,
            frame_ref: self.re,
            control_seq: self.control_seq,
            observed: self.observed,
            proof,
            body: self.body,
            workspace: None,
        }
    }
}

/// The newest frames and output that a daemon has sent.
#[derive(Debug, Default)]
pub(crate) struct SentHistory {
    frames: VecDeque<SentFrame>,
    output: VecDeque<OutputActivity>,
}

impl SentHistory {
    pub(crate) fn record_frame(&mut self, said: SentFrame) {
        push_bounded(&mut self.frames, said);
    }

    pub(crate) fn record_output(&mut self, activity: OutputActivity) {
        push_bounded(&mut self.output, activity);
    }
}

fn push_bounded<T>(past: &mut VecDeque<T>, item: T) {
    past.push_back(item);
    if past.len() > MAX_SENT_HISTORY {
        past.pop_front();
    }
}

impl Simulation {
    pub(crate) fn replay_something(&mut self, index: usize) {
        let daemon = &self.daemons[index];
        let (Some(conn), true) = (daemon.stream, daemon.welcomed) else {
            return;
        };
        let other = self.rng.random_index(self.daemons.len());
        let (ghost, proof) = match self.rng.below(8) {
            // It reports no end of processes: for a parked attempt no token hash is stored, so
            // such a report of its own daemon would count.
            0 => (
                self.premature_result(index, ProcessTermination::default()),
                Some(FORGED_TOKEN),
            ),
            1 if other != index => (self.premature_result(other, confirmed_termination()), None),
            2 => (self.second_result(index), None),
            3 | 4 => return self.replay_output(other, conn),
            5 => (self.pick_sent_frame(other), None),
            _ => (self.pick_sent_frame(index), None),
        };
        if let Some(said) = ghost {
            self.send_replayed_frame(index, conn, said, proof);
        }
    }

    /// The relay's answer to this frame does not concern a frame that the daemon sent.
    pub(crate) fn send_replayed_frame(
        &mut self,
        index: usize,
        conn: usize,
        said: SentFrame,
        proof: Option<LeaseToken>,
    ) {
        self.counts.ghosts += 1;
        let ghost = (said.re.attempt, said.control_seq);
        self.daemons[index].replayed_frames.insert(ghost);
        let nth = said.frame_number;
        let frame = Box::new(said.into_frame(self.streams[conn].session, proof));
        let ghost = true;
        self.send_to_relay(
            conn,
            UpstreamItem::Frame {
                frame,
                frame_number: nth,
                is_replay: ghost,
            },
        );
    }

    fn pick_sent_frame(&mut self, index: usize) -> Option<SentFrame> {
        let said = &self.daemons[index].sent_history.frames;
        said.get(self.rng.random_index(said.len())).cloned()
    }

    /// Output that was sent before, mostly of an attempt that has a successor.
    fn replay_output(&mut self, of: usize, conn: usize) {
        let view = &self.relay.store.view;
        let succeeded = |activity: &&OutputActivity| {
            let newest = view
                .live
                .get(&activity.frame_ref.task)
                .and_then(|t| t.newest_attempt());
            newest.is_some_and(|n| n.id != activity.frame_ref.attempt && n.state.is_leased())
        };
        let printed = &self.daemons[of].sent_history.output;
        let late: Vec<&OutputActivity> = printed.iter().filter(succeeded).collect();
        let chosen = match self.rng.pick(&late) {
            Some(late) => Some(late.clone()),
            None => printed.get(self.rng.random_index(printed.len())).cloned(),
        };
        let Some(activity) = chosen else {
            return;
        };
        self.counts.ghosts += 1;
        let session = self.streams[conn].session;
        let again = OutputActivity {
            session,
            ..activity
        };
        self.send_to_relay(conn, UpstreamItem::Input(SessionInput::Activity(again)));
    }

    /// A result that this daemon's attempt has not reached, with exactly the next number.
    fn premature_result(&mut self, index: usize, end: ProcessTermination) -> Option<SentFrame> {
        let held: Vec<FrameRef> = self.daemons[index]
            .attempts
            .values()
            .map(|h| h.re)
            .collect();
        let re = self.rng.pick(&held)?;
        Some(self.result_frame_after(re, self.relay_control_seq(re)?, end))
    }

    /// A second result of an attempt whose worker has reported its end, while its task
    /// continues.
    fn second_result(&mut self, index: usize) -> Option<SentFrame> {
        let view = &self.relay.store.view;
        let told = |re: &FrameRef| {
            let attempt = view.live.get(&re.task).and_then(|t| t.attempt(re.attempt));
            let end = attempt.and_then(|attempt| attempt.state.end());
            end.is_some_and(|end| end.ended_by == EndedBy::Daemon)
        };
        let past = self.daemons[index]
            .sent_history
            .frames
            .iter()
            .map(|said| said.re);
        let over: Vec<FrameRef> = past.filter(told).collect();
        let re = self.rng.pick(&over)?;
        Some(self.result_frame_after(
            re,
            self.relay_control_seq(re)?,
            ProcessTermination::default(),
        ))
    }

    fn relay_control_seq(&self, re: FrameRef) -> Option<u64> {
        let attempt = self.relay.store.view.attempt(re.task, re.attempt)?;
        Some(attempt.control_seq)
    }

    fn result_frame_after(
        &self,
        re: FrameRef,
        after: u64,
        termination: ProcessTermination,
    ) -> SentFrame {
        let body = FrameBody::Completed(CompletedBody {
            termination,
            ended_in_lease: true,
            ..CompletedBody::default()
        });
        SentFrame {
            re,
            control_seq: after + 1,
            observed: self.wall_time(),
            body,
            frame_number: None,
        }
    }

    /// The link delivers a frame twice, or before the preceding one.
    pub(crate) fn duplicate_last_frame(&mut self, index: usize, conn: usize, sent: &[SentFrame]) {
        if !self.options.duplicate_frames || self.healing || !self.rng.chance(15) {
            return;
        }
        if let Some(said) = sent.last().cloned() {
            self.send_replayed_frame(index, conn, said, None);
        }
    }

    /// Whether the relay's answer concerns a replayed frame.
    pub(crate) fn is_replayed_frame(
        &self,
        index: usize,
        attempt: AttemptId,
        control_seq: u64,
    ) -> bool {
        self.daemons[index]
            .replayed_frames
            .contains(&(attempt, control_seq))
    }
}
