//! The agents of this daemon by name, and what a dispatch for one of them comes to. `command` is any program. The
//! adapters of coding agents each have their own file behind `translator`: pure folds over what an agent prints and
//! is told, which come to the same `event`s whatever the wire.

pub(crate) mod adapter;
pub(crate) mod launch;
pub(crate) mod outcome;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::{AgentInfo, AgentKind, AttemptRef, DeadlineProfile, Dispatch, RejectCode};
use bytes::Bytes;
use tokio::sync::watch;

use crate::attempt::{AgentSession, AttemptPlan, ChildStdin};
use crate::config::AgentConfig;
use crate::deadlines::DeadlineLimits;
use crate::receipts::RequiredFiles;
use crate::storage::conversation_store::KnownConversation;
use crate::tools::{AgentToolAccess, ToolGrant};
use crate::workspace::{WorkspacePlan, WorkspaceRoots};

pub(crate) use adapter::agent_event::{
    AgentEvent, AgentExit, AgentInput, AgentInputAnswer, AgentInputKind, AgentQuestion, InputKey,
    QuestionChoice, QuestionResponse, StdinMessage, ToolPermission, TurnEnding, TurnOutcome,
    TurnPhase,
};
pub(crate) use adapter::translator::AgentTranslator;
use launch::program_probe::find_programs;
pub(crate) use launch::program_probe::{
    ProgramStatus, answers_version, find_program, find_programs_and_versions, program_version,
};
pub(crate) use outcome::failure::{FailureClass, TurnFailure};
pub(crate) use outcome::turn_usage::{TokenCounts, TurnUsage};
pub(crate) use outcome::verdict::{
    AttemptVerdict, FinalAgentUsage, judge_ending, judge_with_finish,
};

/// From TERM to KILL when neither the profile nor the relay says.
const CLEANUP_TERM: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct AgentRegistry {
    by_name: BTreeMap<String, AgentConfig>,
    roots: WorkspaceRoots,
    /// What was found of them last; those who look are not the loop.
    program_status: watch::Sender<BTreeMap<String, ProgramStatus>>,
}

/// Why a dispatch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DispatchRefusal {
    pub(crate) code: RejectCode,
    pub(crate) message: String,
}

