//! The core's surface: one state, three calls. What each input means is decided in the files beside this one.
//!
//! Here: the state, the order of one turn (stall credit, the input, placement), and how a changed task goes back
//! into it with its writes. A task is taken out of the map while it is changed, so nothing sees it half-way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::agent_held::Caller;
use crate::config::Config;
use crate::conversation::Affinity;
use crate::damage::Damage;
use crate::effects::{After, Downstream, Effects, Outgoing, Reply, Send, Write};
use crate::fences::Fences;
use crate::force_limit::ForceLimit;
use crate::id::{AttemptId, RequestId, SessionId, TaskId, TenantId, TokenId};
use crate::input::Input;
use crate::known_daemons::KnownDaemons;
use crate::live::{Live, Scene};
use crate::open::Open;
use crate::parked::{ParkedTasks, Wanted};
use crate::queue::Queue;
use crate::record::{
    DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenRecord, IdempotencyRecord,
    PausesRecord, SchedulerRecord, State, TaskRecord, TimelineEvent,
};
use crate::reject::Rejection;
use crate::roster::Roster;
use crate::spec::TaskSpec;
use crate::time::{Mint, Moment, Now, Wall};
use crate::timed::is_timed;
use crate::timers::Deadlines;

/// Everything durable that a boot needs; finished tasks are not among it.
#[derive(Debug, Default)]
pub struct Recovered {
    pub tasks: Vec<(Arc<TaskSpec>, Arc<TaskRecord>)>,
    pub daemons: Vec<Arc<DaemonRecord>>,
    pub scheduler: SchedulerRecord,
    pub pauses: PausesRecord,
    pub forgotten: ForgottenRecord,
    pub daemon_changes: DaemonChangesRecord,
    pub fences: Vec<FenceRecord>,
    /// Of live tasks; the store is asked for the others.
    pub idempotency: Vec<(TenantId, String, IdempotencyRecord)>,
    /// What is missing above because it cannot be read.
    pub damage: Damage,
}

/// All live state. Maps that are only looked up are hash maps; whatever is walked is ordered.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) tasks: HashMap<TaskId, Box<Live>>,
    /// Leased attempts.
    pub(crate) attempts: HashMap<AttemptId, TaskId>,
    /// Those of them that agents hold themselves, by their credentials.
    pub(crate) held: BTreeMap<(TokenId, AttemptId), TaskId>,
    pub(crate) keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    pub(crate) open: Open,
    pub(crate) queue: Queue,
    pub(crate) roster: Roster,
    pub(crate) fences: Fences,
    pub(crate) affinity: Affinity,
    pub(crate) parked: ParkedTasks,
    pub(crate) deadlines: Deadlines<TaskId>,
    pub(crate) daemons: KnownDaemons,
    pub(crate) scheduler: SchedulerRecord,
    pub(crate) pauses: PausesRecord,
    pub(crate) forgotten: ForgottenRecord,
    pub(crate) daemon_changes: DaemonChangesRecord,
    /// How often operators have spoken of late.
    pub(crate) forced: ForceLimit,
    /// Nothing is leased for now; what is leased goes on.
    pub(crate) dispatch_held: bool,
    /// When this run began, and the uptime that earlier runs had.
    pub(crate) started: Moment,
    pub(crate) earlier_ms: u64,
    pub(crate) uptime_written: Moment,
    pub(crate) last: Moment,
}

/// One turn: its time, its fresh ids, and what comes out.
pub(crate) struct Turn<'a> {
    pub(crate) now: Now,
    pub(crate) mint: &'a mut dyn Mint,
    pub(crate) fx: Effects,
}

impl Turn<'_> {
    pub(crate) fn send(&mut self, after: After, send: Send) {
        self.fx.sends.push(Outgoing { after, send });
    }

    pub(crate) fn reply(&mut self, request: RequestId, after: After, reply: Reply) {
        self.send(
            after.unless(mutant!(ReplyBeforePersist)),
            Send::Reply {
                request,
                outcome: Ok(reply),
            },
        );
    }

    pub(crate) fn refuse(&mut self, request: RequestId, code: Rejection) {
        self.send(
            After::Nothing,
            Send::Reply {
                request,
                outcome: Err(code),
            },
        );
    }

    pub(crate) fn tell(&mut self, after: After, session: SessionId, message: Downstream) {
        self.send(after, Send::ToSession { session, message });
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.fx.writes.push(write);
    }

    fn publish(
        &mut self,
        record: Arc<TaskRecord>,
        spec: Arc<TaskSpec>,
        events: Vec<Arc<TimelineEvent>>,
    ) {
        if !events.is_empty() {
            let after = After::Task(record.task);
            self.send(
                after.unless(mutant!(PublishBeforePersist)),
                Send::Published {
                    record,
                    spec,
                    events,
                },
            );
        }
    }
}

