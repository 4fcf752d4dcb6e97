//! Tasks that wait for a daemon, in the order in which they are to be placed.
//!
//! Order: priority first, then tenants in turn, then first come, first served. Tasks of one conversation go one
//! at a time, in their order. Equal needs form a class: one that nobody can take now is skipped as a whole, so a
//! hundred thousand tasks that cannot be placed cost nothing. It knows no daemons and decides no placement.

mod claims;
mod lanes;

#[cfg(test)]
#[path = "queue/fairness_tests.rs"]
mod fairness_tests;
#[cfg(test)]
#[path = "queue/queue_tests.rs"]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::conversation::ConversationKey;
use crate::id::{DaemonId, TaskId, TenantId};
use crate::requirements::Requirements;
use crate::spec::TaskSpec;
use crate::time::Moment;

use claims::Claims;
use lanes::{ClassId, Lanes, Place, Seq};

/// One task that wants to be placed.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub task: TaskId,
    pub requirements: Requirements,
    pub priority: u8,
    pub conversation: Option<ConversationKey>,
    /// Where its previous attempt ran.
    pub prefer: Option<DaemonId>,
    pub takers: Takers,
}

/// Who may take a waiting task: daemons, to whom it is offered, or agents of a scope, who claim it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takers {
    Daemons,
    Agents(Arc<str>),
    /// Whoever comes first.
    Both(Arc<str>),
}

impl Takers {
    pub(crate) fn of(spec: &TaskSpec) -> Self {
        match spec.agent_scope.as_deref() {
            Some(scope) if spec.agent_held => Takers::Agents(scope.into()),
            Some(scope) => Takers::Both(scope.into()),
            None => Takers::Daemons,
        }
    }

    fn scope(&self) -> Option<&Arc<str>> {
        match self {
            Takers::Daemons => None,
            Takers::Agents(scope) | Takers::Both(scope) => Some(scope),
        }
    }

    fn are_daemons_too(&self) -> bool {
        match self {
            Takers::Daemons | Takers::Both(_) => true,
            Takers::Agents(_) => false,
        }
    }
}

/// The task whose turn it is, as placement needs it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub task: TaskId,
    pub requirements: Arc<Requirements>,
    pub conversation: Option<ConversationKey>,
    pub prefer: Option<DaemonId>,
    place: Place,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    conversation: Option<ConversationKey>,
    prefer: Option<DaemonId>,
    takers: Takers,
    standing: Standing,
}

/// Where a waiting task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// In its lane.
    InLine,
    /// Behind its conversation: an earlier turn waits or runs.
    Behind,
    /// Out of line for a reason of its own, until then at the latest.
    Aside(Moment),
}

#[derive(Debug)]
struct Class {
    requirements: Arc<Requirements>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct Turns {
    /// An attempt of the conversation is leased.
    busy: bool,
    /// By urgency, then as they were submitted: ids rise in that order, so a turn that is tried again keeps its place.
    order: BTreeSet<(Reverse<u8>, TaskId)>,
}

#[derive(Debug, Default)]
pub struct Queue {
    entries: BTreeMap<TaskId, Entry>,
    lanes: Lanes,
    claims: Claims,
    classes: BTreeMap<ClassId, Class>,
    class_ids: BTreeMap<Arc<Requirements>, ClassId>,
    conversations: BTreeMap<ConversationKey, Turns>,
    aside: BTreeSet<(Moment, TaskId)>,
    /// Those aside that another daemon could take.
    passed: BTreeSet<TaskId>,
    /// Classes that no daemon could take when they were last tried.
    stuck: BTreeSet<ClassId>,
    next_seq: u64,
    next_class: u64,
}

impl Queue {
    /// Puts it at the end of its line. A task that already waits keeps its place.
    pub fn push(&mut self, waiting: Waiting) {
        if self.entries.contains_key(&waiting.task) {
            return;
        }
        let tenant = waiting.requirements.tenant.clone();
        let class = self.class_for(waiting.requirements);
        self.next_seq += 1;
        let place = Place {
            priority: Reverse(waiting.priority),
            tenant,
            class,
            seq: Seq(self.next_seq),
        };
        let entry = Entry {
            place: place.clone(),
            conversation: waiting.conversation.clone(),
            prefer: waiting.prefer,
            takers: waiting.takers,
            standing: Standing::Behind,
        };
        self.entries.insert(waiting.task, entry);
        match waiting.conversation {
            None => self.line_up(waiting.task),
            Some(key) => {
                let turns = self.conversations.entry(key.clone()).or_default();
                turns.order.insert((place.priority, waiting.task));
                self.settle_turns(&key);
            }
        }
    }

