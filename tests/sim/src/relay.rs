//! The relay around the real core: its loop, its gate and its store, as the shell has them, and its crashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_core::Core;
use baton_core::config::Config;
use baton_core::effects::{Downstream, Effects, Outgoing, Send, Settlement, Write};
use baton_core::gate::Gate;
use baton_core::id::{AttemptId, DaemonId, Incarnation, RequestId, SessionId, TaskId};
use baton_core::input::Input;
use baton_core::time::{Moment, Now};
use uuid::Uuid;

use crate::links::Up;
use crate::outputs::Outputs;
use crate::shown::{shown, shown_write};
use crate::store::Store;
use crate::world::{Event, World};

/// A disk that fails does so after some hundred commits.
const DISK_ERROR_ONE_IN: u64 = 150;

pub(crate) struct Relay {
    config: Config,
    pub(crate) core: Option<Core>,
    pub(crate) boot: u64,
    /// Which life of the data this is.
    pub(crate) incarnation: u128,
    /// The data were replaced: the relay does not know what was granted last. Said at each start until the hold that
    /// follows from it is durable, as the shell does.
    pub(crate) inherits: bool,
    /// The newest task of that hold.
    hold: Option<TaskId>,
    /// How long it believes to have run before this run.
    earlier_ms: u64,
    /// What virtual time is called in this run: moments begin anywhere.
    offset: u64,
    born: u64,
    gate: Gate<u64>,
    pub(crate) store: Store,
    /// Inputs, and of a frame which word of its attempt it is.
    pub(crate) inbox: VecDeque<(Input, Option<u64>)>,
    pub(crate) requests: VecDeque<Input>,
    writes: Vec<Write>,
    sends: Vec<Outgoing>,
    /// Numbers of the frames that it has heard in this run.
    pub(crate) heard: BTreeMap<AttemptId, u64>,
    /// Words that it has heard in this run, each in its turn.
    pub(crate) heard_words: BTreeSet<(AttemptId, u64)>,
    pub(crate) outputs: Outputs,
    /// Operators' words of the last minute.
    pub(crate) taken: Vec<crate::operators::Taken>,
    /// What agents hold.
    pub(crate) grants: crate::calls::Grants,
    pub(crate) stalled_until: u64,
    /// Counts the times that the loop was away, and whether this turn is the first after one.
    pub(crate) stall: u64,
    pub(crate) is_back: bool,
    back_at: u64,
    last_turn: u64,
    /// Daemons whose streams it took for open when it came back.
    pub(crate) connected_at_back: BTreeSet<DaemonId>,
    turn_at: Option<u64>,
    /// The disk does one thing after the other.
    disk_free_at: u64,
    durable: u64,
}

impl Relay {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            core: None,
            boot: 0,
            incarnation: 1,
            inherits: false,
            hold: None,
            earlier_ms: 0,
            offset: 0,
            born: 0,
            gate: Gate::default(),
            store: Store::default(),
            inbox: VecDeque::new(),
            requests: VecDeque::new(),
            writes: Vec::new(),
            sends: Vec::new(),
            heard: BTreeMap::new(),
            heard_words: BTreeSet::new(),
            outputs: Outputs::default(),
            taken: Vec::new(),
            grants: crate::calls::Grants::default(),
            stalled_until: 0,
            stall: 0,
            is_back: false,
            back_at: 0,
            last_turn: 0,
            connected_at_back: BTreeSet::new(),
            turn_at: None,
            disk_free_at: 0,
            durable: 0,
        }
    }

    fn moment(&self, now: u64) -> Moment {
        Moment(self.offset + (now - self.born))
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(Uuid::from_u128(self.incarnation))
    }

    pub(crate) fn forget_hold(&mut self) {
        self.hold = None;
    }

    /// Since when its loop has gone round without a break.
    pub(crate) fn awake_since(&self) -> u64 {
        self.born.max(self.back_at)
    }

    /// How long it believes to have run: a crash forgets what was not written.
    pub(crate) fn uptime_ms(&self, now: u64) -> u64 {
        self.earlier_ms + (now - self.born)
    }

    fn virtual_time(&self, at: Moment) -> u64 {
        self.born + at.0.saturating_sub(self.offset)
    }
}

/// The stream that ended by this input.
fn stream_of(input: &Input) -> Option<SessionId> {
    match input {
        Input::SessionClosed { session } => Some(*session),
        _ => None,
    }
}

fn welcome_of(effects: &Effects) -> Option<Vec<Settlement>> {
    effects
        .sends
        .iter()
        .find_map(|outgoing| match &outgoing.send {
            Send::ToSession {
                message: Downstream::Welcome { settlements, .. },
                ..
            } => Some(settlements.clone()),
            _ => None,
        })
}

