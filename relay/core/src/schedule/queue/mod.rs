//! Tasks that wait for a daemon, in the order in which they are to be placed.
//!
//! Order: priority first, then tenants in turn, then first come, first served. Tasks of one conversation go one
//! at a time, in their order. Equal needs form a class: one that nobody can take now is skipped as a whole, so a
//! hundred thousand tasks that cannot be placed cost nothing. It knows no daemons and decides no placement.

mod claimable_tasks;
mod tenant_lanes;

#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod queue_tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{DaemonId, TaskId, TenantId};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::requirements::TaskRequirements;
use crate::task::spec::TaskSpec;
use crate::time::MonotonicTime;

use claimable_tasks::ClaimableTasks;
use tenant_lanes::{QueuePlace, QueueSeq, RequirementClassId, TenantLanes};

/// One task that wants to be placed.
#[derive(Clone, Debug)]
pub struct QueuedTask {
    pub task: TaskId,
    pub requirements: TaskRequirements,
    pub priority: u8,
    pub conversation: Option<ConversationKey>,
    /// Where its previous attempt ran.
    pub preferred_daemon: Option<DaemonId>,
    pub eligible_holders: EligibleHolders,
}

/// Who may take a waiting task: daemons, to whom it is offered, or agents of a scope, who claim it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EligibleHolders {
    Daemons,
    Agents(Arc<str>),
    /// Whoever comes first.
    Both(Arc<str>),
}

impl EligibleHolders {
    pub(crate) fn from_spec(spec: &TaskSpec) -> Self {
        match spec.agent_scope.as_deref() {
            Some(scope) if spec.agent_held => EligibleHolders::Agents(scope.into()),
            Some(scope) => EligibleHolders::Both(scope.into()),
            None => EligibleHolders::Daemons,
        }
    }

    fn scope(&self) -> Option<&Arc<str>> {
        match self {
            EligibleHolders::Daemons => None,
            EligibleHolders::Agents(scope) | EligibleHolders::Both(scope) => Some(scope),
        }
    }

    fn include_daemons(&self) -> bool {
        match self {
            EligibleHolders::Daemons | EligibleHolders::Both(_) => true,
            EligibleHolders::Agents(_) => false,
        }
    }
}

/// The task whose turn it is, as placement needs it.
#[derive(Clone, Debug)]
pub struct PlacementCandidate {
    pub task: TaskId,
    pub requirements: Arc<TaskRequirements>,
    pub conversation: Option<ConversationKey>,
    pub preferred_daemon: Option<DaemonId>,
    place: QueuePlace,
}

#[derive(Debug)]
struct QueueEntry {
    place: QueuePlace,
    conversation: Option<ConversationKey>,
    preferred_daemon: Option<DaemonId>,
    eligible_holders: EligibleHolders,
    position: QueuePosition,
}

/// Where a waiting task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// In its lane.
    Queued,
    /// Behind its conversation: an earlier turn waits or runs.
    BehindConversation,
    /// Out of line for a reason of its own, until then at the latest.
    Deferred(MonotonicTime),
}

#[derive(Debug)]
struct RequirementClass {
    requirements: Arc<TaskRequirements>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct ConversationTurns {
    /// An attempt of the conversation is leased.
    busy: bool,
    /// By urgency, then as they were submitted: ids rise in that order, so a turn that is tried again keeps its place.
    order: BTreeSet<(Reverse<u8>, TaskId)>,
}

#[derive(Debug, Default)]
pub struct TaskQueue {
    entries: BTreeMap<TaskId, QueueEntry>,
    lanes: TenantLanes,
    claims: ClaimableTasks,
    classes: BTreeMap<RequirementClassId, RequirementClass>,
    class_ids: BTreeMap<Arc<TaskRequirements>, RequirementClassId>,
    conversations: BTreeMap<ConversationKey, ConversationTurns>,
    deferred: BTreeSet<(MonotonicTime, TaskId)>,
    /// Those aside that another daemon could take.
    passed_over: BTreeSet<TaskId>,
    /// Classes that no daemon could take when they were last tried.
    skipped_classes: BTreeSet<RequirementClassId>,
    next_seq: u64,
    next_class: u64,
}

impl TaskQueue {
    /// Puts it at the end of its line. A task that already waits keeps its place.
    pub fn push(&mut self, waiting: QueuedTask) {
        if self.entries.contains_key(&waiting.task) {
            return;
        }
        let tenant = waiting.requirements.tenant.clone();
        let class = self.class_for(waiting.requirements);
        self.next_seq += 1;
        let place = QueuePlace {
            priority: Reverse(waiting.priority),
            tenant,
            class,
            seq: QueueSeq(self.next_seq),
        };
        let entry = QueueEntry {
            place: place.clone(),
            conversation: waiting.conversation.clone(),
            preferred_daemon: waiting.preferred_daemon,
            eligible_holders: waiting.eligible_holders,
            position: QueuePosition::BehindConversation,
        };
        self.entries.insert(waiting.task, entry);
        match waiting.conversation {
            None => self.enter_lane(waiting.task),
            Some(key) => {
                let turns = self.conversations.entry(key.clone()).or_default();
                turns.order.insert((place.priority, waiting.task));
                self.update_turns(&key);
            }
        }
    }

