//! The agents of this daemon by name, and what a dispatch for one of them comes to. `command` is any program. The
//! adapters of coding agents each have their own file behind `translator`: pure folds over what an agent prints and
//! is told, which come to the same `event`s whatever the wire.

mod coding;
mod command;

mod acp;
mod claude;
mod codex;
mod event;
mod failure;
mod form;
mod launch;
mod lines;
mod memory;
mod probe;
mod translator;
mod turn;
mod usage;
mod verdict;
mod wire;

#[cfg(test)]
mod chunked;
#[cfg(test)]
mod long_runs;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod rendered;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod stored;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::{AgentInfo, AgentKind, AttemptRef, DeadlineProfile, Dispatch, RejectCode};
use bytes::Bytes;
use tokio::sync::watch;

use crate::attempt::{AttemptPlan, Talk, Words};
use crate::config::AgentConfig;
use crate::conversations::Known;
use crate::receipts::WantedFiles;
use crate::timers::Deadlines;
use crate::tools::{Granted, Handed};
use crate::workspace::{Plan, Roots};

pub(crate) use event::{
    AgentEvent, AgentExit, Answer, Ask, Choice, Ending, Input, InputKey, Message, Outcome,
    Permission, Question, Reply, TurnPhase,
};
pub(crate) use failure::{Failure, FailureClass};
use probe::look;
pub(crate) use probe::{Found, find, is_asked, look_for_versions, version};
pub(crate) use translator::Translator;
pub(crate) use usage::{Tokens, TurnUsage};
pub(crate) use verdict::{Used, Verdict, as_told, judge};

/// From TERM to KILL when neither the profile nor the relay says.
const CLEANUP_TERM: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct Agents {
    by_name: BTreeMap<String, AgentConfig>,
    roots: Roots,
    /// What was found of them last; those who look are not the loop.
    found: watch::Sender<BTreeMap<String, Found>>,
}

/// Why a dispatch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RejectCode,
    pub(crate) message: String,
}

