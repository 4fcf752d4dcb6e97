//! How an attempt ended, from its shim's report, or from what was found where there is none. A report is the one
//! truth: without it there is no result, only the word that nothing is left.

use std::io;
use std::time::{Duration, SystemTime};

use baton_proto::v1::{ArtifactReceipt, WorkspaceReport};
use baton_proto::worker::{EndedBy, NotStarted, Report, report};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{Attempt, AttemptEvent, Missing, Parting, Spoken, Stop};
use crate::agents::{Verdict, judge};
use crate::clock::Moment;
use crate::phases::OncePhase;
use crate::process::{Cleared, Exit};
use crate::receipts;
use crate::shim::{self, REPORT, disk_failed};
use crate::timers::DeadlineKind;

/// For looking at files when the relay knows already that the attempt is being ended.
const LOOK_ORDERED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) cause: Cause,
    /// How the child itself ended; absent when it never started or nobody saw it.
    pub(crate) exit: Option<Exit>,
    pub(crate) cleared: Cleared,
    pub(crate) process_started: bool,
    /// False only where it is sure that nobody ever had the prompt.
    pub(crate) prompted: bool,
    pub(crate) stderr_tail: String,
    /// What a coding agent said; absent for a command.
    pub(crate) spoken: Option<Spoken>,
    /// When the child ended; absent where nobody saw it, so that only the present moment is known.
    pub(crate) ended: Option<EndedAt>,
    /// What is left of its workspace.
    pub(crate) workspace: Option<WorkspaceReport>,
    /// What was found of the files that it has to leave; looked for only where there is a result.
    pub(crate) artifacts: Vec<ArtifactReceipt>,
}

/// When the child ended, as its shim saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedAt {
    pub(crate) wall: SystemTime,
    /// Before the limit of the lease as it stood then.
    pub(crate) within_lease: bool,
}

/// What ended the attempt: the first of these that happened.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// There was never a child. The code is a failure code of the protocol.
    NotStarted {
        code: String,
        message: String,
    },
    Exited(Exit),
    Deadline(DeadlineKind),
    /// The worker's disk does not take what the child says.
    Disk {
        message: String,
    },
    Stopped,
    /// A coding agent's turn was over, and its process was not.
    Lingered,
    /// The shim ended it at the end of its lease.
    LeaseEnded,
    /// The daemon that was to launch it died first: nothing ran, and somebody else may do the work.
    NeverLaunched,
    /// The shim was killed, or was stuck and was killed: how the child ended is not known.
    Lost,
    /// The daemon's own fault: the task that ran the attempt died.
    Broken,
}