impl DispatchRefusal {
    fn new(code: RejectCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn disk_full() -> Self {
        Self::new(
            RejectCode::DiskFull,
            "the worker's disk did not take the attempt",
        )
    }

    pub(crate) fn not_confirmed() -> Self {
        Self::new(
            RejectCode::NotConfirmed,
            "the lease was not confirmed in time",
        )
    }
}

/// Said when it is noticed, and once: why an agent gets no work must not be a riddle.
fn log_program_changes(
    known: &BTreeMap<String, ProgramStatus>,
    found: &BTreeMap<String, ProgramStatus>,
) {
    for (agent, now) in found {
        let before = known.get(agent).and_then(|found| found.problem);
        match (before, now.problem) {
            (None, Some(problem)) => tracing::warn!(
                %agent, problem,
                "the program of this agent is not found, so it gets no work; mend its `program` or the PATH"
            ),
            (Some(_), None) => {
                tracing::info!(%agent, "the program of this agent is there, so it gets work");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

impl AgentRegistry {
    pub(crate) fn new(by_name: BTreeMap<String, AgentConfig>, roots: WorkspaceRoots) -> Self {
        Self {
            by_name,
            roots,
            program_status: watch::Sender::default(),
        }
    }

    pub(crate) fn roots(&self) -> &WorkspaceRoots {
        &self.roots
    }

    /// Somebody has looked whether the programs are there.
    pub(crate) fn set_program_status(&self, found: BTreeMap<String, ProgramStatus>) {
        log_program_changes(&self.program_status.borrow(), &found);
        self.program_status.send_replace(found);
    }

    /// Looks again, wherever it is called. Versions stay as they were told.
    pub(crate) fn recheck_programs(&self) -> impl FnOnce() + Send + use<> {
        let (by_name, known) = (self.by_name.clone(), self.program_status.clone());
        move || {
            let mut found = find_programs(&by_name);
            known.send_modify(|known| {
                for (name, found) in &mut found {
                    let told = known.get(name).map(|told| told.version.clone());
                    found.version = told.unwrap_or_default();
                }
                log_program_changes(known, &found);
                *known = found;
            });
        }
    }

    /// For Hello.
    pub(crate) fn agent_infos(&self) -> Vec<AgentInfo> {
        let infos = self.by_name.iter().map(|(name, config)| {
            let (kind, options) = match config {
                AgentConfig::AnyCommand | AgentConfig::Command { .. } => {
                    (AgentKind::Command, Vec::new())
                }
                AgentConfig::Coding { wire, .. } => {
                    let options = launch::coding_agent::AGENT_OPTIONS
                        .map(str::to_owned)
                        .to_vec();
                    (launch::coding_agent::agent_kind(*wire), options)
                }
            };
            let found = self.program_status.borrow().get(name).cloned();
            let found = found.unwrap_or_default();
            AgentInfo {
                name: name.clone(),
                kind: kind.into(),
                version: found.version,
                options,
                problem: found.problem.unwrap_or_default().to_owned(),
            }
        });
        infos.collect()
    }

    /// Turns a dispatch into what is run, or says why it is not.
    pub(crate) fn plan_attempt(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        daemon_id: &str,
        known: Option<&KnownConversation>,
        handed: Option<&AgentToolAccess>,
    ) -> Result<AttemptPlan, DispatchRefusal> {
        let Some(config) = self.by_name.get(&dispatch.agent) else {
            let message = format!("this daemon has no agent {:?}", dispatch.agent);
            return Err(DispatchRefusal::new(RejectCode::UnsupportedAgent, message));
        };
        let workspace = self.plan_workspace(attempt, dispatch)?;
        let cwd = workspace.working_directory();
        let files = RequiredFiles::new(&workspace.path, dispatch.contract.as_ref());
        let files =
            files.map_err(|bad| DispatchRefusal::new(RejectCode::Invalid, bad.to_string()))?;
        let mut resume = None;
        let (mut child, words) = match config {
            AgentConfig::AnyCommand | AgentConfig::Command { .. } => {
                launch::command_agent::check_options(dispatch)?;
                let child =
                    launch::command_agent::child_spec(config, attempt, dispatch, daemon_id, cwd)?;
                let prompt = Bytes::copy_from_slice(dispatch.prompt.as_bytes());
                resume.clone_from(&dispatch.resume);
                (child, ChildStdin::Prompt(prompt))
            }
            AgentConfig::Coding { wire, .. } => {
                let desk = launch::coding_agent::CodingAgentContext {
                    wire: *wire,
                    config,
                    daemon_id,
                    cwd: &cwd,
                    tool_access: handed,
                };
                let (child, translator) =
                    launch::coding_agent::plan_coding_agent(desk, attempt, dispatch, known)?;
                let mut talk = AgentSession::new(&attempt.attempt_id, translator);
                if files.as_ref().is_some_and(RequiredFiles::allows_retry) {
                    talk = talk.with_further_turns();
                }
                (child, ChildStdin::AgentSession(Box::new(talk)))
            }
        };
        if let Some(handed) = handed {
            child.environment.extend(handed.environment());
        }
        Ok(AttemptPlan {
            attempt_id: attempt.attempt_id.clone(),
            task_id: attempt.task_id.clone(),
            workspace,
            child,
            stdin: words,
            deadlines: deadlines(dispatch),
            cleanup_term: cleanup_term(dispatch),
            tools: handed.map(|handed| ToolGrant::new(handed, dispatch)),
            required_files: files,
            resume,
        })
    }

    fn plan_workspace(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
    ) -> Result<WorkspacePlan, DispatchRefusal> {
        let asked = dispatch.workspace.as_ref();
        let plan = self.roots.plan(&attempt.attempt_id, asked, &dispatch.cwd);
        plan.ok_or_else(|| {
            let name = asked.map_or("", |asked| &asked.root);
            let message = format!("this daemon has no workspace {name:?}");
            DispatchRefusal::new(RejectCode::BadCwd, message)
        })
    }
}

/// Absent and 0 both mean "not armed".
fn armed_deadline(millis: Option<u64>) -> Option<Duration> {
    millis
        .filter(|millis| *millis > 0)
        .map(Duration::from_millis)
}

fn deadlines(dispatch: &Dispatch) -> DeadlineLimits {
    let DeadlineProfile {
        process_start_ms,
        prompt_write_ms,
        first_event_ms,
        first_visible_event_ms,
        stream_idle_ms,
        tool_idle_ms,
        // A command asks nobody, and the ladder has its own grace.
        user_input_ms: _,
        cleanup_term_ms: _,
    } = dispatch.profile.unwrap_or_default();
    DeadlineLimits {
        process_start: armed_deadline(process_start_ms),
        prompt_write: armed_deadline(prompt_write_ms),
        first_event: armed_deadline(first_event_ms),
        first_visible_event: armed_deadline(first_visible_event_ms),
        stream_idle: armed_deadline(stream_idle_ms),
        tool_idle: armed_deadline(tool_idle_ms),
        total: armed_deadline(Some(dispatch.total_ms)),
    }
}

fn cleanup_term(dispatch: &Dispatch) -> Duration {
    let profiled = dispatch
        .profile
        .and_then(|profile| armed_deadline(profile.cleanup_term_ms));
    profiled
        .or(armed_deadline(Some(dispatch.default_cleanup_term_ms)))
        .unwrap_or(CLEANUP_TERM)
}

/// A talk with an app-server that has not said anything yet.
#[cfg(test)]
pub(crate) fn test_agent_session() -> AgentSession {
    let wanted = launch::agent_launch::LaunchRequest {
        prompt: "Do it.".to_owned(),
        cwd: "/work".to_owned(),
        ..launch::agent_launch::LaunchRequest::default()
    };
    let launched = crate::config::AgentWire::CodexAppServer.launch(&wanted);
    AgentSession::new(
        "attempt",
        launched.expect("no option is asked for").translator,
    )
}
