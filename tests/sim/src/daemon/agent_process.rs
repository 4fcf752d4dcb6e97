//! The agent's processes: they start only after the confirmation, follow a plan, and are dead
//! at the lease limit.

use std::sync::Arc;

use baton_core::ids::{AttemptId, InputId};
use baton_core::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, ProcessTermination,
};
use baton_core::record::{FailureCode, LifecyclePhase, ProcessExitStatus, TimerKind, TokenUsage};
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;

use crate::checks::permission_rules::PERMISSION_CASES;
use crate::daemon::sim_attempt::KillReason;
use crate::simulation::{ScheduledEvent, Simulation};

/// The planned course of an attempt, without interference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentPlan {
    Complete,
    Fail {
        retryable: bool,
    },
    /// Sends nothing more; a deadline must end it.
    GoSilent,
    /// Prints without a pause for a long time, then completes.
    Flood,
    Release,
    /// Cannot continue without a person.
    Block,
    Reject,
    /// The dispatch is ignored.
    Ignore,
}

impl AgentPlan {
    pub(crate) fn choose_plan(world: &mut Simulation, _spec: &TaskSpec) -> Self {
        let (failures, hangs) = (world.options.failures, world.options.hangs);
        if world.healing {
            return AgentPlan::Complete;
        }
        if world.options.goals && world.rng.chance(15) {
            return AgentPlan::Block;
        }
        let (floods, refusals) = (world.options.floods, world.options.refusals);
        let rng = &mut world.rng;
        match rng.below(100) {
            0..=59 if refusals => rng
                .pick(&[AgentPlan::Reject, AgentPlan::Ignore])
                .unwrap_or(AgentPlan::Reject),
            38..=47 if floods => AgentPlan::Flood,
            0..=14 if failures => AgentPlan::Fail {
                retryable: rng.chance(60),
            },
            15..=19 if failures => AgentPlan::Reject,
            20..=22 if failures => AgentPlan::Release,
            23..=25 if failures => AgentPlan::Ignore,
            26..=37 if hangs => AgentPlan::GoSilent,
            _ => AgentPlan::Complete,
        }
    }
}

/// Number of prints of a flood.
const FLOOD_STEPS: u32 = 300;

/// All processes have ended.
pub(crate) fn confirmed_termination() -> ProcessTermination {
    ProcessTermination {
        exit: Some(ProcessExitStatus::Code(0)),
        group_empty: true,
        ..ProcessTermination::default()
    }
}

impl Simulation {
    /// After the confirmation the process starts, unless it did already or the daemon has
    /// released it.
    pub(crate) fn start_process(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        if held.confirmed || held.ended || !held.may_start(now) {
            return;
        }
        held.confirmed = true;
        held.processes_alive = true;
        let (re, spec, until) = (held.re, Arc::clone(&held.spec), held.granted_time.until);
        assert!(
            now < until,
            "S14: {attempt} starts, and its lease was over at {until}"
        );
        self.record_process_start(re, &spec);
        self.start_shim(index, attempt);
        self.send_frame(index, attempt, FrameBody::Started);
        let at = now + self.rng.between(10, 3_000);
        self.schedule(
            at,
            ScheduledEvent::AgentStep {
                daemon: index,
                attempt,
            },
        );
    }

    /// The agent executes one step of its plan.
    pub(crate) fn step_agent(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        if !held.processes_alive || held.ended || held.kill_reason.is_some() {
            return;
        }
        let floods = held.plan == AgentPlan::Flood && held.stage < FLOOD_STEPS;
        let pause = if floods { 10 } else { 4_000 };
        let again = self.now + self.rng.between(1, pause);
        if held.open_input.is_some() || !held.reachable {
            // Either an input is open, or its shim does not answer the daemon now.
            held.reachable |= self.rng.chance(5);
            return self.schedule(
                again,
                ScheduledEvent::AgentStep {
                    daemon: index,
                    attempt,
                },
            );
        }
        held.stage += 1;
        let (stage, plan, tool) = (held.stage, held.plan, held.open_tool.take());
        if let Some(id) = tool {
            self.send_frame(index, attempt, FrameBody::ToolFinished { id });
        } else {
            self.perform_stage(index, attempt, stage, plan);
        }
        self.schedule(
            again,
            ScheduledEvent::AgentStep {
                daemon: index,
                attempt,
            },
        );
    }

