//! The agent's processes: they start only when confirmed, work along a plan, and are dead by the lease's limit.

use std::sync::Arc;

use baton_core::id::{AttemptId, InputId};
use baton_core::input::{CanceledBody, Completed, Errored, FrameBody, Termination};
use baton_core::record::{Exit, FailureCode, Phase, TimerKind, Usage};
use baton_core::spec::TaskSpec;
use baton_core::time::Mint;

use crate::held::Kill;
use crate::ruled::CASES;
use crate::world::{Event, World};

/// What this attempt will come to, if nobody interferes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Complete,
    Fail {
        retryable: bool,
    },
    /// Stops talking for ever; a deadline must end it.
    Hang,
    /// Prints without a pause for a long while, and then completes.
    Flood,
    Release,
    /// Finds that it cannot go on without a person.
    Block,
    Reject,
    /// The dispatch is overlooked.
    Ignore,
}

impl Plan {
    pub(crate) fn of(world: &mut World, _spec: &TaskSpec) -> Self {
        let (failures, hangs) = (world.options.failures, world.options.hangs);
        if world.healing {
            return Plan::Complete;
        }
        if world.options.goals && world.rng.chance(15) {
            return Plan::Block;
        }
        let (floods, refusals) = (world.options.floods, world.options.refusals);
        let rng = &mut world.rng;
        match rng.below(100) {
            0..=59 if refusals => rng
                .pick(&[Plan::Reject, Plan::Ignore])
                .unwrap_or(Plan::Reject),
            38..=47 if floods => Plan::Flood,
            0..=14 if failures => Plan::Fail {
                retryable: rng.chance(60),
            },
            15..=19 if failures => Plan::Reject,
            20..=22 if failures => Plan::Release,
            23..=25 if failures => Plan::Ignore,
            26..=37 if hangs => Plan::Hang,
            _ => Plan::Complete,
        }
    }
}

/// How often a flood prints.
const FLOOD: u32 = 300;

/// The processes are gone.
pub(crate) fn gone() -> Termination {
    Termination {
        exit: Some(Exit::Code(0)),
        group_empty: true,
        ..Termination::default()
    }
}

impl World {
    /// Confirmed: the process starts, unless it did already or the daemon has given it back.
    pub(crate) fn start(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if held.confirmed || held.ended || !held.may_start(now) {
            return;
        }
        held.confirmed = true;
        held.alive = true;
        let (re, spec, until) = (held.re, Arc::clone(&held.spec), held.rights.until);
        assert!(
            now < until,
            "S14: {attempt} starts, and its lease was over at {until}"
        );
        self.born(re, &spec);
        self.start_shim(index, attempt);
        self.say(index, attempt, FrameBody::Started);
        let at = now + self.rng.between(10, 3_000);
        self.at(
            at,
            Event::Step {
                daemon: index,
                attempt,
            },
        );
    }

    /// The agent goes on by one step of its plan.
    pub(crate) fn step(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if !held.alive || held.ended || held.killing.is_some() {
            return;
        }
        let floods = held.plan == Plan::Flood && held.stage < FLOOD;
        let pause = if floods { 10 } else { 4_000 };
        let again = self.now + self.rng.between(1, pause);
        if held.asked.is_some() || !held.reachable {
            // Either a person is asked, or its shim does not answer the daemon for now.
            held.reachable |= self.rng.chance(5);
            return self.at(
                again,
                Event::Step {
                    daemon: index,
                    attempt,
                },
            );
        }
        held.stage += 1;
        let (stage, plan, tool) = (held.stage, held.plan, held.tool.take());
        if let Some(id) = tool {
            self.say(index, attempt, FrameBody::ToolFinished { id });
        } else {
            self.work(index, attempt, stage, plan);
        }
        self.at(
            again,
            Event::Step {
                daemon: index,
                attempt,
            },
        );
    }