impl Ending {
    /// Nobody knows how far it came, so it counts as started.
    pub(crate) fn broken(cleared: Cleared) -> Self {
        Self {
            cause: Cause::Broken,
            exit: None,
            cleared,
            process_started: true,
            prompted: true,
            stderr_tail: String::new(),
            spoken: None,
            ended: None,
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    pub(super) fn not_started(what: &str, error: &io::Error) -> Self {
        error!(what, error = %error, "cannot start an attempt");
        let NotStarted { code, message } = disk_failed(what, error);
        Self::without_process(Cause::NotStarted { code, message })
    }

    /// There is no place for it to work in.
    pub(super) fn no_place(code: &str, message: String) -> Self {
        let code = code.to_owned();
        Self::without_process(Cause::NotStarted { code, message })
    }

    /// It was not to start any more before it had.
    pub(super) fn called_off(cause: Cause) -> Self {
        Self::without_process(cause)
    }

    fn without_process(cause: Cause) -> Self {
        Self {
            cause,
            exit: None,
            cleared: Cleared {
                empty: true,
                ..Cleared::default()
            },
            process_started: false,
            prompted: false,
            stderr_tail: String::new(),
            spoken: None,
            ended: None,
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    fn reported(report: &Report, decided: Option<Cause>) -> Self {
        let exit = exit(report);
        let cause = match (&report.how, report.ended_by()) {
            (Some(report::How::NotStarted(_)), EndedBy::Order) => Cause::NeverLaunched,
            (Some(report::How::NotStarted(NotStarted { code, message })), _) => Cause::NotStarted {
                code: code.clone(),
                message: message.clone(),
            },
            (_, EndedBy::Child) => Cause::Exited(exit.unwrap_or(Exit::Unseen)),
            (_, EndedBy::Lease) => Cause::LeaseEnded,
            (_, EndedBy::Order | EndedBy::Unspecified) => decided.unwrap_or(Cause::Stopped),
        };
        let process_started = !matches!(cause, Cause::NotStarted { .. } | Cause::NeverLaunched);
        Self {
            cause,
            exit,
            cleared: Cleared {
                empty: report.empty,
                terminated: report.terminated,
                killed: report.killed,
                swept: report.swept,
            },
            process_started,
            prompted: process_started,
            stderr_tail: String::new(),
            spoken: None,
            ended: ended_at(report).filter(|_| process_started),
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    /// The shim said nothing. What was decided before stands: it is dead now, whoever killed it.
    fn unreported(cleared: Cleared, decided: Option<Cause>) -> Self {
        Self {
            cause: decided.unwrap_or(Cause::Lost),
            ..Self::broken(cleared)
        }
    }

    /// There was no shim that could have launched anything. `decided` as above.
    fn unlaunched(cleared: Cleared, decided: Option<Cause>) -> Self {
        Self {
            cause: decided.unwrap_or(Cause::NeverLaunched),
            process_started: false,
            prompted: false,
            ..Self::broken(Cleared {
                empty: true,
                ..cleared
            })
        }
    }
}

fn exit(report: &Report) -> Option<Exit> {
    match &report.how {
        Some(report::How::ExitCode(code)) => Some(Exit::Code(*code)),
        Some(report::How::Signal(signal)) => Some(Exit::Signal(*signal)),
        Some(report::How::Unseen(_)) => Some(Exit::Unseen),
        Some(report::How::NotStarted(_)) | None => None,
    }
}

/// A child that the shim never saw dead has no such moment.
fn ended_at(report: &Report) -> Option<EndedAt> {
    let limit = report.lease.as_ref().map_or(0, |lease| lease.limit_ms);
    (report.exited_at_ms > 0).then(|| EndedAt {
        wall: SystemTime::UNIX_EPOCH + Duration::from_millis(report.exited_wall_ms),
        within_lease: Moment::from_millis(report.exited_at_ms) < Moment::from_millis(limit),
    })
}

/// Resolves when nobody wants a result any more.
async fn called_off(orders: &mut watch::Receiver<Option<Stop>>) -> Stop {
    loop {
        let ordered = *orders.borrow_and_update();
        if let Some(stop) = ordered.filter(|stop| stop.calls_off) {
            return stop;
        }
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// What a shim has left.
enum Findings {
    Report(Box<Report>),
    /// It died, and said nothing.
    Nothing(Cleared),
    /// Not even a place for a report: the daemon died before there was a shim.
    NoShim(Cleared),
}

impl Attempt {
    /// From the end of the shim to the last word about the attempt.
    pub(super) async fn conclude(&mut self, parting: Parting) -> Ending {
        let findings = self.findings(parting).await;
        self.tell(AttemptEvent::Over).await;
        let decided = self.cause.take();
        let (mut ending, report) = match findings {
            Findings::Report(report) => (Ending::reported(&report, decided.clone()), Some(report)),
            Findings::Nothing(cleared) => (Ending::unreported(cleared, decided.clone()), None),
            Findings::NoShim(cleared) => (Ending::unlaunched(cleared, decided.clone()), None),
        };
        if let Some(report) = &report {
            self.on_stdin_done(report.stdin_done);
        }
        // A quick child is over before its first words are read: their phases come before the cleanup's.
        let missing = if ending.process_started {
            self.drain(report.as_deref()).await
        } else {
            Missing::default()
        };
        if let (Cause::Exited(_), Some(decided)) = (&ending.cause, decided)
            && self.ended_as_asked()
        {
            ending.cause = decided;
        }
        let now = self.workshop.clock.now();
        self.fold.exited(ending.exit, now);
        self.fold.close(missing);
        self.deliver_all().await;
        // Without a report something may have been said and read that nobody recorded.
        ending.prompted &= report.is_none() || self.fold.may_have_prompt();
        ending.stderr_tail = self.fold.stderr_tail();
        ending.spoken = self.fold.spoken();
        // Before the cleanup's phases: from those on the relay waits for the last word only a little.
        self.look_for_files(&mut ending).await;
        if ending.process_started {
            self.enter(OncePhase::CleanupStarted, None);
            self.enter(OncePhase::CleanupFinished, None);
            self.deliver_all().await;
        }
        ending
    }

    /// What a result needs beside itself. Nobody is left who could still write it. A process that failed may have told its
    /// result through its tools before. Whoever is canceled meanwhile has no result: it would lack what was not looked at.
    async fn look_for_files(&mut self, ending: &mut Ending) {
        let wanted = self.files.as_ref();
        let Some(files) = wanted.filter(|_| judge(ending) != Verdict::Stopped) else {
            return;
        };
        let limit = match self.kill_at {
            None => receipts::LOOK,
            Some(_) => LOOK_ORDERED,
        };
        info!(attempt_id = %self.id, "looking at the files that it has to leave");
        let mut orders = self.lines.stop.clone();
        let stop = tokio::select! {
            biased;
            stop = called_off(&mut orders) => stop,
            found = files.look(limit) => {
                ending.artifacts = found;
                return;
            }
        };
        self.kill_by(stop.kill_at);
        ending.cause = Cause::Stopped;
    }

    async fn findings(&mut self, parting: Parting) -> Findings {
        let (report, cleared) = match parting {
            Parting::Reported(report) => return Findings::Report(report),
            Parting::Closed => match self.read_report().await {
                Some(report) => return Findings::Report(Box::new(report)),
                None => {
                    warn!(attempt_id = %self.id, "the shim died without a report; ending what it left");
                    (None, self.sweep().await)
                }
            },
            Parting::Stuck => {
                let cleared = self.sweep().await;
                // It may have been quicker after all.
                (self.read_report().await, cleared)
            }
            // The relay sees by the boot id that nothing of it is left, and sees better when that proves nothing: a
            // copied directory has another boot id too, and what it speaks of runs elsewhere.
            Parting::Rebooted => match self.read_report().await {
                Some(report) => return Findings::Report(Box::new(report)),
                // A file that is not there may have been lost with the power.
                None => return Findings::Nothing(Cleared::default()),
            },
        };
        match report {
            Some(report) => Findings::Report(Box::new(report)),
            None if self.had_shim().await => Findings::Nothing(cleared),
            None => Findings::NoShim(cleared),
        }
    }

    /// Whether a shim of an earlier daemon came so far that it could have launched the child: it takes the place of its
    /// report before anything else. One that this daemon launched died for a reason that may come again, so it counts.
    async fn had_shim(&self) -> bool {
        let path = self.directory.join(REPORT);
        let exists = tokio::task::spawn_blocking(move || std::fs::exists(path)).await;
        let exists = exists.expect("looking at a file does not panic");
        self.own_shim.is_some() || exists.unwrap_or(true)
    }

    pub(super) async fn read_report(&self) -> Option<Report> {
        let path = self.directory.join(REPORT);
        let read = tokio::task::spawn_blocking(move || shim::read_report(&path)).await;
        let report = read
            .expect("reading a file does not panic")
            .unwrap_or_else(|error| {
                error!(attempt_id = %self.id, error = %error, "cannot read the shim's report");
                None
            });
        // A shim that was never launched does not know whose it is.
        report.filter(|report| report.attempt_id.is_empty() || report.attempt_id == self.id)
    }

    /// Reads the transcript to its end, at the relay's pace; returns how much of it is gone. Deadlines are for what
    /// runs, and nothing does.
    async fn drain(&mut self, report: Option<&Report>) -> Missing {
        match report {
            Some(report) => self.transcript.grown(report.transcript_end),
            None => self.transcript.read_all(),
        }
        while self.transcript.has_more() {
            self.advance(self.fold.due_at()).await;
        }
        // Without a report nobody knows what was in the pipes when the shim died.
        let missing = report.map_or(Missing::Unknown, |report| {
            let lost = self.transcript.unread() + report.lost_bytes;
            if report.disk_refused {
                Missing::Refused(lost)
            } else {
                Missing::Bytes(lost)
            }
        });
        if missing != Missing::default() {
            warn!(attempt_id = %self.id, ?missing, "output is missing");
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::codes;
    use baton_proto::worker::Lease;

    use super::*;

    fn ended(exited_at_ms: u64, by: EndedBy) -> Report {
        Report {
            how: Some(report::How::ExitCode(0)),
            ended_by: by.into(),
            exited_at_ms,
            over_at_ms: exited_at_ms + 5_000,
            lease: Some(Lease {
                limit_ms: 1_000,
                ..Lease::default()
            }),
            empty: true,
            ..Report::default()
        }
    }

    #[test]
    fn a_result_counts_by_when_the_child_ended_and_not_by_when_it_was_read() {
        let within = |at| {
            Ending::reported(&ended(at, EndedBy::Child), None)
                .ended
                .unwrap()
        };
        assert!(within(999).within_lease);
        assert!(!within(1_000).within_lease);
    }

    #[test]
    fn a_child_that_nobody_saw_dead_has_not_ended_at_the_beginning_of_time() {
        let report = Report {
            how: Some(report::How::Unseen(true)),
            empty: false,
            ..ended(0, EndedBy::Lease)
        };
        assert_eq!(Ending::reported(&report, None).ended, None);
    }

    #[test]
    fn an_exit_wins_over_an_order_and_the_lease_over_both() {
        let decided = || Some(Cause::Deadline(DeadlineKind::Total));
        let cause = |by| Ending::reported(&ended(1, by), decided()).cause;
        assert!(matches!(
            cause(EndedBy::Child),
            Cause::Exited(Exit::Code(0))
        ));
        assert!(matches!(
            cause(EndedBy::Order),
            Cause::Deadline(DeadlineKind::Total)
        ));
        assert!(matches!(cause(EndedBy::Lease), Cause::LeaseEnded));
        let unknown = Ending::reported(&ended(1, EndedBy::Order), None);
        assert!(matches!(unknown.cause, Cause::Stopped));
    }

    #[test]
    fn without_a_report_there_is_no_result_and_what_never_started_had_no_effect() {
        let ending = Ending::unreported(Cleared::default(), None);
        assert!(matches!(ending.cause, Cause::Lost) && ending.process_started);
        let refused = NotStarted {
            code: codes::BAD_CWD.into(),
            message: "no".into(),
        };
        let report = Report {
            how: Some(report::How::NotStarted(refused)),
            ..ended(1, EndedBy::Unspecified)
        };
        let ending = Ending::reported(&report, None);
        assert!(!ending.process_started && ending.ended.is_none());
        assert!(matches!(ending.cause, Cause::NotStarted { code, .. } if code == "bad_cwd"));
    }
}