    fn perform_stage(&mut self, index: usize, attempt: AttemptId, stage: u32, plan: AgentPlan) {
        let phase = |phase| FrameBody::Phase {
            phase,
            message: None,
            deadline: None,
        };
        match stage {
            1 => self.send_frame(index, attempt, phase(LifecyclePhase::AgentStarted)),
            2 => self.send_frame(index, attempt, phase(LifecyclePhase::PromptWritten)),
            3 if self.rng.chance(50) => {
                self.send_frame(index, attempt, phase(LifecyclePhase::FirstEventSeen))
            }
            _ if plan == AgentPlan::Flood && stage < FLOOD_STEPS => {
                self.print_output(index, attempt)
            }
            _ => match self.rng.below(100) {
                0..=29 => self.print_output(index, attempt),
                30..=36 if self.options.goals => {
                    let word = self.random_goal_update();
                    self.send_frame(index, attempt, FrameBody::Goal(word));
                }
                30..=44 => self.start_tool_call(index, attempt),
                45..=54 if self.options.inputs => self.request_permission(index, attempt),
                55..=84 => self.finish_agent(index, attempt, plan),
                _ => {}
            },
        }
    }

    /// Output goes into a pipe; a relay that is behind slows the child down.
    fn print_output(&mut self, index: usize, attempt: AttemptId) {
        let daemon = &mut self.daemons[index];
        let (connected, most) = (daemon.welcomed, self.options.outbox_limit / 2);
        let held = daemon.attempts.get_mut(&attempt);
        let Some(held) = held.filter(|held| !(connected && held.outbox.output_bytes() > most))
        else {
            return;
        };
        let (length, visible) = (self.rng.between(1, 150), self.rng.chance(50));
        held.append_output(length, visible);
        self.forward_transcript(index, attempt);
    }

