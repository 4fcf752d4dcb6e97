//! Random histories: lost streams, slow networks, dying daemons, rebooting machines and a relay that is killed, against
//! a model of worker machines that only follow the protocol.
//!
//! Checked after every step: no two processes of one task or conversation are alive at the same time (promise 3), and
//! whatever `World` checks. At the end faults stop, and everything must come to rest (promise 6).

mod dice;
mod machine;

use std::collections::BTreeMap;

use dice::Dice;
use machine::{Packet, Worker};

use super::world::{World, spec};
use crate::effects::Send;
use crate::id::TaskId;
use crate::input::Input;
use crate::record::TaskState;
use crate::spec::{TaskSpec, WhenUnsafe};
use crate::time::Moment;

struct Sim {
    world: World,
    dice: Dice,
    workers: Vec<Worker>,
    /// On their way, by arrival; ties in the order of sending.
    net: BTreeMap<(Moment, u64), Packet>,
    sent: u64,
    faults: bool,
    tasks: Vec<TaskId>,
    completed: usize,
    restarts: usize,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let workers = (1..=3).map(Worker::new).collect();
        let mut sim = Self {
            world: World::new(),
            dice,
            workers,
            net: BTreeMap::new(),
            sent: 0,
            faults: true,
            tasks: Vec::new(),
            completed: 0,
            restarts: 0,
        };
        for n in 0..3 {
            sim.connect(n);
        }
        sim
    }

    /// Tells the core, or kills it before anything of this turn became durable.
    fn say(&mut self, input: Input) {
        if self.faults && self.dice.one_in(400) {
            self.restarts += 1;
            self.world.restart_here();
            self.cut_all();
            return;
        }
        self.world.say(input);
        self.take_sends();
    }

    fn cut_all(&mut self) {
        self.world.sent.clear();
        self.net.clear();
        for worker in &mut self.workers {
            worker.session = None;
        }
    }

    fn take_sends(&mut self) {
        for send in std::mem::take(&mut self.world.sent) {
            match send {
                Send::ToSession { session, message } => {
                    if let Some(n) = self.workers.iter().position(|w| w.session == Some(session)) {
                        self.post(Packet::Down {
                            worker: n,
                            session,
                            message,
                        });
                    }
                }
                Send::CloseSession { session, .. } => {
                    for worker in self
                        .workers
                        .iter_mut()
                        .filter(|w| w.session == Some(session))
                    {
                        worker.session = None;
                    }
                }
                Send::Reply { .. } | Send::Published { .. } => {}
            }
        }
        self.world.dispatches();
    }

    /// In order within one direction of a worker's stream, after a random delay.
    fn post(&mut self, packet: Packet) {
        let delay = if self.dice.one_in(8) {
            self.dice.below(3_000)
        } else {
            self.dice.below(20)
        };
        let mut at = self.world.now.at + delay;
        for ((arrival, _), other) in &self.net {
            if other.lane() == packet.lane() {
                at = at.max(*arrival);
            }
        }
        self.sent += 1;
        self.net.insert((at, self.sent), packet);
    }

    fn connect(&mut self, n: usize) {
        let session = crate::id::SessionId(crate::time::Mint::id(&mut self.world.mint));
        let worker = &mut self.workers[n];
        worker.session = Some(session);
        let hello = worker.hello(&self.world);
        self.post(Packet::Up {
            worker: n,
            input: Input::SessionOpened {
                session,
                hello: Box::new(hello),
            },
        });
    }

    fn disconnect(&mut self, n: usize) {
        let Some(session) = self.workers[n].session.take() else {
            return;
        };
        self.net.retain(|_, packet| packet.worker() != n);
        self.post(Packet::Up {
            worker: n,
            input: Input::SessionClosed { session },
        });
    }

    /// One step of time: whatever arrives, whatever is due, and every worker's own clock.
    fn step(&mut self) {
        let ms = 1 + if self.dice.one_in(20) {
            self.dice.below(4_000)
        } else {
            self.dice.below(200)
        };
        let end = self.world.now.at + ms;
        loop {
            let arrival = self.net.first_key_value().map(|((at, _), _)| *at);
            let due = self.world.core.next_deadline();
            let limit = self.workers.iter().filter_map(Worker::next_limit).min();
            let next = [arrival, due, limit]
                .into_iter()
                .flatten()
                .min()
                .filter(|at| *at <= end);
            let Some(at) = next else { break };
            self.world.jump(at.since(self.world.now.at));
            let now = self.world.now.at;
            self.workers
                .iter_mut()
                .for_each(|worker| worker.kill_at_limits(now));
            if arrival == Some(at) {
                let (_, packet) = self.net.pop_first().expect("it arrives");
                self.deliver(packet);
            } else if due == Some(at) || due.is_some_and(|due| due <= now) {
                self.world.jump(u64::from(due == Some(now)));
                self.say(Input::Tick);
            }
            self.check();
        }
        self.world.jump(end.since(self.world.now.at));
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Up { input, .. } => {
                let input = self.with_finished(input);
                self.say(input);
            }
            Packet::Down {
                worker: n,
                session,
                message,
            } => {
                if self.workers[n].session == Some(session) {
                    let quiet = !self.faults;
                    let answers =
                        self.workers[n].hear(message, self.world.now, quiet, &mut self.dice);
                    self.send_up(n, answers);
                }
            }
        }
    }

    /// What the shell does: finished tasks are loaded for inputs that name them.
    fn with_finished(&self, mut input: Input) -> Input {
        match &mut input {
            Input::Frame(frame) => frame.finished = self.world.store.finished(frame.re.task),
            Input::SessionOpened { hello, .. } => {
                for active in &mut hello.active {
                    active.finished = self.world.store.finished(active.re.task);
                }
            }
            _ => {}
        }
        input
    }

    fn send_up(&mut self, n: usize, inputs: Vec<Input>) {
        for input in inputs {
            self.post(Packet::Up { worker: n, input });
        }
    }

    fn act(&mut self) {
        let n = usize::try_from(self.dice.below(3)).expect("small");
        let now = self.world.now;
        match self.dice.below(16) {
            0..=2 if self.tasks.len() < 40 => self.submit(),
            3 if self.faults && !self.tasks.is_empty() => self.ask_something(),
            4 if self.faults => self.disconnect(n),
            5 if self.faults && self.dice.one_in(6) => {
                self.disconnect(n);
                self.workers[n].restart(self.dice.one_in(3));
            }
            6..=9 if self.workers[n].session.is_none() => self.connect(n),
            6..=9 => {
                let inputs = self.workers[n].beat(now);
                self.send_up(n, inputs);
            }
            _ => {
                let inputs = self.workers[n].work(&self.world, &mut self.dice);
                self.send_up(n, inputs);
            }
        }
    }

    fn submit(&mut self) {
        let mut spec = TaskSpec {
            lease_ttl_ms: 5_000 + self.dice.below(20_000),
            ..spec()
        };
        spec.conversation_id = self
            .dice
            .one_in(2)
            .then(|| format!("c{}", self.dice.below(4)));
        spec.retry.when_unsafe = [WhenUnsafe::Park, WhenUnsafe::Retry, WhenUnsafe::Fail]
            [usize::try_from(self.dice.below(3)).expect("small")];
        spec.effective_profile.stream_idle_ms = self.dice.one_in(3).then_some(9_000);
        spec.total_ms = Some(600_000);
        let task = TaskId(crate::time::Mint::id(&mut self.world.mint));
        let submit = crate::input::Submit {
            request: crate::id::RequestId(0),
            task,
            spec: std::sync::Arc::new(spec),
            digest: [0; 32],
            prior: None,
        };
        self.say(Input::Submit(submit));
        self.tasks
            .extend(self.world.store.specs.contains_key(&task).then_some(task));
    }

    fn ask_something(&mut self) {
        let place = usize::try_from(self.dice.below(self.tasks.len() as u64)).expect("small");
        let task = self.tasks[place];
        let (request, by, reason) = (crate::id::RequestId(0), super::world::actor(), None);
        let (tenant, finished) = (
            crate::samples::tenant("acme"),
            self.world.store.finished(task),
        );
        if self.dice.one_in(3) {
            self.say(Input::Cancel {
                request,
                tenant,
                task,
                by,
                reason,
                finished,
            });
        } else {
            self.say(Input::Retry {
                request,
                tenant,
                task,
                by,
                reason,
                finished,
            });
        }
    }

    fn check(&self) {
        let (mut tasks, mut talks) = (BTreeMap::new(), BTreeMap::new());
        for alive in self.workers.iter().flat_map(Worker::alive) {
            let (task, attempt) = (alive.task, alive.attempt);
            if let Some(other) = tasks.insert(task, attempt) {
                panic!("attempts {other} and {attempt} of {task} run at the same time");
            }
            if let Some(talk) = &self.world.store.specs[&task].conversation_id
                && let Some(other) = talks.insert(talk.clone(), attempt)
            {
                panic!("attempts {other} and {attempt} run at the same time in {talk}");
            }
        }
    }

    /// No more faults: everything comes to rest within the sum of its deadlines.
    fn rest(&mut self) {
        self.faults = false;
        for _ in 0..60_000 {
            for n in 0..3 {
                if self.workers[n].session.is_none() {
                    self.connect(n);
                }
                let inputs = self.workers[n].beat(self.world.now);
                self.send_up(n, inputs);
                let inputs = self.workers[n].finish_all(&self.world);
                self.send_up(n, inputs);
            }
            for _ in 0..20 {
                self.step();
            }
            if self
                .world
                .store
                .live
                .values()
                .all(|record| record.state == TaskState::NeedsAttention)
            {
                return;
            }
        }
        let stuck = self
            .world
            .store
            .live
            .values()
            .find(|record| record.state != TaskState::NeedsAttention);
        panic!("something waits for ever: {stuck:#?}");
    }
}