    fn work(&mut self, index: usize, attempt: AttemptId, stage: u32, plan: Plan) {
        let phase = |phase| FrameBody::Phase {
            phase,
            message: None,
            deadline: None,
        };
        match stage {
            1 => self.say(index, attempt, phase(Phase::AgentStarted)),
            2 => self.say(index, attempt, phase(Phase::PromptWritten)),
            3 if self.rng.chance(50) => self.say(index, attempt, phase(Phase::FirstEventSeen)),
            _ if plan == Plan::Flood && stage < FLOOD => self.print(index, attempt),
            _ => match self.rng.below(100) {
                0..=29 => self.print(index, attempt),
                30..=36 if self.options.goals => {
                    let word = self.some_word();
                    self.say(index, attempt, FrameBody::Goal(word));
                }
                30..=44 => self.open_tool(index, attempt),
                45..=54 if self.options.inputs => self.ask_person(index, attempt),
                55..=84 => self.finish(index, attempt, plan),
                _ => {}
            },
        }
    }

    /// Printed into a pipe; a relay that is behind holds the child back.
    fn print(&mut self, index: usize, attempt: AttemptId) {
        let daemon = &mut self.daemons[index];
        let (connected, most) = (daemon.welcomed, self.options.outbox_limit / 2);
        let held = daemon.held.get_mut(&attempt);
        let Some(held) = held.filter(|held| !(connected && held.outbox.held() > most)) else {
            return;
        };
        let (length, visible) = (self.rng.between(1, 150), self.rng.chance(50));
        held.print(length, visible);
        self.fold(index, attempt);
    }

