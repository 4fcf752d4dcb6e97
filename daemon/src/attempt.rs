//! One attempt's life from its start to its last process: starts the child, moves bytes, watches the
//! local deadlines, climbs the ladder, and reports all of it as events. Leases, frames and the relay
//! are the supervisor's; the only thing that reaches in here from outside is the order to stop.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::clock::{Clock, Moment};
use crate::phases::{OncePhase, PhaseOrder};
use crate::process::{
    ATTEMPT_MARKER, ChildSpec, Chunk, Cleared, Coalescer, Exit, Family, PipeEvent, Pipes,
    ProcessId, SpawnError, Spawned, Spawner, clear, kill_marked,
};
use crate::timers::{DeadlineKind, Deadlines, Fact, Timers};

/// After a normal exit, background children may still be writing their last lines.
const SETTLE: Duration = Duration::from_millis(250);
/// How long output is waited for once the child is gone.
const DRAIN: Duration = Duration::from_secs(2);

/// What to run and under which limits.
#[derive(Clone, Debug)]
pub(crate) struct AttemptPlan {
    pub(crate) attempt_id: String,
    pub(crate) child: ChildSpec,
    pub(crate) prompt: Bytes,
    pub(crate) deadlines: Deadlines,
    /// From TERM to KILL.
    pub(crate) cleanup_term: Duration,
}

/// The order to stop. A later order can only bring KILL forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) kill_at: Moment,
}

#[derive(Debug)]
pub(crate) enum AttemptEvent {
    /// A phase was reached; `next_deadline` is for people.
    Entered {
        phase: OncePhase,
        pid: Option<i32>,
        next_deadline: Option<Moment>,
    },
    Output(Chunk),
    /// The last event: every process is gone, or cannot be killed.
    Ended(Ending),
}

#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) cause: Cause,
    /// How the child itself ended; absent when it never started or could not be killed.
    pub(crate) exit: Option<Exit>,
    pub(crate) cleared: Cleared,
    pub(crate) process_started: bool,
    pub(crate) stderr_tail: String,
}

impl Ending {
    /// Nobody knows how far it came, so it counts as started.
    pub(crate) fn broken(cleared: Cleared) -> Self {
        Self {
            cause: Cause::Broken,
            exit: None,
            cleared,
            process_started: true,
            stderr_tail: String::new(),
        }
    }
}

/// What ended the attempt: the first of these that happened.
#[derive(Debug)]
pub(crate) enum Cause {
    NotStarted(SpawnError),
    Exited(Exit),
    Deadline(DeadlineKind),
    Stopped,
    /// The daemon's own fault: the task that ran the attempt died.
    Broken,
}

/// The attempt's lines to its supervisor.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) stop: watch::Receiver<Option<Stop>>,
    /// True while the relay is slower than the child: output stays in the pipe.
    pub(crate) hold_back: watch::Receiver<bool>,
    /// Bounded; when it is full the attempt waits, and so does its child.
    pub(crate) events: mpsc::Sender<(String, AttemptEvent)>,
}

/// Runs the attempt to its end. Dropping the future leaves the child to the spawner's last line.
pub(crate) async fn run(plan: AttemptPlan, lines: Lines, spawner: Spawner, clock: Clock) {
    let mut attempt = Attempt {
        timers: Timers::new(plan.deadlines),
        order: PhaseOrder::default(),
        coalescer: Coalescer::default(),
        plan,
        lines,
        clock,
    };
    let ending = attempt.live(&spawner).await;
    attempt.tell(AttemptEvent::Ended(ending)).await;
}

/// In place of a [`run`] that died: ends whatever the attempt left, and reports that as its end.
pub(crate) async fn bury(
    attempt_id: String,
    events: mpsc::Sender<(String, AttemptEvent)>,
    clock: Clock,
) {
    let cleared = kill_marked(ATTEMPT_MARKER, &attempt_id, &clock).await;
    // Without a supervisor there is nobody to tell.
    let _ = events
        .send((attempt_id, AttemptEvent::Ended(Ending::broken(cleared))))
        .await;
}

struct Attempt {
    plan: AttemptPlan,
    lines: Lines,
    clock: Clock,
    timers: Timers,
    order: PhaseOrder,
    coalescer: Coalescer,
}