fn run(seed: u64) -> (usize, usize, usize) {
    let mut sim = Sim::new(seed);
    for _ in 0..600 {
        sim.act();
        sim.step();
    }
    sim.rest();
    sim.completed = sim
        .world
        .store
        .done
        .values()
        .filter(|record| record.state == TaskState::Completed)
        .count();
    for record in sim.world.store.done.values() {
        let results = record
            .attempts
            .iter()
            .filter(|a| a.state.name().as_str() == "completed")
            .count();
        assert!(results <= 1, "two results in {}", record.task);
    }
    let attempts = sim
        .world
        .store
        .done
        .values()
        .map(|record| record.attempts.len())
        .sum();
    (sim.completed, attempts, sim.restarts)
}

#[test]
fn two_attempts_never_run_at_once_and_nothing_waits_for_ever_whatever_fails() {
    let (mut completed, mut attempts, mut restarts) = (0, 0, 0);
    for seed in 1..=seeds() {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok((done, tried, killed)) = ran else {
            panic!("seed {seed} fails")
        };
        (completed, attempts, restarts) = (completed + done, attempts + tried, restarts + killed);
    }
    // A run in which nothing happened would prove nothing.
    assert!(
        completed > 1_000 && attempts > completed && restarts > 100,
        "{completed} {attempts} {restarts}"
    );
}

fn seeds() -> u64 {
    std::env::var("BATON_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150)
}