    fn start_tool_call(&mut self, index: usize, attempt: AttemptId) {
        let id: Arc<str> = format!("t{}", self.rng.next_u64()).into();
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.open_tool = Some(Arc::clone(&id));
        }
        self.send_frame(
            index,
            attempt,
            FrameBody::ToolStarted {
                id,
                name: "bash".into(),
            },
        );
    }

    fn request_permission(&mut self, index: usize, attempt: AttemptId) {
        let input = InputId(self.id_source.new_id());
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.open_input = Some(input);
        }
        let (tool, arguments, _) = PERMISSION_CASES[self.rng.random_index(PERMISSION_CASES.len())];
        let arguments: Arc<[u8]> = arguments.as_bytes().into();
        self.send_frame(
            index,
            attempt,
            FrameBody::PermissionRequest {
                input,
                tool_name: tool.into(),
                arguments: Arc::clone(&arguments),
                payload: arguments,
            },
        );
    }

    /// The agent ends, mostly with its processes, sometimes before them.
    fn finish_agent(&mut self, index: usize, attempt: AttemptId, plan: AgentPlan) {
        if plan == AgentPlan::Block {
            return self.block_task(index, attempt);
        }
        let lingers = self.options.ends_without_receipt && self.rng.chance(30);
        let termination = if lingers {
            ProcessTermination::default()
        } else {
            confirmed_termination()
        };
        let body = match plan {
            AgentPlan::Complete | AgentPlan::Flood => {
                let all = self.rng.chance(50);
                with_termination(self.build_result(index, attempt, all), termination)
            }
            AgentPlan::Fail { .. } if self.rng.chance(20) => resume_failed_frame(termination),
            AgentPlan::Fail { retryable } => {
                failed_frame(termination, retryable, self.rng.below(3))
            }
            AgentPlan::Release => FrameBody::Released {
                reason: None,
                termination,
            },
            AgentPlan::GoSilent => return self.expire_own_deadline(index, attempt),
            AgentPlan::Block | AgentPlan::Reject | AgentPlan::Ignore => return,
        };
        if !lingers {
            self.remove_processes(index, attempt);
        }
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.ended = true;
        }
        self.send_frame(index, attempt, body);
        if lingers {
            let takes = self.rng.below(20_000);
            self.kill_attempt(index, attempt, KillReason::EndReported, takes, 0);
        }
    }

    /// The daemon's own timer fires before the relay's. Its shim may be stuck for longer than
    /// the relay waits.
    fn expire_own_deadline(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].attempts.get(&attempt);
        let runs = held.is_some_and(|h| {
            h.processes_alive && h.reachable && h.kill_reason.is_none() && !h.ended
        });
        if !runs || !self.rng.chance(10) {
            return;
        }
        let ends = FrameBody::Phase {
            phase: LifecyclePhase::CleanupStarted,
            message: None,
            deadline: Some(TimerKind::StreamIdle),
        };
        self.send_frame(index, attempt, ends);
        let takes = self.rng.below(20_000);
        let grace = self.rng.below(15_000);
        self.kill_attempt(index, attempt, KillReason::Deadline, takes, grace);
    }

    fn report_deadline(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        held.ended = true;
        let body = if held.fenced {
            FrameBody::Receipt {
                termination: confirmed_termination(),
            }
        } else {
            FrameBody::Errored(ErroredBody {
                ended_in_lease: held.is_within_lease(now),
                ..errored_body(FailureCode::StreamIdleTimeout, confirmed_termination())
            })
        };
        self.send_frame(index, attempt, body);
    }

    /// Reports the block, then waits to be ended.
    fn block_task(&mut self, index: usize, attempt: AttemptId) {
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.plan = AgentPlan::GoSilent;
        }
        let word = self.random_block("I need a person");
        self.send_frame(index, attempt, FrameBody::Goal(word));
    }

    /// The last process has ended; the daemon's report depends on the reason.
    pub(crate) fn handle_process_exit(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].attempts.get(&attempt);
        let Some((why, ended, unwanted)) = held
            .filter(|h| h.processes_alive)
            .and_then(|h| Some((h.kill_reason?, h.ended, h.receipt_unwanted)))
        else {
            return;
        };
        self.remove_processes(index, attempt);
        match why {
            KillReason::Canceled => self.report_cancel(index, attempt),
            KillReason::Deadline => self.report_deadline(index, attempt),
            KillReason::Abandoned if !unwanted && (ended || self.rng.chance(50)) => {
                self.report_termination(index, attempt)
            }
            KillReason::Abandoned => {
                self.daemons[index].attempts.remove(&attempt);
            }
            KillReason::LeaseExpired | KillReason::EndReported => {
                self.report_termination(index, attempt)
            }
        }
    }

    fn report_cancel(&mut self, index: usize, attempt: AttemptId) {
        if self.rng.chance(50) {
            let phase = LifecyclePhase::CleanupFinished;
            self.send_frame(
                index,
                attempt,
                FrameBody::Phase {
                    phase,
                    message: None,
                    deadline: None,
                },
            );
        }
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        held.ended = true;
        let in_lease = held.is_within_lease(now);
        let body = if self.rng.chance(15) {
            self.build_result(index, attempt, true)
        } else {
            FrameBody::Canceled(CanceledBody {
                termination: confirmed_termination(),
                ended_in_lease: in_lease,
                ..CanceledBody::default()
            })
        };
        self.send_frame(index, attempt, body);
    }

    /// Only known: no process is left.
    pub(crate) fn report_receipt(&mut self, index: usize, attempt: AttemptId) {
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.ended = true;
            let termination = confirmed_termination();
            self.send_frame(index, attempt, FrameBody::Receipt { termination });
        }
    }

    /// Reports a receipt, or that the lease expired.
    pub(crate) fn report_termination(&mut self, index: usize, attempt: AttemptId) {
        let either = self.rng.chance(50);
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        let body = if held.ended || held.fenced || either {
            FrameBody::Receipt {
                termination: confirmed_termination(),
            }
        } else {
            FrameBody::Errored(ErroredBody {
                ended_in_lease: false,
                ..errored_body(FailureCode::RelayUnreachable, confirmed_termination())
            })
        };
        held.ended = true;
        self.send_frame(index, attempt, body);
    }
}

pub(crate) fn with_termination(result: FrameBody, termination: ProcessTermination) -> FrameBody {
    match result {
        FrameBody::Completed(body) => FrameBody::Completed(CompletedBody {
            termination,
            ..body
        }),
        other => other,
    }
}

pub(crate) fn completed_frame(termination: ProcessTermination) -> FrameBody {
    FrameBody::Completed(CompletedBody {
        result: Some(Arc::from(*b"done")),
        termination,
        ended_in_lease: true,
        ..CompletedBody::default()
    })
}

fn failed_frame(termination: ProcessTermination, retryable: bool, exit: u64) -> FrameBody {
    let code = if retryable {
        FailureCode::AgentExit
    } else {
        FailureCode::ProviderAuth
    };
    let exit = Some(ProcessExitStatus::Code(i32::try_from(exit).unwrap_or(1)));
    FrameBody::Errored(errored_body(
        code,
        ProcessTermination {
            exit,
            ..termination
        },
    ))
}

/// The agent session that it should resume does not exist.
fn resume_failed_frame(termination: ProcessTermination) -> FrameBody {
    FrameBody::Errored(ErroredBody {
        agent_session_id: Some("gone".into()),
        ..errored_body(FailureCode::ResumeFailed, termination)
    })
}

pub(crate) fn errored_body(code: FailureCode, termination: ProcessTermination) -> ErroredBody {
    ErroredBody {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: TokenUsage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination,
        ended_in_lease: true,
    }
}