impl Refusal {
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
fn tell_changes(known: &BTreeMap<String, Found>, found: &BTreeMap<String, Found>) {
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

impl Agents {
    pub(crate) fn new(by_name: BTreeMap<String, AgentConfig>, roots: Roots) -> Self {
        Self {
            by_name,
            roots,
            found: watch::Sender::default(),
        }
    }

    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Somebody has looked whether the programs are there.
    pub(crate) fn on_look(&self, found: BTreeMap<String, Found>) {
        tell_changes(&self.found.borrow(), &found);
        self.found.send_replace(found);
    }

    /// Looks again, wherever it is called. Versions stay as they were told.
    pub(crate) fn look_again(&self) -> impl FnOnce() + Send + use<> {
        let (by_name, known) = (self.by_name.clone(), self.found.clone());
        move || {
            let mut found = look(&by_name);
            known.send_modify(|known| {
                for (name, found) in &mut found {
                    let told = known.get(name).map(|told| told.version.clone());
                    found.version = told.unwrap_or_default();
                }
                tell_changes(known, &found);
                *known = found;
            });
        }
    }

    /// For Hello.
    pub(crate) fn infos(&self) -> Vec<AgentInfo> {
        let infos = self.by_name.iter().map(|(name, config)| {
            let (kind, options) = match config {
                AgentConfig::AnyCommand | AgentConfig::Command { .. } => {
                    (AgentKind::Command, Vec::new())
                }
                AgentConfig::Coding { wire, .. } => {
                    let options = coding::OPTIONS.map(str::to_owned).to_vec();
                    (coding::kind(*wire), options)
                }
            };
            let found = self.found.borrow().get(name).cloned();
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
    pub(crate) fn plan(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        daemon_id: &str,
        known: Option<&Known>,
        handed: Option<&Handed>,
    ) -> Result<AttemptPlan, Refusal> {
        let Some(config) = self.by_name.get(&dispatch.agent) else {
            let message = format!("this daemon has no agent {:?}", dispatch.agent);
            return Err(Refusal::new(RejectCode::UnsupportedAgent, message));
        };
        let workspace = self.place(attempt, dispatch)?;
        let cwd = workspace.working_directory();
        let files = WantedFiles::new(&workspace.path, dispatch.contract.as_ref());
        let files = files.map_err(|bad| Refusal::new(RejectCode::Invalid, bad.to_string()))?;
        let mut resume = None;
        let (mut child, words) = match config {
            AgentConfig::AnyCommand | AgentConfig::Command { .. } => {
                command::check(dispatch)?;
                let child = command::child(config, attempt, dispatch, daemon_id, cwd)?;
                let prompt = Bytes::copy_from_slice(dispatch.prompt.as_bytes());
                resume.clone_from(&dispatch.resume);
                (child, Words::Prompt(prompt))
            }
            AgentConfig::Coding { wire, .. } => {
                let desk = coding::Desk {
                    wire: *wire,
                    config,
                    daemon_id,
                    cwd: &cwd,
                    handed,
                };
                let (child, translator) = coding::plan(desk, attempt, dispatch, known)?;
                let mut talk = Talk::new(&attempt.attempt_id, translator);
                if files.as_ref().is_some_and(WantedFiles::may_try_again) {
                    talk = talk.with_further_turns();
                }
                (child, Words::Talk(Box::new(talk)))
            }
        };
        if let Some(handed) = handed {
            child.environment.extend(handed.variables());
        }
        Ok(AttemptPlan {
            attempt_id: attempt.attempt_id.clone(),
            task_id: attempt.task_id.clone(),
            workspace,
            child,
            words,
            deadlines: deadlines(dispatch),
            cleanup_term: cleanup_term(dispatch),
            tools: handed.map(|handed| Granted::new(handed, dispatch)),
            files,
            resume,
        })
    }

    fn place(&self, attempt: &AttemptRef, dispatch: &Dispatch) -> Result<Plan, Refusal> {
        let asked = dispatch.workspace.as_ref();
        let plan = self.roots.plan(&attempt.attempt_id, asked, &dispatch.cwd);
        plan.ok_or_else(|| {
            let name = asked.map_or("", |asked| &asked.root);
            let message = format!("this daemon has no workspace {name:?}");
            Refusal::new(RejectCode::BadCwd, message)
        })
    }
}

/// Absent and 0 both mean "not armed".
fn armed(millis: Option<u64>) -> Option<Duration> {
    millis
        .filter(|millis| *millis > 0)
        .map(Duration::from_millis)
}

fn deadlines(dispatch: &Dispatch) -> Deadlines {
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
    Deadlines {
        process_start: armed(process_start_ms),
        prompt_write: armed(prompt_write_ms),
        first_event: armed(first_event_ms),
        first_visible_event: armed(first_visible_event_ms),
        stream_idle: armed(stream_idle_ms),
        tool_idle: armed(tool_idle_ms),
        total: armed(Some(dispatch.total_ms)),
    }
}

fn cleanup_term(dispatch: &Dispatch) -> Duration {
    let profiled = dispatch
        .profile
        .and_then(|profile| armed(profile.cleanup_term_ms));
    profiled
        .or(armed(Some(dispatch.default_cleanup_term_ms)))
        .unwrap_or(CLEANUP_TERM)
}

/// A talk with an app-server that has not said anything yet.
#[cfg(test)]
pub(crate) fn test_talk() -> Talk {
    let wanted = launch::Wanted {
        prompt: "Do it.".to_owned(),
        cwd: "/work".to_owned(),
        ..launch::Wanted::default()
    };
    let launched = crate::config::AgentWire::CodexAppServer.launch(&wanted);
    Talk::new(
        "attempt",
        launched.expect("no option is asked for").translator,
    )
}