    /// Takes it out, wherever it stands: placed, canceled or paused. False if it did not wait.
    pub fn remove(&mut self, task: TaskId) -> bool {
        self.leave_lane(task);
        let Some(entry) = self.entries.remove(&task) else {
            return false;
        };
        self.leave_class(entry.place.class);
        if let Some(key) = entry.conversation {
            if let Some(turns) = self.conversations.get_mut(&key) {
                let place = (entry.place.priority, task);
                turns.order.remove(&place);
            }
            self.update_turns(&key);
        }
        true
    }

    /// Whose turn it is among those that somebody might take.
    pub fn first(&self) -> Option<PlacementCandidate> {
        let (place, task) = self.lanes.first()?;
        let entry = self.entries.get(&task)?;
        let class = self.classes.get(&place.class)?;
        Some(PlacementCandidate {
            task,
            requirements: class.requirements.clone(),
            conversation: entry.conversation.clone(),
            preferred_daemon: entry.preferred_daemon,
            place,
        })
    }

    /// It was placed: it leaves, and its tenant's turn is over.
    pub fn note_placed(&mut self, candidate: &PlacementCandidate) {
        self.lanes.end_tenant_turn(&candidate.place);
        self.remove(candidate.task);
    }

    /// Nobody can take this candidate's class now; it is skipped until `wake` names a daemon that meets it.
    pub fn skip_class(&mut self, candidate: &PlacementCandidate) {
        let id = candidate.place.class;
        if self.classes.contains_key(&id) {
            self.skipped_classes.insert(id);
            self.lanes.skip(id);
        }
    }

    /// A daemon has become able to take work: classes that it meets are tried again, and tasks that were passed
    /// over if it would take them.
    pub fn wake(
        &mut self,
        mut meets: impl FnMut(&TaskRequirements) -> bool,
        mut takes: impl FnMut(TaskId) -> bool,
    ) {
        let classes = &self.classes;
        let woken =
            |id: &RequirementClassId| classes.get(id).is_some_and(|c| meets(&c.requirements));
        let woken: Vec<RequirementClassId> =
            self.skipped_classes.iter().copied().filter(woken).collect();
        for id in woken {
            self.skipped_classes.remove(&id);
            self.lanes.unskip(id);
        }
        let tasks = self.passed_over.iter().copied();
        let tasks: Vec<TaskId> = tasks.filter(|task| takes(*task)).collect();
        tasks.into_iter().for_each(|task| self.requeue(task));
    }

    /// The daemons that could take it have rejected it: out of line until then, or until another one comes.
    pub fn pass_over(&mut self, task: TaskId, until: MonotonicTime) {
        self.defer_until(task, until);
        self.passed_over.insert(task);
    }

    /// A fence stands: out of line until then, or until it falls.
    pub fn defer_until(&mut self, task: TaskId, until: MonotonicTime) {
        self.leave_lane(task);
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.position = QueuePosition::Deferred(until);
            self.deferred.insert((until, task));
            // What keeps daemons away need not keep an agent away; who claims it asks the fences.
            if let Some(scope) = entry.eligible_holders.scope() {
                self.claims.insert(&entry.place, scope, task);
            }
        }
    }

    /// Back in line, at its old place, before its time: the fence was lifted, or another daemon came.
    pub fn requeue(&mut self, task: TaskId) {
        if matches!(self.position(task), Some(QueuePosition::Deferred(_))) {
            self.leave_lane(task);
            self.enter_lane(task);
        }
    }

