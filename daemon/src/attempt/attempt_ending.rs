//! How an attempt ended, from its shim's report, or from what was found where there is none. A report is the one
//! truth: without it there is no result, only the word that nothing is left.

use std::io;
use std::time::{Duration, SystemTime};

use baton_proto::v1::{ArtifactReceipt, WorkspaceReport};
use baton_proto::worker::{EndedBy, NotStarted, Report, report};
use tracing::{error, info, warn};

use super::{AgentSummary, AttemptEvent, AttemptTask, MissingOutput, ShimParting};
use crate::agents::{AttemptVerdict, judge_ending};
use crate::clock::BootTime;
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::process::{ChildExit, TerminationOutcome};
use crate::receipts;
use crate::shim::{self, REPORT_FILE, disk_failure};

/// For looking at files when the relay knows already that the attempt is being ended.
const FILE_CHECK_LIMIT_STOPPED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct AttemptEnding {
    pub(crate) cause: EndCause,
    /// How the child itself ended; absent when it never started or nobody saw it.
    pub(crate) exit: Option<ChildExit>,
    pub(crate) termination: TerminationOutcome,
    pub(crate) process_started: bool,
    /// False only where it is sure that nobody ever had the prompt.
    pub(crate) prompted: bool,
    pub(crate) stderr_tail: String,
    /// What a coding agent said; absent for a command.
    pub(crate) agent_summary: Option<AgentSummary>,
    /// When the child ended; absent where nobody saw it, so that only the present moment is known.
    pub(crate) child_ended: Option<ChildEndTime>,
    /// What is left of its workspace.
    pub(crate) workspace: Option<WorkspaceReport>,
    /// What was found of the files that it has to leave; looked for only where there is a result.
    pub(crate) artifacts: Vec<ArtifactReceipt>,
}

/// When the child ended, as its shim saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildEndTime {
    pub(crate) wall: SystemTime,
    /// Before the limit of the lease as it stood then.
    pub(crate) within_lease: bool,
}