    /// Takes it out, wherever it stands: placed, canceled or paused. False if it did not wait.
    pub fn remove(&mut self, task: TaskId) -> bool {
        self.step_out(task);
        let Some(entry) = self.entries.remove(&task) else {
            return false;
        };
        self.leave_class(entry.place.class);
        if let Some(key) = entry.conversation {
            if let Some(turns) = self.conversations.get_mut(&key) {
                let place = (entry.place.priority, task);
                turns.order.remove(&place);
            }
            self.settle_turns(&key);
        }
        true
    }

    /// Whose turn it is among those that somebody might take.
    pub fn first(&self) -> Option<Candidate> {
        let (place, task) = self.lanes.first()?;
        let entry = self.entries.get(&task)?;
        let class = self.classes.get(&place.class)?;
        Some(Candidate {
            task,
            requirements: class.requirements.clone(),
            conversation: entry.conversation.clone(),
            prefer: entry.prefer,
            place,
        })
    }

    /// It was placed: it leaves, and its tenant's turn is over.
    pub fn placed(&mut self, candidate: &Candidate) {
        self.lanes.turn_over(&candidate.place);
        self.remove(candidate.task);
    }

    /// Nobody can take this candidate's class now; it is skipped until `wake` names a daemon that meets it.
    pub fn skip_class(&mut self, candidate: &Candidate) {
        let id = candidate.place.class;
        if self.classes.contains_key(&id) {
            self.stuck.insert(id);
            self.lanes.skip(id);
        }
    }

    /// A daemon has become able to take work: classes that it meets are tried again, and tasks that were passed
    /// over if it would take them.
    pub fn wake(
        &mut self,
        mut meets: impl FnMut(&Requirements) -> bool,
        mut takes: impl FnMut(TaskId) -> bool,
    ) {
        let classes = &self.classes;
        let woken = |id: &ClassId| classes.get(id).is_some_and(|c| meets(&c.requirements));
        let woken: Vec<ClassId> = self.stuck.iter().copied().filter(woken).collect();
        for id in woken {
            self.stuck.remove(&id);
            self.lanes.unskip(id);
        }
        let tasks = self.passed.iter().copied();
        let tasks: Vec<TaskId> = tasks.filter(|task| takes(*task)).collect();
        tasks.into_iter().for_each(|task| self.recall(task));
    }

    /// The daemons that could take it have rejected it: out of line until then, or until another one comes.
    pub fn pass_over(&mut self, task: TaskId, until: Moment) {
        self.set_aside(task, until);
        self.passed.insert(task);
    }

    /// A fence stands: out of line until then, or until it falls.
    pub fn set_aside(&mut self, task: TaskId, until: Moment) {
        self.step_out(task);
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.standing = Standing::Aside(until);
            self.aside.insert((until, task));
            // What keeps daemons away need not keep an agent away; who claims it asks the fences.
            if let Some(scope) = entry.takers.scope() {
                self.claims.insert(&entry.place, scope, task);
            }
        }
    }

    /// Back in line, at its old place, before its time: the fence was lifted, or another daemon came.
    pub fn recall(&mut self, task: TaskId) {
        if matches!(self.standing(task), Some(Standing::Aside(_))) {
            self.step_out(task);
            self.line_up(task);
        }
    }

    /// The same for the turn of a conversation that is next.
    pub fn recall_conversation(&mut self, key: &ConversationKey) {
        let first = self.conversations.get(key).and_then(|t| t.order.first());
        if let Some((_, task)) = first.copied() {
            self.recall(task);
        }
    }

    /// Brings back everyone whose time aside is over.
    pub fn tick(&mut self, now: Moment) {
        while let Some((at, task)) = self.aside.first().copied() {
            if at > now {
                return;
            }
            self.recall(task);
        }
    }

