//! How an attempt ended: by its shim's report, or by what was found without one. Only a report
//! can contain a result; without it the attempt can only be reported as gone.

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

/// The time limit of the file check when the relay already knows that the attempt is being
/// ended.
const FILE_CHECK_LIMIT_STOPPED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct AttemptEnding {
    pub(crate) cause: EndCause,
    /// How the child itself ended; `None` when it never started or its end was not observed.
    pub(crate) exit: Option<ChildExit>,
    pub(crate) termination: TerminationOutcome,
    pub(crate) process_started: bool,
    /// False only when it is certain that the prompt was never delivered.
    pub(crate) prompted: bool,
    pub(crate) stderr_tail: String,
    /// What a coding agent reported; `None` for a command.
    pub(crate) agent_summary: Option<AgentSummary>,
    /// When the child ended; `None` when its end was not observed, so that only the present
    /// time is known.
    pub(crate) child_ended: Option<ChildEndTime>,
    /// What is left of its workspace.
    pub(crate) workspace: Option<WorkspaceReport>,
    /// What was found of the required files; checked only when there is a result.
    pub(crate) artifacts: Vec<ArtifactReceipt>,
}

/// When the child ended, as its shim observed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildEndTime {
    pub(crate) wall: SystemTime,
    /// Before the limit of the lease at that time.
    pub(crate) within_lease: bool,
}

/// Why the attempt ended: the first of these that happened.
#[derive(Clone, Debug)]
pub(crate) enum EndCause {
    /// No child was started. The code is a failure code of the protocol.
    NotStarted {
        code: String,
        message: String,
    },
    Exited(ChildExit),
    Deadline(DeadlineKind),
    /// The worker's disk does not store the child's output.
    WorkerDisk {
        message: String,
    },
    Stopped,
    /// A coding agent's turn had ended and its process did not exit.
    Lingered,
    /// The shim ended it at the end of its lease.
    LeaseEnded,
    /// The daemon died before it launched the child: nothing ran, and the relay may place the
    /// attempt elsewhere.
    NeverLaunched,
    /// The shim was killed, or was stuck and was killed: how the child ended is unknown.
    Lost,
    /// The daemon's own fault: the task that ran the attempt panicked.
    DaemonFault,
}

impl AttemptEnding {
    /// It is unknown how far the attempt came, so it counts as started.
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

    /// The workspace could not be prepared.
    pub(super) fn no_workspace(code: &str, message: String) -> Self {
        let code = code.to_owned();
        Self::without_process(EndCause::NotStarted { code, message })
    }

    /// The attempt was stopped before it was started.
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

    /// The shim left no report. A cause that was decided before stays valid: the child is dead
    /// now, whatever killed it.
    fn without_report(termination: TerminationOutcome, decided: Option<EndCause>) -> Self {
        Self {
            cause: decided.unwrap_or(EndCause::Lost),
            ..Self::daemon_fault(termination)
        }
    }