/// What ended the attempt: the first of these that happened.
#[derive(Clone, Debug)]
pub(crate) enum EndCause {
    /// There was never a child. The code is a failure code of the protocol.
    NotStarted {
        code: String,
        message: String,
    },
    Exited(ChildExit),
    Deadline(DeadlineKind),
    /// The worker's disk does not take what the child says.
    WorkerDisk {
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
    DaemonFault,
}

impl AttemptEnding {
    /// Nobody knows how far it came, so it counts as started.
    pub(crate) fn daemon_fault(termination: TerminationOutcome) -> Self {
        Self {
            cause: EndCause::DaemonFault,
            exit: None,
            termination,
            process_started: true,
            prompted: true,
            stderr_tail: String::new(),
            agent_summary: None,
            child_ended: None,
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    pub(super) fn not_started(what: &str, error: &io::Error) -> Self {
        error!(what, error = %error, "cannot start an attempt");
        let NotStarted { code, message } = disk_failure(what, error);
        Self::without_process(EndCause::NotStarted { code, message })
    }

    /// There is no place for it to work in.
    pub(super) fn no_workspace(code: &str, message: String) -> Self {
        let code = code.to_owned();
        Self::without_process(EndCause::NotStarted { code, message })
    }

    /// It was not to start any more before it had.
    pub(super) fn called_off_early(cause: EndCause) -> Self {
        Self::without_process(cause)
    }

    fn without_process(cause: EndCause) -> Self {
        Self {
            cause,
            exit: None,
            termination: TerminationOutcome {
                proved_empty: true,
                ..TerminationOutcome::default()
            },
            process_started: false,
            prompted: false,
            stderr_tail: String::new(),
            agent_summary: None,
            child_ended: None,
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    fn from_report(report: &Report, decided: Option<EndCause>) -> Self {
        let exit = report_exit(report);
        let cause = match (&report.how, report.ended_by()) {
            (Some(report::How::NotStarted(_)), EndedBy::Order) => EndCause::NeverLaunched,
            (Some(report::How::NotStarted(NotStarted { code, message })), _) => {
                EndCause::NotStarted {
                    code: code.clone(),
                    message: message.clone(),
                }
            }
            (_, EndedBy::Child) => EndCause::Exited(exit.unwrap_or(ChildExit::Unknown)),
            (_, EndedBy::Lease) => EndCause::LeaseEnded,
            (_, EndedBy::Order | EndedBy::Unspecified) => decided.unwrap_or(EndCause::Stopped),
        };
        let process_started =
            !matches!(cause, EndCause::NotStarted { .. } | EndCause::NeverLaunched);
        Self {
            cause,
            exit,
            termination: TerminationOutcome {
                proved_empty: report.empty,
                terminated: report.terminated,
                killed: report.killed,
                signaled_singly: report.swept,
            },
            process_started,
            prompted: process_started,
            stderr_tail: String::new(),
            agent_summary: None,
            child_ended: report_end_time(report).filter(|_| process_started),
            workspace: None,
            artifacts: Vec::new(),
        }
    }

    /// The shim said nothing. What was decided before stands: it is dead now, whoever killed it.
    fn without_report(cleared: TerminationOutcome, decided: Option<EndCause>) -> Self {
        Self {
            cause: decided.unwrap_or(EndCause::Lost),
            ..Self::daemon_fault(cleared)
        }
    }

    /// There was no shim that could have launched anything. `decided` as above.
    fn without_shim(cleared: TerminationOutcome, decided: Option<EndCause>) -> Self {
        Self {
            cause: decided.unwrap_or(EndCause::NeverLaunched),
            process_started: false,
            prompted: false,
            ..Self::daemon_fault(TerminationOutcome {
                proved_empty: true,
                ..cleared
            })
        }
    }
}

fn report_exit(report: &Report) -> Option<ChildExit> {
    match &report.how {
        Some(report::How::ExitCode(code)) => Some(ChildExit::Code(*code)),
        Some(report::How::Signal(signal)) => Some(ChildExit::Signal(*signal)),
        Some(report::How::Unseen(_)) => Some(ChildExit::Unknown),
        Some(report::How::NotStarted(_)) | None => None,
    }
}

/// A child that the shim never saw dead has no such moment.
fn report_end_time(report: &Report) -> Option<ChildEndTime> {
    let limit = report.lease.as_ref().map_or(0, |lease| lease.limit_ms);
    (report.exited_at_ms > 0).then(|| ChildEndTime {
        wall: SystemTime::UNIX_EPOCH + Duration::from_millis(report.exited_wall_ms),
        within_lease: BootTime::from_millis(report.exited_at_ms) < BootTime::from_millis(limit),
    })
}

/// What a shim has left.
enum ShimFindings {
    Report(Box<Report>),
    /// It died, and said nothing.
    NoReport(TerminationOutcome),
    /// Not even a place for a report: the daemon died before there was a shim.
    NoShim(TerminationOutcome),
}

impl AttemptTask {
    /// From the end of the shim to the last word about the attempt.
    pub(super) async fn finish_attempt(&mut self, parting: ShimParting) -> AttemptEnding {
        let findings = self.collect_findings(parting).await;
        self.send_event(AttemptEvent::ProcessesGone).await;
        let decided = self.cause.take();
        let (mut ending, report) = match findings {
            ShimFindings::Report(report) => (
                AttemptEnding::from_report(&report, decided.clone()),
                Some(report),
            ),
            ShimFindings::NoReport(cleared) => (
                AttemptEnding::without_report(cleared, decided.clone()),
                None,
            ),
            ShimFindings::NoShim(cleared) => {
                (AttemptEnding::without_shim(cleared, decided.clone()), None)
            }
        };
        if let Some(report) = &report {
            self.on_stdin_done(report.stdin_done);
        }
        // A quick child is over before its first words are read: their phases come before the cleanup's.
        let missing = if ending.process_started {
            self.drain_transcript(report.as_deref()).await
        } else {
            MissingOutput::default()
        };
        if let (EndCause::Exited(_), Some(decided)) = (&ending.cause, decided)
            && self.ended_by_interrupt()
        {
            ending.cause = decided;
        }
        let now = self.environment.clock.now();
        self.transcript_reader.on_exit(ending.exit, now);
        self.transcript_reader.close(missing);
        self.deliver_events().await;
        // Without a report something may have been said and read that nobody recorded.
        ending.prompted &= report.is_none() || self.transcript_reader.may_have_prompt();
        ending.stderr_tail = self.transcript_reader.stderr_tail();
        ending.agent_summary = self.transcript_reader.agent_summary();
        // Before the cleanup's phases: from those on the relay waits for the last word only a little.
        self.check_required_files(&mut ending).await;
        if ending.process_started {
            self.enter_phase(OneTimePhase::CleanupStarted, None);
            self.enter_phase(OneTimePhase::CleanupFinished, None);
            self.deliver_events().await;
        }
        ending
    }

    /// What a result needs beside itself. Nobody is left who could still write it. A process that failed may have told its
    /// result through its tools before. Whoever is canceled meanwhile has no result: it would lack what was not looked at.
    async fn check_required_files(&mut self, ending: &mut AttemptEnding) {
        let wanted = self.required_files.as_ref();
        let Some(files) = wanted.filter(|_| judge_ending(ending) != AttemptVerdict::Stopped) else {
            return;
        };
        let limit = match self.kill_at {
            None => receipts::INSPECTION_TIMEOUT,
            Some(_) => FILE_CHECK_LIMIT_STOPPED,
        };
        info!(attempt_id = %self.id, "looking at the files that it has to leave");
        let stop = tokio::select! {
            biased;
            stop = self.control.result_unwanted() => stop,
            found = files.inspect(limit) => {
                ending.artifacts = found;
                return;
            }
        };
        self.kill_by(stop.kill_at);
        ending.cause = EndCause::Stopped;
    }

    async fn collect_findings(&mut self, parting: ShimParting) -> ShimFindings {
        let (report, cleared) = match parting {
            ShimParting::Reported(report) => return ShimFindings::Report(report),
            ShimParting::Closed => match self.read_report().await {
                Some(report) => return ShimFindings::Report(Box::new(report)),
                None => {
                    warn!(attempt_id = %self.id, "the shim died without a report; ending what it left");
                    (None, self.kill_everything().await)
                }
            },
            ShimParting::Stuck => {
                let cleared = self.kill_everything().await;
                // It may have been quicker after all.
                (self.read_report().await, cleared)
            }
            // The relay sees by the boot id that nothing of it is left, and sees better when that proves nothing: a
            // copied directory has another boot id too, and what it speaks of runs elsewhere.
            ShimParting::Rebooted => match self.read_report().await {
                Some(report) => return ShimFindings::Report(Box::new(report)),
                // A file that is not there may have been lost with the power.
                None => return ShimFindings::NoReport(TerminationOutcome::default()),
            },
        };
        match report {
            Some(report) => ShimFindings::Report(Box::new(report)),
            None if self.had_shim().await => ShimFindings::NoReport(cleared),
            None => ShimFindings::NoShim(cleared),
        }
    }

    /// Whether a shim of an earlier daemon came so far that it could have launched the child: it takes the place of its
    /// report before anything else. One that this daemon launched died for a reason that may come again, so it counts.
    async fn had_shim(&self) -> bool {
        let path = self.directory.join(REPORT_FILE);
        let exists = tokio::task::spawn_blocking(move || std::fs::exists(path)).await;
        let exists = exists.expect("looking at a file does not panic");
        self.own_shim.is_some() || exists.unwrap_or(true)
    }

    pub(super) async fn read_report(&self) -> Option<Report> {
        let path = self.directory.join(REPORT_FILE);
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
    async fn drain_transcript(&mut self, report: Option<&Report>) -> MissingOutput {
        match report {
            Some(report) => self.transcript.extend_end(report.transcript_end),
            None => self.transcript.read_to_last_record(),
        }
        while self.transcript.has_more() {
            self.advance_transcript(self.transcript_reader.output_due_at())
                .await;
        }
        // Without a report nobody knows what was in the pipes when the shim died.
        let missing = report.map_or(MissingOutput::Unknown, |report| {
            let lost = self.transcript.unread_bytes() + report.lost_bytes;
            if report.disk_refused {
                MissingOutput::Refused(lost)
            } else {
                MissingOutput::Bytes(lost)
            }
        });
        if missing != MissingOutput::default() {
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
            AttemptEnding::from_report(&ended(at, EndedBy::Child), None)
                .child_ended
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
        assert_eq!(AttemptEnding::from_report(&report, None).child_ended, None);
    }

    #[test]
    fn an_exit_wins_over_an_order_and_the_lease_over_both() {
        let decided = || Some(EndCause::Deadline(DeadlineKind::Total));
        let cause = |by| AttemptEnding::from_report(&ended(1, by), decided()).cause;
        assert!(matches!(
            cause(EndedBy::Child),
            EndCause::Exited(ChildExit::Code(0))
        ));
        assert!(matches!(
            cause(EndedBy::Order),
            EndCause::Deadline(DeadlineKind::Total)
        ));
        assert!(matches!(cause(EndedBy::Lease), EndCause::LeaseEnded));
        let unknown = AttemptEnding::from_report(&ended(1, EndedBy::Order), None);
        assert!(matches!(unknown.cause, EndCause::Stopped));
    }

    #[test]
    fn without_a_report_there_is_no_result_and_what_never_started_had_no_effect() {
        let ending = AttemptEnding::without_report(TerminationOutcome::default(), None);
        assert!(matches!(ending.cause, EndCause::Lost) && ending.process_started);
        let refused = NotStarted {
            code: codes::BAD_CWD.into(),
            message: "no".into(),
        };
        let report = Report {
            how: Some(report::How::NotStarted(refused)),
            ..ended(1, EndedBy::Unspecified)
        };
        let ending = AttemptEnding::from_report(&report, None);
        assert!(!ending.process_started && ending.child_ended.is_none());
        assert!(matches!(ending.cause, EndCause::NotStarted { code, .. } if code == "bad_cwd"));
    }
}