impl World {
    pub(crate) fn start_relay(&mut self) {
        if self.relay.core.is_some() {
            return;
        }
        self.relay.boot += 1;
        self.relay.born = self.now;
        self.relay.offset = self.rng.below(1 << 40);
        self.relay.stalled_until = 0;
        self.relay.config = self.options.config(self.relay.incarnation, self.relay.boot);
        let holds = &self.relay.store.durable.scheduler.holds;
        let stored = holds.iter().any(|hold| Some(hold.upto) == self.relay.hold);
        self.relay.inherits &= !stored;
        if self.relay.inherits {
            self.relay.config.inherited_hold_ms = self.relay.config.longest_grant_ms();
        }
        let now = self.relay_now();
        let recovered = self.relay.store.durable.recovered();
        self.relay.earlier_ms = recovered.scheduler.uptime_ms;
        let boot = self.relay.boot;
        self.note(|| format!("relay starts, boot {boot}, {} tasks", recovered.tasks.len()));
        let (core, effects) =
            Core::recover(recovered, self.relay.config.clone(), now, &mut self.mint);
        self.relay.core = Some(core);
        self.watchers_return();
        self.collect(effects);
        if self.relay.inherits {
            let begun = self.relay.store.view.scheduler.holds.last();
            self.relay.hold = begun.map(|hold| hold.upto);
        }
        self.relay_finishes_turn();
    }

    fn relay_now(&self) -> Now {
        Now {
            at: self.relay.moment(self.now),
            wall: self.wall(),
        }
    }

    /// kill -9, or the power: what was not durable is gone, but for some that had just reached the disk.
    pub(crate) fn crash_relay(&mut self) {
        if self.relay.core.take().is_none() {
            return;
        }
        self.counts.restarts += 1;
        let uncommitted = self.relay.store.uncommitted();
        let kept = self.rng.index(uncommitted + 1);
        self.note(|| {
            format!("relay crashes; {kept} of {uncommitted} appends had reached the disk")
        });
        self.relay.store.crash(kept);
        self.relay.gate = Gate::default();
        self.relay.durable = 0;
        self.relay.disk_free_at = 0;
        self.relay.turn_at = None;
        self.relay.inbox.clear();
        self.relay.requests.clear();
        self.relay.writes.clear();
        self.relay.sends.clear();
        self.relay.heard.clear();
        self.relay.heard_words.clear();
        self.relay.outputs.crash(&mut self.rng);
        self.clients.forget_requests();
        for conn in 0..self.conns.len() {
            self.relay_dies(conn);
        }
        let longest = if self.options.quick_boots {
            1_500
        } else {
            40_000
        };
        let down = self.rng.between(10, longest);
        self.at(self.now + down, Event::Boot);
    }

    /// Something came in on a stream; the loop will see it in its next turn.
    pub(crate) fn relay_hears(&mut self, conn: usize, item: Up) {
        if self.relay.core.is_none() || !self.conns[conn].relay_open {
            return;
        }
        let session = self.conns[conn].session;
        let (input, nth) = match item {
            Up::Hello(hello) => {
                self.conns[conn].greeted = true;
                (Input::SessionOpened { session, hello }, None)
            }
            Up::Input(input) => (input, None),
            // A result that came before its output is refused, and comes again in its place; other ends wait in the session.
            Up::Said { frame, ghost, .. } if ghost && self.is_early(&frame) => {
                match self.without_output(frame) {
                    Some(frame) => (Input::Frame(frame), None),
                    None => return,
                }
            }
            Up::Said { frame, nth, .. } => (Input::Frame(frame), nth),
            Up::Output(chunk) => return self.relay_takes(conn, &chunk),
            Up::End => {
                self.conns[conn].relay_open = false;
                (Input::SessionClosed { session }, None)
            }
        };
        self.relay.inbox.push_back((input, nth));
        self.wake_relay();
    }

    pub(crate) fn ask(&mut self, make: impl FnOnce(RequestId) -> Input) -> Option<RequestId> {
        self.relay.core.as_ref()?;
        let request = RequestId(self.clients.next_request());
        self.relay.requests.push_back(make(request));
        self.wake_relay();
        Some(request)
    }

    pub(crate) fn relay_is_called(&mut self, input: Input) {
        self.relay.inbox.push_back((input, None));
        self.wake_relay();
    }

    pub(crate) fn wake_relay(&mut self) {
        // A busy loop takes several at once.
        let busy = if self.rng.chance(20) {
            self.rng.below(30)
        } else {
            0
        };
        self.want_turn(self.now + busy);
    }

    fn want_turn(&mut self, at: u64) {
        let at = at.max(self.now).max(self.relay.stalled_until);
        if self.relay.turn_at.is_none_or(|planned| at < planned) {
            self.relay.turn_at = Some(at);
            self.at(at, Event::Turn);
        }
    }

    pub(crate) fn turn_due(&mut self) {
        if self.relay.turn_at != Some(self.now) || self.relay.core.is_none() {
            return;
        }
        self.relay.turn_at = None;
        if self.now < self.relay.stalled_until {
            return self.want_turn(self.relay.stalled_until);
        }
        self.note_stall();
        while let Some((input, nth)) = self.relay.inbox.pop_front() {
            self.relay_handles(input, nth);
        }
        let due = self.relay.core.as_ref().and_then(Core::next_deadline);
        if due.is_some_and(|due| due <= self.relay.moment(self.now)) {
            self.relay_handles(Input::Tick, None);
        }
        while let Some(request) = self.relay.requests.pop_front() {
            self.relay_handles(request, None);
        }
        self.relay.is_back = false;
        self.relay_finishes_turn();
    }