    /// There was no shim that could have launched anything. `decided` as above.
    fn without_shim(termination: TerminationOutcome, decided: Option<EndCause>) -> Self {
        Self {
            cause: decided.unwrap_or(EndCause::NeverLaunched),
            process_started: false,
            prompted: false,
            ..Self::daemon_fault(TerminationOutcome {
                proved_empty: true,
                ..termination
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

/// `None` for a child whose end the shim did not observe.
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
    /// It died without a report.
    NoReport(TerminationOutcome),
    /// There is not even a reserved report file: the daemon died before the shim was started.
    NoShim(TerminationOutcome),
}

impl AttemptTask {
    /// From the end of the shim to the last event of the attempt.
    pub(super) async fn finish_attempt(&mut self, parting: ShimParting) -> AttemptEnding {
        let findings = self.collect_findings(parting).await;
        self.send_event(AttemptEvent::ProcessesGone).await;
        let decided = self.cause.take();
        let (mut ending, report) = match findings {
            ShimFindings::Report(report) => (
                AttemptEnding::from_report(&report, decided.clone()),
                Some(report),
            ),
            ShimFindings::NoReport(termination) => (
                AttemptEnding::without_report(termination, decided.clone()),
                None,
            ),
            ShimFindings::NoShim(termination) => (
                AttemptEnding::without_shim(termination, decided.clone()),
                None,
            ),
        };
        if let Some(report) = &report {
            self.on_stdin_done(report.stdin_done);
        }
        // A quick child has exited before its first output is read; those phases come before
        // the cleanup's.
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
        // Without a report the child may have read its prompt without a record of it.
        ending.prompted &= report.is_none() || self.transcript_reader.may_have_prompt();
        ending.stderr_tail = self.transcript_reader.stderr_tail();
        ending.agent_summary = self.transcript_reader.agent_summary();
        // Before the cleanup phases: after those the relay waits only a short time for the
        // terminal frame.
        self.check_required_files(&mut ending).await;
        if ending.process_started {
            self.enter_phase(OneTimePhase::CleanupStarted, None);
            self.enter_phase(OneTimePhase::CleanupFinished, None);
            self.deliver_events().await;
        }
        ending
    }

    /// Checks the files that a result requires. No process is left that could still write them.
    /// Also for a process that failed, which may have reported its result through its tools
    /// before. An attempt that is canceled meanwhile has no result, because it would lack the
    /// files that were not checked.
    async fn check_required_files(&mut self, ending: &mut AttemptEnding) {
        let required = self.required_files.as_ref();
        let Some(files) = required.filter(|_| judge_ending(ending) != AttemptVerdict::Stopped)
        else {
            return;
        };
        let limit = match self.kill_at {
            None => receipts::INSPECTION_TIMEOUT,
            Some(_) => FILE_CHECK_LIMIT_STOPPED,
        };
        info!(attempt_id = %self.id, "checking the required files");
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
        let (report, termination) = match parting {
            ShimParting::Reported(report) => return ShimFindings::Report(report),
            ShimParting::Closed => match self.read_report().await {
                Some(report) => return ShimFindings::Report(Box::new(report)),
                None => {
                    warn!(attempt_id = %self.id, "the shim died without a report; killing what it left");
                    (None, self.kill_everything().await)
                }
            },
            ShimParting::Stuck => {
                let termination = self.kill_everything().await;
                // The shim may have written its report before it was killed.
                (self.read_report().await, termination)
            }
            // By the boot id the relay concludes that no process is left. It also detects when
            // that proves nothing: a copied directory has another boot id too, and its
            // processes run on another machine.
            ShimParting::Rebooted => match self.read_report().await {
                Some(report) => return ShimFindings::Report(Box::new(report)),
                // A missing report may have been lost in a power failure.
                None => return ShimFindings::NoReport(TerminationOutcome::default()),
            },
        };
        match report {
            Some(report) => ShimFindings::Report(Box::new(report)),
            None if self.had_shim().await => ShimFindings::NoReport(termination),
            None => ShimFindings::NoShim(termination),
        }
    }

    /// Whether a shim of an earlier daemon could have launched the child: it reserves its
    /// report file before anything else. A shim that this daemon started always counts, because
    /// the reason of its death may come again.
    async fn had_shim(&self) -> bool {
        let path = self.directory.join(REPORT_FILE);
        let exists = tokio::task::spawn_blocking(move || std::fs::exists(path)).await;
        let exists = exists.expect("checking for a file does not panic");
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
        // A shim that was never launched has no attempt id.
        report.filter(|report| report.attempt_id.is_empty() || report.attempt_id == self.id)
    }

    /// Reads the transcript to its end, at the relay's pace; returns how much of it is missing.
    /// Deadlines are not watched, because no process runs.
    async fn drain_transcript(&mut self, report: Option<&Report>) -> MissingOutput {
        match report {
            Some(report) => self.transcript.extend_end(report.transcript_end),
            None => self.transcript.read_to_last_record(),
        }
        while self.transcript.has_more() {
            self.advance_transcript(self.transcript_reader.output_due_at())
                .await;
        }
        // Without a report it is unknown what was in the pipes when the shim died.
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
    fn a_result_counts_by_when_the_child_ended() {
        let within = |at| {
            AttemptEnding::from_report(&ended(at, EndedBy::Child), None)
                .child_ended
                .unwrap()
        };
        assert!(within(999).within_lease);
        assert!(!within(1_000).within_lease);
    }

    #[test]
    fn a_child_whose_end_was_not_observed_has_no_end_time() {
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
    fn without_a_report_there_is_no_result() {
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
