//! The agents of this daemon by name, and how a dispatch for one of them becomes an attempt
//! plan. A `command` agent runs any program. Coding agents have adapters behind
//! [`AgentTranslator`]: pure functions over an agent's output and input that produce the same
//! events for every wire.

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

/// Time from TERM to KILL when neither the profile nor the relay sets it.
const CLEANUP_TERM: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct AgentRegistry {
    by_name: BTreeMap<String, AgentConfig>,
    roots: WorkspaceRoots,
    /// Result of the last program check. The check runs outside the daemon's loop.
    program_status: watch::Sender<BTreeMap<String, ProgramStatus>>,
}

/// Why a dispatch is refused.
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
            "the daemon cannot store the attempt on its disk",
        )
    }

    pub(crate) fn not_confirmed() -> Self {
        Self::new(
            RejectCode::NotConfirmed,
            "the lease was not confirmed in time",
        )
    }
}

/// Logs a change once, when it is detected, so that the log explains why an agent gets no work.
fn log_program_changes(
    before: &BTreeMap<String, ProgramStatus>,
    now: &BTreeMap<String, ProgramStatus>,
) {
    for (agent, status) in now {
        let before = before.get(agent).and_then(|status| status.problem);
        match (before, status.problem) {
            (None, Some(problem)) => tracing::warn!(
                %agent, problem,
                "agent program not found, so the agent gets no work; fix its `program` or the PATH"
            ),
            (Some(_), None) => {
                tracing::info!(%agent, "agent program found, so the agent gets work again");
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

    /// Stores the result of a program check.
    pub(crate) fn set_program_status(&self, status: BTreeMap<String, ProgramStatus>) {
        log_program_changes(&self.program_status.borrow(), &status);
        self.program_status.send_replace(status);
    }

    /// Returns a function that checks the programs again; it may block. Known versions are
    /// kept.
    pub(crate) fn recheck_programs(&self) -> impl FnOnce() + Send + use<> {
        let (by_name, program_status) = (self.by_name.clone(), self.program_status.clone());
        move || {
            let mut found = find_programs(&by_name);
            program_status.send_modify(|known| {
                for (name, found) in &mut found {
                    let version = known.get(name).map(|status| status.version.clone());
                    found.version = version.unwrap_or_default();
                }
                log_program_changes(known, &found);
                *known = found;
            });
        }
    }

    /// Agent descriptions for the Hello message.
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
            let status = self.program_status.borrow().get(name).cloned();
            let status = status.unwrap_or_default();
            AgentInfo {
                name: name.clone(),
                kind: kind.into(),
                version: status.version,
                options,
                problem: status.problem.unwrap_or_default().to_owned(),
            }
        });
        infos.collect()
    }

    /// Turns a dispatch into an attempt plan, or returns why it is refused.
    pub(crate) fn plan_attempt(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        daemon_id: &str,
        known: Option<&KnownConversation>,
        tool_access: Option<&AgentToolAccess>,
    ) -> Result<AttemptPlan, DispatchRefusal> {
        let Some(config) = self.by_name.get(&dispatch.agent) else {
            let message = format!("this daemon has no agent {:?}", dispatch.agent);
            return Err(DispatchRefusal::new(RejectCode::UnsupportedAgent, message));
        };
        let workspace = self.plan_workspace(attempt, dispatch)?;
        let cwd = workspace.working_directory();
        let files = RequiredFiles::new(&workspace.path, dispatch.contract.as_ref());
        let files =
            files.map_err(|error| DispatchRefusal::new(RejectCode::Invalid, error.to_string()))?;
        let mut resume = None;
        let (mut child, stdin) = match config {
            AgentConfig::AnyCommand | AgentConfig::Command { .. } => {
                launch::command_agent::check_options(dispatch)?;
                let child =
                    launch::command_agent::child_spec(config, attempt, dispatch, daemon_id, cwd)?;
                let prompt = Bytes::copy_from_slice(dispatch.prompt.as_bytes());
                resume.clone_from(&dispatch.resume);
                (child, ChildStdin::Prompt(prompt))
            }
            AgentConfig::Coding { wire, .. } => {
                let context = launch::coding_agent::CodingAgentContext {
                    wire: *wire,
                    config,
                    daemon_id,
                    cwd: &cwd,
                    tool_access,
                };
                let (child, translator) =
                    launch::coding_agent::plan_coding_agent(context, attempt, dispatch, known)?;
                let mut session = AgentSession::new(&attempt.attempt_id, translator);
                if files.as_ref().is_some_and(RequiredFiles::allows_retry) {
                    session = session.with_further_turns();
                }
                (child, ChildStdin::AgentSession(Box::new(session)))
            }
        };
        if let Some(tool_access) = tool_access {
            child.environment.extend(tool_access.environment());
        }
        Ok(AttemptPlan {
            attempt_id: attempt.attempt_id.clone(),
            task_id: attempt.task_id.clone(),
            workspace,
            child,
            stdin,
            deadlines: deadlines(dispatch),
            cleanup_term: cleanup_term(dispatch),
            tools: tool_access.map(|tool_access| ToolGrant::new(tool_access, dispatch)),
            required_files: files,
            resume,
        })
    }

    fn plan_workspace(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
    ) -> Result<WorkspacePlan, DispatchRefusal> {
        let spec = dispatch.workspace.as_ref();
        let plan = self.roots.plan(&attempt.attempt_id, spec, &dispatch.cwd);
        plan.ok_or_else(|| {
            let name = spec.map_or("", |spec| &spec.root);
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
        // A command asks for no input, and the termination sequence has its own grace period.
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

/// A session with an app-server that has not sent anything yet.
#[cfg(test)]
pub(crate) fn test_agent_session() -> AgentSession {
    let request = launch::agent_launch::LaunchRequest {
        prompt: "Do it.".to_owned(),
        cwd: "/work".to_owned(),
        ..launch::agent_launch::LaunchRequest::default()
    };
    let launched = crate::config::AgentWire::CodexAppServer.launch(&request);
    AgentSession::new("attempt", launched.expect("no option is set").translator)
}