/// The child while it is there.
struct Running {
    spawned: Spawned,
    pipes: Pipes,
    exit: Option<Exit>,
}

impl Attempt {
    async fn live(&mut self, spawner: &Spawner) -> Ending {
        self.enter(OncePhase::Started, None).await;
        match self.start(spawner).await {
            Ok(mut running) => {
                let pid = running.spawned.id;
                self.enter(OncePhase::AgentStarted, Some(pid)).await;
                let cause = self.follow(&mut running).await;
                self.end(running, cause).await
            }
            Err(cause) => Ending {
                cause,
                exit: None,
                cleared: Cleared {
                    empty: true,
                    ..Cleared::default()
                },
                process_started: false,
                stderr_tail: String::new(),
            },
        }
    }

    async fn start(&mut self, spawner: &Spawner) -> Result<Running, Cause> {
        let deadline = self.timers.next_deadline();
        let spawned = tokio::select! {
            biased;
            () = ordered(&mut self.lines.stop) => return Err(Cause::Stopped),
            spawned = spawner.spawn(self.plan.child.clone()) => spawned,
            () = self.clock.sleep_until_some(deadline) => {
                return Err(Cause::Deadline(DeadlineKind::ProcessStart));
            }
        };
        let mut spawned = spawned.map_err(Cause::NotStarted)?;
        let pipes = Pipes::take(&mut spawned.child, self.plan.prompt.clone());
        Ok(Running {
            spawned,
            pipes,
            exit: None,
        })
    }