impl Core {
    /// Decides one input. `now` never goes back; the shell reads both clocks once per input.
    pub fn handle(&mut self, input: Input, now: Now, mint: &mut dyn Mint) -> Effects {
        let mut turn = Turn {
            now,
            mint,
            fx: Effects::default(),
        };
        self.credit_stall(&mut turn);
        self.decide(input, &mut turn);
        self.place_waiting(&mut turn);
        self.write_uptime(&mut turn);
        self.last = now.at;
        turn.fx
    }

    /// When `Input::Tick` is wanted next.
    pub fn next_deadline(&self) -> Option<Moment> {
        // A short beat while anything is leased: only so can a stall be told from an idle hour.
        let beat = (!self.attempts.is_empty()).then(|| self.last + self.config.stall_ms / 2);
        let uptime =
            (!self.tasks.is_empty()).then(|| self.uptime_written + self.config.budget_write_ms);
        let sources = [
            self.deadlines.next(),
            self.fences.next(),
            self.queue.next(),
            self.roster.next(),
            beat,
            uptime,
        ];
        sources.into_iter().flatten().min()
    }

    /// Whether the core has this task; of others the shell loads the finished record for inputs that name them.
    pub fn is_live(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many tasks are not finished.
    pub fn open_tasks(&self) -> usize {
        self.tasks.len()
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm per input, and each only names what decides it"
    )]
    fn decide(&mut self, input: Input, turn: &mut Turn<'_>) {
        match input {
            Input::Submit(submit) => self.submit(submit, turn),
            Input::Start {
                submit,
                agent,
                mark,
            } => self.start(submit, Caller { agent, mark }, turn),
            Input::Claim {
                request,
                agent,
                mark,
                task,
                finished,
            } => self.claim(request, Caller { agent, mark }, task, finished, turn),
            Input::PickUp {
                request,
                agent,
                mark,
                task,
                attempt,
                reason,
                finished,
            } => {
                let caller = Caller { agent, mark };
                self.pick_up(request, caller, (task, attempt), reason, finished, turn);
            }
            Input::Held(call) => self.held_call(*call, turn),
            Input::Cancel {
                request,
                tenant,
                task,
                by,
                reason,
                finished,
            } => {
                self.cancel(request, &tenant, task, by, reason, finished, turn);
            }
            Input::Operate(operate) => self.operate(*operate, turn),
            Input::Answer {
                request,
                tenant,
                task,
                input,
                by,
                decision,
                payload,
                finished,
            } => {
                let answer = crate::record::Answer {
                    by: by.name,
                    at: turn.now.wall,
                    decision,
                    rule: None,
                    payload,
                };
                self.answer(request, &tenant, task, (input, answer), finished, turn);
            }
            Input::UpdateProgress {
                request,
                tenant,
                task,
                update,
                known,
                finished,
            } => {
                self.update_progress(request, (&tenant, task), *update, known, finished, turn);
            }
            Input::Block {
                request,
                tenant,
                task,
                by,
                block,
                known,
                finished,
            } => {
                self.block_task(request, (&tenant, task), by, *block, known, finished, turn);
            }
            Input::Resume {
                request,
                tenant,
                task,
                resume,
                attempt,
                finished,
            } => {
                self.resume(request, (&tenant, task), resume, attempt, finished, turn);
            }
            Input::PauseScheduler {
                request,
                scope,
                by,
                reason,
            } => self.pause_scheduler(request, scope, by, reason, turn),
            Input::UnpauseScheduler {
                request,
                scope,
                by,
                reason,
            } => self.unpause_scheduler(request, &scope, by, reason, turn),
            Input::SchedulerStatus { request, scope } => {
                self.scheduler_status(request, &scope, turn);
            }
            Input::ReleaseInherited {
                request,
                by,
                reason,
            } => self.release_inherited(request, by, reason, turn),
            Input::OperateDaemon(operate) => self.operate_daemon(*operate, turn),
            Input::ForgetDaemon {
                request,
                scope,
                daemon,
                by,
                reason,
            } => self.forget_by_word(request, &scope, daemon, by, reason, turn),
            Input::Inspect {
                request,
                tenant,
                task,
            } => self.inspect(request, &tenant, task, turn),
            Input::ListParked {
                request,
                tenant,
                causes,
                agent_scope,
                after,
                limit,
            } => {
                let wanted = Wanted {
                    causes: &causes,
                    agent_scope: agent_scope.as_deref(),
                };
                self.list_parked(request, &tenant, wanted, (after, limit), turn);
            }
            Input::ListDaemons { request, scope } => self.list_daemons(request, &scope, turn),
            Input::FindDaemon {
                request,
                scope,
                named,
                shown,
            } => self.find_daemon(request, &scope, &named, shown, turn),
            Input::RemoveFinished {
                request,
                tasks: _,
                finished,
            } => self.remove_finished(request, finished, turn),
            Input::ForgetDaemons { request, unseen_ms } => {
                self.forget_daemons(request, unseen_ms, turn);
            }
            Input::HoldDispatch { held } => self.dispatch_held = held,
            Input::SessionOpened { session, hello } => self.session_opened(session, *hello, turn),
            Input::SessionClosed { session } => self.session_closed(session, turn),
            Input::Heartbeat { session, heartbeat } => self.heartbeat(session, heartbeat, turn),
            Input::Frame(frame) => self.frame(*frame, turn),
            Input::Activity(activity) => self.activity(activity, turn),
            Input::Hold {
                session,
                request,
                attempts,
                granted_ms,
            } => {
                self.hold(session, request, attempts, granted_ms, turn);
            }
            Input::DeliveryFailed { session, attempt } => {
                self.delivery_failed(session, attempt, turn)
            }
            Input::Tick => self.tick(turn),
        }
    }