    /// When `tick` has something to do.
    pub fn next(&self) -> Option<Moment> {
        self.aside.first().map(|(at, _)| *at)
    }

    /// An attempt of the conversation is leased: nothing else of it is placed.
    pub fn conversation_busy(&mut self, key: &ConversationKey) {
        self.conversations.entry(key.clone()).or_default().busy = true;
        self.settle_turns(key);
    }

    pub fn conversation_free(&mut self, key: &ConversationKey) {
        if let Some(turns) = self.conversations.get_mut(key) {
            turns.busy = false;
            self.settle_turns(key);
        }
    }

    /// What agents of this scope may claim, in the order in which daemons would be offered it.
    pub fn claimable<'a>(
        &'a self,
        tenant: &TenantId,
        scope: &str,
    ) -> impl Iterator<Item = TaskId> + 'a {
        self.claims.of(tenant, scope)
    }

    /// Whether a new turn of the conversation would have to wait for others.
    pub fn has_turns(&self, key: &ConversationKey) -> bool {
        let turns = self.conversations.get(key);
        turns.is_some_and(|turns| turns.busy || !turns.order.is_empty())
    }

    /// Whether it waits for an earlier turn of its conversation.
    pub fn is_behind(&self, task: TaskId) -> bool {
        self.standing(task) == Some(Standing::Behind)
    }

    pub fn contains(&self, task: TaskId) -> bool {
        self.entries.contains_key(&task)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn standing(&self, task: TaskId) -> Option<Standing> {
        self.entries.get(&task).map(|entry| entry.standing)
    }

    fn class_for(&mut self, requirements: Requirements) -> ClassId {
        if let Some(id) = self.class_ids.get(&requirements).copied() {
            if let Some(class) = self.classes.get_mut(&id) {
                class.waiting += 1;
            }
            return id;
        }
        self.next_class += 1;
        let id = ClassId(self.next_class);
        let requirements = Arc::new(requirements);
        self.class_ids.insert(requirements.clone(), id);
        let class = Class {
            requirements,
            waiting: 1,
        };
        self.classes.insert(id, class);
        id
    }

    fn leave_class(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else {
            return;
        };
        class.waiting -= 1;
        if class.waiting == 0 {
            self.class_ids.remove(&class.requirements);
            self.classes.remove(&id);
            self.stuck.remove(&id);
            self.lanes.unskip(id);
        }
    }

    /// Into its lane.
    fn line_up(&mut self, task: TaskId) {
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.standing = Standing::InLine;
            if entry.takers.are_daemons_too() {
                self.lanes.insert(&entry.place, task);
            }
            if let Some(scope) = entry.takers.scope() {
                self.claims.insert(&entry.place, scope, task);
            }
        }
    }

    /// Out of its lane or from aside; it then stands behind until something lines it up.
    fn step_out(&mut self, task: TaskId) {
        let Some(entry) = self.entries.get_mut(&task) else {
            return;
        };
        match entry.standing {
            Standing::InLine if entry.takers.are_daemons_too() => self.lanes.remove(&entry.place),
            Standing::Aside(until) => {
                self.aside.remove(&(until, task));
                self.passed.remove(&task);
            }
            Standing::InLine | Standing::Behind => {}
        }
        if let Some(scope) = entry.takers.scope() {
            self.claims.remove(&entry.place, scope);
        }
        entry.standing = Standing::Behind;
    }

    /// Exactly the first turn of an idle conversation is in line (or aside); the others stand behind it.
    fn settle_turns(&mut self, key: &ConversationKey) {
        let Some(turns) = self.conversations.get(key) else {
            return;
        };
        let mut order = turns.order.iter().map(|(_, task)| *task);
        let (first, second) = (order.next(), order.next());
        let next = first.filter(|_| !turns.busy);
        if turns.order.is_empty() && !turns.busy {
            self.conversations.remove(key);
        }
        // Only the first was ever let forward, and only one arrival can have come before it.
        for task in first.into_iter().chain(second).filter(|t| Some(*t) != next) {
            self.step_out(task);
        }
        if let Some(task) = next.filter(|task| self.is_behind(*task)) {
            self.line_up(task);
        }
    }
}