    fn note_stall(&mut self) {
        let away = self.now - self.relay.last_turn.max(self.relay.born);
        self.relay.last_turn = self.now;
        self.relay.is_back = away > self.relay.config.stall_ms;
        if self.relay.is_back {
            self.relay.stall += 1;
            self.relay.back_at = self.now;
            let known = self.conns.iter().filter(|conn| conn.known);
            let daemons = known.map(|conn| self.daemons[conn.daemon].id);
            self.relay.connected_at_back = daemons.collect();
        }
    }

    fn relay_finishes_turn(&mut self) {
        self.append();
        for outgoing in std::mem::take(&mut self.relay.sends) {
            if let Some(send) = self.relay.gate.admit(outgoing) {
                self.perform(send);
            }
        }
        let Some(core) = &self.relay.core else {
            return;
        };
        match core.next_deadline() {
            Some(due) => {
                // A deadline that stays in the past would turn for ever without time passing.
                let at = self.relay.virtual_time(due).max(self.now + 1);
                // Nor does a busy loop look at the very moment: what comes meanwhile is heard first.
                let busy = !self.options.calm && self.rng.chance(20);
                let late = if busy { self.rng.below(40) } else { 0 };
                self.want_turn(at + late);
            }
            None => {
                let waits = self
                    .relay
                    .store
                    .view
                    .live
                    .values()
                    .find(|r| r.attention.is_none());
                assert!(waits.is_none(), "L1: no timer is armed and {waits:?} waits");
            }
        }
    }

    fn append(&mut self) {
        let writes = std::mem::take(&mut self.relay.writes);
        if writes.is_empty() {
            return;
        }
        let tasks: Vec<TaskId> = writes.iter().filter_map(Write::task).collect();
        let seq = self.relay.store.append(writes);
        self.relay.gate.appended(seq);
        tasks
            .into_iter()
            .for_each(|task| self.relay.gate.wrote(task, seq));
        let slow = self.options.slow_disk && !self.healing && self.rng.chance(15);
        let took = if slow {
            self.rng.between(100, 8_000)
        } else {
            self.rng.below(4)
        };
        self.relay.disk_free_at = self.relay.disk_free_at.max(self.now) + took;
        let boot = self.relay.boot;
        self.at(self.relay.disk_free_at, Event::Commit { boot, seq });
    }

    pub(crate) fn committed(&mut self, boot: u64, seq: u64) {
        if boot != self.relay.boot || self.relay.core.is_none() {
            return;
        }
        if self.options.disk_errors && !self.healing && self.rng.below(DISK_ERROR_ONE_IN) == 0 {
            self.counts.disk_errors += 1;
            self.note(|| "the disk refuses a commit".into());
            return self.crash_relay();
        }
        self.relay.store.commit(seq);
        self.relay.durable = seq;
        if self.now < self.relay.stalled_until {
            // The loop is away; it sees the commit when it is back.
            let until = self.relay.stalled_until;
            return self.at(until, Event::Commit { boot, seq });
        }
        for send in self.relay.gate.release(seq) {
            self.perform(send);
        }
    }

    /// One input, completed as the shell does it, decided by the core, and judged.
    fn relay_handles(&mut self, mut input: Input, nth: Option<u64>) {
        self.counts.inputs += 1;
        if let Some(core) = &self.relay.core {
            core.load_finished(&mut input, &self.relay.store.view);
        }
        self.note(|| shown(&input));
        self.note_signs(&input);
        let before = self.before(&input, nth);
        let now = self.relay_now();
        let Some(core) = &mut self.relay.core else {
            return;
        };
        let named = stream_of(&input);
        let effects = core.handle(input, now, &mut self.mint);
        self.note_streams(named, &effects);
        self.note_grants(&effects);
        self.judge_operated(&before, &effects);
        let welcome = welcome_of(&effects);
        self.hand_over(&effects);
        self.judge_asking(before.asking.as_ref(), &effects);
        self.hand_on(effects);
        self.judge(before, welcome);
        self.check_bounds();
    }

    fn collect(&mut self, effects: Effects) {
        self.hand_over(&effects);
        self.hand_on(effects);
    }

    /// Every write is judged by what was written before it.
    fn hand_over(&mut self, effects: &Effects) {
        for count in &effects.counts {
            self.count_odd(count);
        }
        self.check_removals(&effects.writes);
        for write in &effects.writes {
            self.note(|| shown_write(write));
            self.note_confirmed(write);
            self.check_given_up(write);
            self.counts.fences += u64::from(matches!(write, Write::PutFence(_)));
            self.relay.store.hand_over(write);
        }
    }

    fn hand_on(&mut self, effects: Effects) {
        self.relay.writes.extend(effects.writes);
        self.relay.sends.extend(effects.sends);
    }
}