    /// Until the child exits, a deadline passes or the order to stop comes.
    async fn follow(&mut self, running: &mut Running) -> Cause {
        loop {
            self.send_due_output().await;
            if let Some(cause) = self.ended(running) {
                return cause;
            }
            let wake = earliest(self.timers.next_deadline(), self.coalescer.due_at());
            let reading = !*self.lines.hold_back.borrow_and_update();
            self.timers.hold_back(!reading, self.clock.now());
            tokio::select! {
                exit = running.spawned.wait() => running.exit = Some(exit),
                event = running.pipes.next(reading) => self.on_pipe(event, running).await,
                Ok(()) = self.lines.hold_back.changed() => {}
                () = ordered(&mut self.lines.stop) => {}
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
    }

    /// An exit that has already happened wins over a deadline or an order of the same moment.
    fn ended(&self, running: &mut Running) -> Option<Cause> {
        let expired = self.timers.expired(self.clock.now());
        let stopped = self.lines.stop.borrow().is_some();
        if running.exit.is_none() && (expired.is_some() || stopped) {
            running.exit = running.spawned.ended();
        }
        match (running.exit, stopped, expired) {
            (Some(exit), _, _) => Some(Cause::Exited(exit)),
            (None, true, _) => Some(Cause::Stopped),
            (None, false, Some(kind)) => Some(Cause::Deadline(kind)),
            (None, false, None) => None,
        }
    }

    async fn on_pipe(&mut self, event: PipeEvent, running: &Running) {
        match event {
            // A child that wants no more of the prompt has as much as it will ever have.
            PipeEvent::PromptWritten | PipeEvent::PromptRefused => {
                self.enter(OncePhase::PromptWritten, None).await;
            }
            PipeEvent::Output { kind, length } => {
                self.enter_output_phases().await;
                let now = self.clock.now();
                self.timers
                    .apply(Fact::Activity { tool_call_id: None }, now);
                self.coalescer
                    .push(kind, &running.pipes.read_buffer(kind)[..length], now);
            }
            PipeEvent::Drained => {}
        }
    }

    /// Everything that a command prints is visible, so its first byte is both first events.
    async fn enter_output_phases(&mut self) {
        if self.order.reached(OncePhase::FirstVisibleEventSeen) {
            self.enter(OncePhase::Streaming, None).await;
            return;
        }
        self.enter(OncePhase::FirstEventSeen, None).await;
        self.enter(OncePhase::FirstVisibleEventSeen, None).await;
    }

    async fn end(&mut self, mut running: Running, cause: Cause) -> Ending {
        if running.exit.is_some() {
            self.settle(&mut running).await;
        }
        running.pipes.stop_writing();
        self.enter(OncePhase::CleanupStarted, None).await;
        let cleared = self.clean_up(&mut running).await;
        while let Some(chunk) = self.coalescer.take_rest() {
            self.tell(AttemptEvent::Output(chunk)).await;
        }
        self.enter(OncePhase::CleanupFinished, None).await;
        Ending {
            cause,
            exit: running.exit,
            cleared,
            process_started: true,
            stderr_tail: running.pipes.stderr_tail(),
        }
    }

    /// The child ended by itself: what it left in the pipes comes first, then its leftovers go.
    async fn settle(&mut self, running: &mut Running) {
        let until = self.clock.now().after(SETTLE);
        while !running.pipes.is_drained() && self.clock.now() < until {
            self.send_due_output().await;
            let wake = earliest(Some(until), self.coalescer.due_at());
            tokio::select! {
                event = running.pipes.next(true) => self.on_pipe(event, running).await,
                () = ordered(&mut self.lines.stop) => return,
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
    }

    /// Climbs the ladder while output is still read: a child blocked on a full pipe could not end.
    async fn clean_up(&mut self, running: &mut Running) -> Cleared {
        let by_grace = self.clock.now().after(self.plan.cleanup_term);
        let (kill_at, moves) = watch::channel(self.kill_at(by_grace));
        let family = Family::new(running.spawned.id, &self.plan.attempt_id);
        let clock = self.clock.clone();
        let ladder = clear(family, moves, &clock);
        tokio::pin!(ladder);
        let mut cleared: Option<Cleared> = None;
        let mut drain_until = running.exit.map(|_| self.clock.now().after(DRAIN));
        loop {
            self.send_due_output().await;
            if let Some(cleared) = cleared
                && is_over(running, cleared, drain_until, self.clock.now())
            {
                return cleared;
            }
            let wake = earliest(drain_until, self.coalescer.due_at());
            let reading = running.exit.is_some() || !*self.lines.hold_back.borrow_and_update();
            tokio::select! {
                done = &mut ladder, if cleared.is_none() => cleared = Some(done),
                exit = running.spawned.wait(), if running.exit.is_none() => {
                    running.exit = Some(exit);
                    drain_until = Some(self.clock.now().after(DRAIN));
                }
                event = running.pipes.next(reading) => self.on_pipe(event, running).await,
                Ok(()) = self.lines.hold_back.changed() => {}
                Ok(()) = self.lines.stop.changed() => {
                    kill_at.send_replace(self.kill_at(by_grace));
                }
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
    }

    fn kill_at(&self, by_grace: Moment) -> Moment {
        self.lines
            .stop
            .borrow()
            .map_or(by_grace, |stop| stop.kill_at)
    }

    async fn send_due_output(&mut self) {
        while let Some(chunk) = self.coalescer.take_due(self.clock.now()) {
            self.tell(AttemptEvent::Output(chunk)).await;
        }
    }

    async fn enter(&mut self, phase: OncePhase, process: Option<ProcessId>) {
        if !self.order.enter(phase) {
            return;
        }
        self.timers.apply(Fact::Entered(phase), self.clock.now());
        let next_deadline = self.timers.next_deadline();
        let pid = process.map(|id| id.pid);
        self.tell(AttemptEvent::Entered {
            phase,
            pid,
            next_deadline,
        })
        .await;
    }

    async fn tell(&self, event: AttemptEvent) {
        // Without a supervisor there is nobody to tell; the processes are still ended properly.
        let _ = self
            .lines
            .events
            .send((self.plan.attempt_id.clone(), event))
            .await;
    }
}

/// Over when the ladder is climbed and the child's exit and output are in, or will never be.
fn is_over(running: &Running, cleared: Cleared, drain_until: Option<Moment>, now: Moment) -> bool {
    match (cleared.empty, drain_until) {
        (true, Some(until)) => running.pipes.is_drained() || now >= until,
        // The child is dead and its exit on the way.
        (true, None) => false,
        (false, _) => true,
    }
}

/// Returns once an order to stop stands. Cancel safe.
async fn ordered(stop: &mut watch::Receiver<Option<Stop>>) {
    if stop.wait_for(Option::is_some).await.is_err() {
        // No supervisor, no orders.
        std::future::pending::<()>().await;
    }
}

fn earliest(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