    /// Takes a live task of this tenant out for a change; another tenant's does not exist.
    pub(crate) fn take(&mut self, tenant: &TenantId, task: TaskId) -> Option<Box<Live>> {
        if self.tasks.get(&task)?.record().tenant != *tenant && !mutant!(TenantIgnored) {
            return None;
        }
        self.tasks.remove(&task)
    }

    /// Puts a task back: writes what changed, publishes it, arms what comes next, or lets it go if it has ended.
    pub(crate) fn keep(&mut self, mut live: Box<Live>, turn: &mut Turn<'_>) -> Arc<TaskRecord> {
        let change = live.complete(turn.now, self.budget_clock_ms(&live, turn.now));
        let ended = live.record().state.is_terminal();
        if let Some(change) = change {
            let record = Arc::clone(&change.record);
            turn.write(match (ended, live.take_reopened()) {
                (true, _) => Write::PutDone(record),
                (false, true) => Write::Reopen(record),
                (false, false) => Write::PutLive(record),
            });
            turn.publish(change.record, Arc::clone(&live.spec), change.events);
        }
        let record = live.shared();
        self.parked.note(&record);
        if ended {
            self.forget(&live);
            return record;
        }
        let inherited = self.scheduler.hold_of(live.id()).is_some();
        self.open.note(&live.spec, &record, inherited);
        debug_assert!(is_timed(&live), "waits for ever: {:?}", live.record());
        match live.next_due() {
            Some(at) => self.deadlines.arm(live.id(), at),
            None => self.deadlines.disarm(live.id()),
        }
        self.tasks.insert(live.id(), live);
        record
    }

    /// Writes a finished task that changed once more (late evidence, an adopted result).
    pub(crate) fn keep_finished(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        if let Some(change) = live.complete(turn.now, self.uptime_ms(turn.now)) {
            turn.write(Write::PutDone(Arc::clone(&change.record)));
            if !mutant!(LateWordUnpublished) {
                turn.publish(change.record, Arc::clone(&live.spec), change.events);
            }
        }
    }

    fn forget(&mut self, live: &Live) {
        let task = live.id();
        self.deadlines.disarm(task);
        self.roster.forget_task(task);
        self.queue.remove(task);
        self.parked.forget(&live.spec.tenant, task);
        if let Some(key) = &live.spec.idempotency_key {
            self.keys.remove(&(live.spec.tenant.clone(), key.clone()));
        }
        self.open.remove(&live.spec.tenant, task);
    }

    pub(crate) fn scene(&self, live: &Live, now: Now, observed: Option<Wall>) -> Scene<'_> {
        Scene {
            config: &self.config,
            connected: self.session_of(live).is_some(),
            now,
            uptime_ms: self.uptime_ms(now),
            observed,
        }
    }

    /// The stream on which the newest attempt's holder can be reached.
    pub(crate) fn session_of(&self, live: &Live) -> Option<SessionId> {
        let holder = live.newest().daemon()?;
        self.roster.session_of(holder.daemon)
    }

    pub(crate) fn uptime_ms(&self, now: Now) -> u64 {
        self.earlier_ms.saturating_add(now.at.since(self.started))
    }

    /// What a task's budgets are dated by. A queued attempt has only its queue timer, and that stands still in a pause.
    fn budget_clock_ms(&self, live: &Live, now: Now) -> u64 {
        let uptime_ms = self.uptime_ms(now);
        if live.newest().state == State::Queued {
            self.queue_clock_of(&live.spec.tenant, live.id(), uptime_ms)
        } else {
            uptime_ms
        }
    }
}