    /// The same for the turn of a conversation that is next.
    pub fn requeue_conversation(&mut self, key: &ConversationKey) {
        let first = self.conversations.get(key).and_then(|t| t.order.first());
        if let Some((_, task)) = first.copied() {
            self.requeue(task);
        }
    }

    /// Brings back everyone whose time aside is over.
    pub fn tick(&mut self, now: MonotonicTime) {
        while let Some((at, task)) = self.deferred.first().copied() {
            if at > now {
                return;
            }
            self.requeue(task);
        }
    }

    /// When `tick` has something to do.
    pub fn next_requeue_at(&self) -> Option<MonotonicTime> {
        self.deferred.first().map(|(at, _)| *at)
    }

    /// An attempt of the conversation is leased: nothing else of it is placed.
    pub fn mark_conversation_busy(&mut self, key: &ConversationKey) {
        self.conversations.entry(key.clone()).or_default().busy = true;
        self.update_turns(key);
    }

    pub fn mark_conversation_free(&mut self, key: &ConversationKey) {
        if let Some(turns) = self.conversations.get_mut(key) {
            turns.busy = false;
            self.update_turns(key);
        }
    }

    /// What agents of this scope may claim, in the order in which daemons would be offered it.
    pub fn claimable<'a>(
        &'a self,
        tenant: &TenantId,
        scope: &str,
    ) -> impl Iterator<Item = TaskId> + 'a {
        self.claims.in_scope(tenant, scope)
    }

    /// Whether a new turn of the conversation would have to wait for others.
    pub fn has_turns(&self, key: &ConversationKey) -> bool {
        let turns = self.conversations.get(key);
        turns.is_some_and(|turns| turns.busy || !turns.order.is_empty())
    }

    /// Whether it waits for an earlier turn of its conversation.
    pub fn is_behind_conversation(&self, task: TaskId) -> bool {
        self.position(task) == Some(QueuePosition::BehindConversation)
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

    fn position(&self, task: TaskId) -> Option<QueuePosition> {
        self.entries.get(&task).map(|entry| entry.position)
    }

    fn class_for(&mut self, requirements: TaskRequirements) -> RequirementClassId {
        if let Some(id) = self.class_ids.get(&requirements).copied() {
            if let Some(class) = self.classes.get_mut(&id) {
                class.waiting += 1;
            }
            return id;
        }
        self.next_class += 1;
        let id = RequirementClassId(self.next_class);
        let requirements = Arc::new(requirements);
        self.class_ids.insert(requirements.clone(), id);
        let class = RequirementClass {
            requirements,
            waiting: 1,
        };
        self.classes.insert(id, class);
        id
    }

    fn leave_class(&mut self, id: RequirementClassId) {
        let Some(class) = self.classes.get_mut(&id) else {
            return;
        };
        class.waiting -= 1;
        if class.waiting == 0 {
            self.class_ids.remove(&class.requirements);
            self.classes.remove(&id);
            self.skipped_classes.remove(&id);
            self.lanes.unskip(id);
        }
    }

    /// Into its lane.
    fn enter_lane(&mut self, task: TaskId) {
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.position = QueuePosition::Queued;
            if entry.eligible_holders.include_daemons() {
                self.lanes.insert(&entry.place, task);
            }
            if let Some(scope) = entry.eligible_holders.scope() {
                self.claims.insert(&entry.place, scope, task);
            }
        }
    }

    /// Out of its lane or from aside; it then stands behind until something lines it up.
    fn leave_lane(&mut self, task: TaskId) {
        let Some(entry) = self.entries.get_mut(&task) else {
            return;
        };
        match entry.position {
            QueuePosition::Queued if entry.eligible_holders.include_daemons() => {
                self.lanes.remove(&entry.place)
            }
            QueuePosition::Deferred(until) => {
                self.deferred.remove(&(until, task));
                self.passed_over.remove(&task);
            }
            QueuePosition::Queued | QueuePosition::BehindConversation => {}
        }
        if let Some(scope) = entry.eligible_holders.scope() {
            self.claims.remove(&entry.place, scope);
        }
        entry.position = QueuePosition::BehindConversation;
    }

    /// Exactly the first turn of an idle conversation is in line (or aside); the others stand behind it.
    fn update_turns(&mut self, key: &ConversationKey) {
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
            self.leave_lane(task);
        }
        if let Some(task) = next.filter(|task| self.is_behind_conversation(*task)) {
            self.enter_lane(task);
        }
    }
}
