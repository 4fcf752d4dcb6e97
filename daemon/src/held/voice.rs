//! What the attempt's agent says through its tools: frames like any other of the attempt, and an answer when the relay has
//! them. The capability is worth something while the attempt runs, and not a moment longer.

use baton_proto::v1::ErrorDetail;
use baton_proto::v1::ProgressUpdate;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::worker::{Finish, FoldSnapshot, OwnTask, ToolAnswer};
use prost::Message;
use tokio::sync::oneshot;

use super::{Held, Reach, Stage, StopWhy};
use crate::clock::{Clock, Moment};
use crate::outbox::Progress;
use crate::receipts::WantedFiles;
use crate::tools::{Granted, detail, noted, refused};

/// Calls that wait for the relay, of one attempt. More: the oldest is told that the daemon has it.
const WAITING: usize = 64;

/// The agent's own words, on their way.
#[derive(Debug)]
pub(crate) struct Voice {
    granted: Granted,
    files: Option<WantedFiles>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The frame that carries it.
    seq: u64,
    reply: oneshot::Sender<ToolAnswer>,
}

impl Voice {
    pub(super) fn new(granted: Granted, files: Option<WantedFiles>) -> Self {
        Self {
            granted,
            files,
            waiting: Vec::new(),
        }
    }
}

impl Held {
    /// Whether this secret may speak for the attempt now.
    pub(crate) fn hears(&self, secret: &str, now: Moment) -> bool {
        let runs = match &self.stage {
            Stage::Running(reins) => reins.reach != Reach::Over,
            Stage::Accepted { .. } | Stage::Finished { .. } => false,
        };
        let heard = match self.stopping {
            None | Some(StopWhy::Canceled(_) | StopWhy::Drained) => true,
            Some(StopWhy::DiskFull | StopWhy::TooLong | StopWhy::LeaseEnded | StopWhy::Fenced) => {
                false
            }
        };
        let leased = self.lease.is_some_and(|lease| !lease.is_over(now));
        let fits = |voice: &Voice| voice.granted.hash.fits(secret);
        runs && heard && leased && self.voice.as_ref().is_some_and(fits)
    }

    /// What it has to leave.
    pub(crate) fn files(&self) -> Option<WantedFiles> {
        self.voice.as_ref()?.files.clone()
    }

    /// What is known here of the attempt's own task.
    pub(crate) fn own_task(&self) -> OwnTask {
        let granted = self.voice.as_ref().map(|voice| voice.granted.clone());
        let (goal, success_criteria, resume) = granted.map_or_else(Default::default, |granted| {
            (granted.goal, granted.success_criteria, granted.resume)
        });
        OwnTask {
            r#ref: Some(self.attempt.clone()),
            goal,
            success_criteria,
            resume,
            cancel_requested: matches!(self.stopping, Some(StopWhy::Canceled(_))),
            finish: self.finish.clone(),
        }
    }

    /// Says it, and answers when the relay has it.
    pub(crate) fn tell(&mut self, body: Body, reply: oneshot::Sender<ToolAnswer>, clock: &Clock) {
        self.say(body, clock);
        let seq = self.outbox.last_control_seq();
        let Some(voice) = &mut self.voice else {
            return;
        };
        if voice.waiting.len() == WAITING {
            // Whoever asked may have gone; so below.
            let _ = voice.waiting.remove(0).reply.send(noted(false));
        }
        voice.waiting.push(Waiting { seq, reply });
    }

    /// The agent says how its attempt ends. Fixed from here on: what the process does afterwards changes nothing. It is
    /// stored with the frame that tells the summary.
    pub(crate) fn fix(
        &mut self,
        finish: Finish,
        reply: oneshot::Sender<ToolAnswer>,
        clock: &Clock,
    ) {
        let summary = finish.summary.clone();
        let Progress { consumed, snapshot } = self.outbox.progress().clone();
        let mut snapshot = FoldSnapshot::decode(snapshot).unwrap_or_default();
        snapshot.finish = Some(finish.clone());
        self.finish = Some(finish);
        if let Stage::Running(reins) = &self.stage {
            reins.fix();
        }
        self.outbox.advance(Progress {
            consumed,
            snapshot: snapshot.encode_to_vec().into(),
        });
        let update = ProgressUpdate {
            summary: Some(summary),
            ..ProgressUpdate::default()
        };
        self.tell(Body::Progress(update), reply, clock);
    }

    /// What was fixed stays. The same again is no news.
    pub(crate) fn after_the_end(&self, said: Option<&Finish>) -> Option<ToolAnswer> {
        let fixed = self.finish.as_ref()?;
        if said == Some(fixed) {
            return Some(noted(false));
        }
        let hint = "end your work: the daemon tells the outcome when the process has ended";
        let over = detail(
            "outcome_fixed",
            "the outcome of this attempt is fixed",
            hint,
            "",
        );
        Some(refused("failed_precondition", over))
    }

    /// The relay has more of what was said.
    pub(crate) fn on_told(&mut self) {
        let acked = self.outbox.acked().control_seq;
        self.settle_waiting(|waiting| (waiting.seq <= acked).then(|| noted(true)));
    }

    /// The relay refused one frame, and changed nothing.
    pub(crate) fn on_untold(&mut self, seq: u64, error: &ErrorDetail) {
        self.settle_waiting(|waiting| {
            (waiting.seq == seq).then(|| refused("failed_precondition", error.clone()))
        });
    }

    /// A new stream: numbers may move, so nobody here can tell any more which ack is whose.
    pub(crate) fn stop_waiting(&mut self) {
        self.settle_waiting(|_| Some(noted(false)));
    }

    /// What they said was thrown away: they are told that the attempt is over.
    pub(super) fn forget_waiting(&mut self) {
        if let Some(voice) = &mut self.voice {
            voice.waiting.clear();
        }
    }

    fn settle_waiting(&mut self, answer: impl Fn(&Waiting) -> Option<ToolAnswer>) {
        let Some(voice) = &mut self.voice else {
            return;
        };
        for waiting in std::mem::take(&mut voice.waiting) {
            match answer(&waiting) {
                Some(answer) => {
                    let _ = waiting.reply.send(answer);
                }
                None => voice.waiting.push(waiting),
            }
        }
    }
}