    fn open_tool(&mut self, index: usize, attempt: AttemptId) {
        let id: Arc<str> = format!("t{}", self.rng.bits()).into();
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.tool = Some(Arc::clone(&id));
        }
        self.say(
            index,
            attempt,
            FrameBody::ToolStarted {
                id,
                name: "bash".into(),
            },
        );
    }

    fn ask_person(&mut self, index: usize, attempt: AttemptId) {
        let input = InputId(self.mint.id());
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.asked = Some(input);
        }
        let (tool, arguments, _) = CASES[self.rng.index(CASES.len())];
        let arguments: Arc<[u8]> = arguments.as_bytes().into();
        self.say(
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

    /// The agent comes to its end, most often with its processes gone, sometimes before.
    fn finish(&mut self, index: usize, attempt: AttemptId, plan: Plan) {
        if plan == Plan::Block {
            return self.block(index, attempt);
        }
        let lingers = self.options.unproven_ends && self.rng.chance(30);
        let termination = if lingers {
            Termination::default()
        } else {
            gone()
        };
        let body = match plan {
            Plan::Complete | Plan::Flood => {
                let all = self.rng.chance(50);
                with_end(self.result(index, attempt, all), termination)
            }
            Plan::Fail { .. } if self.rng.chance(20) => unresumed(termination),
            Plan::Fail { retryable } => failed(termination, retryable, self.rng.below(3)),
            Plan::Release => FrameBody::Released {
                reason: None,
                termination,
            },
            Plan::Hang => return self.pass_deadline(index, attempt),
            Plan::Block | Plan::Reject | Plan::Ignore => return,
        };
        if !lingers {
            self.bury(index, attempt);
        }
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.ended = true;
        }
        self.say(index, attempt, body);
        if lingers {
            let takes = self.rng.below(20_000);
            self.kill(index, attempt, Kill::Lingering, takes, 0);
        }
    }

    /// The daemon's own timer is quicker than the relay's. Its shim may be stuck for longer than the relay waits.
    fn pass_deadline(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].held.get(&attempt);
        let runs = held.is_some_and(|h| h.alive && h.reachable && h.killing.is_none() && !h.ended);
        if !runs || !self.rng.chance(10) {
            return;
        }
        let ends = FrameBody::Phase {
            phase: Phase::CleanupStarted,
            message: None,
            deadline: Some(TimerKind::StreamIdle),
        };
        self.say(index, attempt, ends);
        let takes = self.rng.below(20_000);
        let grace = self.rng.below(15_000);
        self.kill(index, attempt, Kill::Deadline, takes, grace);
    }

    fn report_deadline(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.ended = true;
        let body = if held.fenced {
            FrameBody::Receipt {
                termination: gone(),
            }
        } else {
            FrameBody::Errored(Errored {
                in_lease: held.is_within_lease(now),
                ..errored(FailureCode::StreamIdleTimeout, gone())
            })
        };
        self.say(index, attempt, body);
    }

    /// It says so, and waits to be ended.
    fn block(&mut self, index: usize, attempt: AttemptId) {
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.plan = Plan::Hang;
        }
        let word = self.some_block("I need a person");
        self.say(index, attempt, FrameBody::Goal(word));
    }

    /// The last process is gone; what the daemon says about it depends on why.
    pub(crate) fn killed(&mut self, index: usize, attempt: AttemptId) {
        let held = self.daemons[index].held.get(&attempt);
        let Some((why, ended, unwanted)) = held
            .filter(|h| h.alive)
            .and_then(|h| Some((h.killing?, h.ended, h.unwanted)))
        else {
            return;
        };
        self.bury(index, attempt);
        match why {
            Kill::Canceled => self.report_cancel(index, attempt),
            Kill::Deadline => self.report_deadline(index, attempt),
            Kill::GivenUp if !unwanted && (ended || self.rng.chance(50)) => {
                self.report_death(index, attempt)
            }
            Kill::GivenUp => {
                self.daemons[index].held.remove(&attempt);
            }
            Kill::Limit | Kill::Lingering => self.report_death(index, attempt),
        }
    }

    fn report_cancel(&mut self, index: usize, attempt: AttemptId) {
        if self.rng.chance(50) {
            let phase = Phase::CleanupFinished;
            self.say(
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
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.ended = true;
        let in_lease = held.is_within_lease(now);
        let body = if self.rng.chance(15) {
            self.result(index, attempt, true)
        } else {
            FrameBody::Canceled(CanceledBody {
                termination: gone(),
                in_lease,
                ..CanceledBody::default()
            })
        };
        self.say(index, attempt, body);
    }

    /// Nothing is known but that no process is left.
    pub(crate) fn report_gone(&mut self, index: usize, attempt: AttemptId) {
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.ended = true;
            let termination = gone();
            self.say(index, attempt, FrameBody::Receipt { termination });
        }
    }

    /// A receipt, or the worker's own word that its lease ran out.
    pub(crate) fn report_death(&mut self, index: usize, attempt: AttemptId) {
        let either = self.rng.chance(50);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let body = if held.ended || held.fenced || either {
            FrameBody::Receipt {
                termination: gone(),
            }
        } else {
            FrameBody::Errored(Errored {
                in_lease: false,
                ..errored(FailureCode::RelayUnreachable, gone())
            })
        };
        held.ended = true;
        self.say(index, attempt, body);
    }
}

pub(crate) fn with_end(result: FrameBody, termination: Termination) -> FrameBody {
    match result {
        FrameBody::Completed(body) => FrameBody::Completed(Completed {
            termination,
            ..body
        }),
        other => other,
    }
}

pub(crate) fn completed(termination: Termination) -> FrameBody {
    FrameBody::Completed(Completed {
        result: Some(Arc::from(*b"done")),
        termination,
        in_lease: true,
        ..Completed::default()
    })
}

fn failed(termination: Termination, retryable: bool, exit: u64) -> FrameBody {
    let code = if retryable {
        FailureCode::AgentExit
    } else {
        FailureCode::ProviderAuth
    };
    let exit = Some(Exit::Code(i32::try_from(exit).unwrap_or(1)));
    FrameBody::Errored(errored(
        code,
        Termination {
            exit,
            ..termination
        },
    ))
}

/// The conversation that it should go on with is gone.
fn unresumed(termination: Termination) -> FrameBody {
    FrameBody::Errored(Errored {
        agent_session_id: Some("gone".into()),
        ..errored(FailureCode::ResumeFailed, termination)
    })
}

pub(crate) fn errored(code: FailureCode, termination: Termination) -> Errored {
    Errored {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: Usage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination,
        in_lease: true,
    }
}
