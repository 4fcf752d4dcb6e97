//! Stopping on purpose: no new work, time to finish, and what still runs is handed over to its shims under a hold.

use baton_proto::v1::{Goodbye, GoodbyeCode, HoldGranted, HoldRequest, RejectCode, daemon_frame};
use tracing::{info, warn};

use super::Supervisor;
use super::course::{Course, Hold, Scene};
use super::orders::frame;
use crate::agents::Refusal;
use crate::clock::Moment;
use crate::held::{Held, Telling};

impl Supervisor {
    pub(super) fn begin_drain(&mut self) {
        self.course = self.stopping.begin(self.clock.now());
        let refusal = Refusal {
            code: RejectCode::Draining,
            message: "the daemon is stopping".to_owned(),
        };
        self.change_all(|held, clock| held.give_back(&refusal, clock));
        self.send_heartbeat();
        info!(held = self.held.len(), "draining");
    }

    pub(super) fn move_on(&mut self, now: Moment) {
        let next = self.course.next(Scene {
            now,
            idle: !self.held.values().any(Held::holds_slot),
            may_leave: self.held.values().all(Held::may_be_left),
            stopping: self.stopping,
        });
        if next != self.course {
            self.course = next;
            self.on_turn(next);
        }
        self.ask_for_hold(now);
    }

    /// What a new part of the course begins with.
    fn on_turn(&mut self, course: Course) {
        let running = self.held.values().filter(|held| held.holds_slot()).count();
        match course {
            Course::HandingOver { .. } => info!(running, "handing over what still runs"),
            Course::Killing { kill_by, .. } => {
                info!(running, "killing what still runs");
                self.change_all(|held, clock| held.drain(kill_by, clock));
            }
            Course::Leaving { restarts: true, .. } => {
                info!(running, "handed over; the next daemon finds it here");
            }
            Course::Leaving { .. } if running > 0 => {
                warn!(
                    running,
                    "the time is up; the shims end what is left with their leases"
                );
            }
            Course::Leaving { .. }
            | Course::Working
            | Course::Resting
            | Course::Draining { .. } => {}
        }
    }

    /// Once on every stream, until it is granted.
    fn ask_for_hold(&mut self, now: Moment) {
        let Course::HandingOver {
            hold: Hold::Unasked,
            leave_by,
        } = self.course
        else {
            return;
        };
        let Some(live) = self.live.as_ref().filter(|live| live.grants_holds) else {
            return;
        };
        let stream = live.session.number;
        let running = self.held.values().filter(|held| held.holds_slot());
        let attempts = running.filter_map(|held| held.renew_entry(now)).collect();
        let request = HoldRequest {
            seq: stream,
            hold_ms: u64::try_from(self.stopping.hold.as_millis()).unwrap_or(u64::MAX),
            attempts,
            reason: "the daemon restarts".to_owned(),
        };
        live.session
            .send_urgent(frame(daemon_frame::Frame::Hold(request)));
        let hold = Hold::Asked { stream, at: now };
        self.course = Course::HandingOver { hold, leave_by };
    }

    pub(super) fn on_hold_granted(&mut self, granted: HoldGranted) {
        let Course::HandingOver {
            hold: Hold::Asked { stream, at },
            leave_by,
        } = self.course
        else {
            return;
        };
        if granted.seq != stream {
            return;
        }
        self.renew_all(granted.results, at);
        let hold = Hold::Granted;
        self.course = Course::HandingOver { hold, leave_by };
    }

    /// Leases that are granted and not with their shims yet.
    pub(super) fn untold(&self) -> Vec<Telling> {
        match self.course {
            Course::HandingOver {
                hold: Hold::Granted,
                ..
            } => self.held.values().filter_map(Held::telling).collect(),
            Course::HandingOver { .. }
            | Course::Working
            | Course::Resting
            | Course::Draining { .. }
            | Course::Killing { .. }
            | Course::Leaving { .. } => Vec::new(),
        }
    }

    /// The stream on which it was asked is gone, and with it the answer.
    pub(super) fn hold_lost(&mut self) {
        if let Course::HandingOver {
            hold: Hold::Asked { .. },
            leave_by,
        } = self.course
        {
            let hold = Hold::Unasked;
            self.course = Course::HandingOver { hold, leave_by };
        }
    }

    /// What is still to be told keeps it until its time is over; what runs on without it does not.
    pub(super) fn is_done(&self) -> bool {
        match self.course {
            Course::Leaving { until, .. } => {
                self.held.values().all(Held::holds_slot) || until <= self.clock.now()
            }
            Course::Working
            | Course::Resting
            | Course::Draining { .. }
            | Course::HandingOver { .. }
            | Course::Killing { .. } => false,
        }
    }

    pub(super) fn say_goodbye(&mut self) {
        let (code, message) = match self.course {
            Course::Leaving { restarts: true, .. } => {
                (GoodbyeCode::Restarting, "the daemon restarts")
            }
            Course::Leaving { .. }
            | Course::Working
            | Course::Resting
            | Course::Draining { .. }
            | Course::HandingOver { .. }
            | Course::Killing { .. } => (GoodbyeCode::Draining, "the daemon stops"),
        };
        if let Some(live) = self.live.take() {
            let goodbye = Goodbye {
                code: code.into(),
                message: message.to_owned(),
                retry_after_ms: None,
            };
            // After everything else that is queued; without room the relay notices the closed stream.
            let _ = live
                .session
                .frames
                .try_send(frame(daemon_frame::Frame::Goodbye(goodbye)));
        }
    }
}

/// Completes when all of them are told; never when there are none. Cancel safe.
pub(super) async fn told(untold: Vec<Telling>) {
    if untold.is_empty() {
        std::future::pending::<()>().await;
    }
    for telling in untold {
        telling.done().await;
    }
}
