//! Tasks that wait for a daemon, in the order in which they are to be placed.
//!
//! Order: priority first, then tenants in turn, then oldest first. Tasks of one conversation
//! are placed one at a time, in their order. Tasks with equal requirements form a class. A
//! class that no daemon can take now is skipped as a whole, so a hundred thousand tasks that
//! cannot be placed cost nothing. The queue has no daemon state and makes no placement
//! decisions.

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

/// One task to be placed.
#[derive(Clone, Debug)]
pub struct QueuedTask {
    pub task: TaskId,
    pub requirements: TaskRequirements,
    pub priority: u8,
    pub conversation: Option<ConversationKey>,
    /// The daemon that ran its previous attempt.
    pub preferred_daemon: Option<DaemonId>,
    pub eligible_holders: EligibleHolders,
}

/// The kinds of holders that may take a queued task: daemons, which get offers, or agents of a
/// scope, which claim it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EligibleHolders {
    Daemons,
    Agents(Arc<str>),
    /// The first daemon or agent that takes it.
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

/// The task that is next, with the data that placement needs.
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

/// The position of a queued task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// In its lane, ready to be placed.
    Queued,
    /// Waits for an earlier turn of its conversation, which is queued or running.
    BehindConversation,
    /// Not in a lane until this time at the latest, because of a fence or a rejection.
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
    /// By priority, then by submission. Task ids rise in that order, so a turn that is tried
    /// again keeps its position.
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
    /// Deferred tasks that another daemon could take.
    passed_over: BTreeSet<TaskId>,
    /// Classes that no daemon could take at the last try.
    skipped_classes: BTreeSet<RequirementClassId>,
    next_seq: u64,
    next_class: u64,
}

impl TaskQueue {
    /// Adds a task behind the tasks of equal rank. A task that is already queued keeps its
    /// position.
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

    /// Removes a task that was placed, canceled or paused. Returns false if it was not queued.
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

    /// The next task, skipped classes and deferred tasks excluded.
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

    /// Removes a placed task and ends the turn of its tenant.
    pub fn note_placed(&mut self, candidate: &PlacementCandidate) {
        self.lanes.end_tenant_turn(&candidate.place);
        self.remove(candidate.task);
    }

    /// No daemon can take the class of this candidate now. It is skipped until `wake` finds a
    /// daemon that meets it.
    pub fn skip_class(&mut self, candidate: &PlacementCandidate) {
        let id = candidate.place.class;
        if self.classes.contains_key(&id) {
            self.skipped_classes.insert(id);
            self.lanes.skip(id);
        }
    }

    /// A daemon has become available: classes whose requirements it meets are tried again, and
    /// so are tasks that were passed over, if it would take them.
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

    /// The available daemons have rejected the task: defers it until this time, or until
    /// another daemon becomes available.
    pub fn pass_over(&mut self, task: TaskId, until: MonotonicTime) {
        self.defer_until(task, until);
        self.passed_over.insert(task);
    }

    /// Defers a task until this time, or until its fence is lifted.
    pub fn defer_until(&mut self, task: TaskId, until: MonotonicTime) {
        self.leave_lane(task);
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.position = QueuePosition::Deferred(until);
            self.deferred.insert((until, task));
            // A deferral applies to daemons only. A claim by an agent checks the fences itself.
            if let Some(scope) = entry.eligible_holders.scope() {
                self.claims.insert(&entry.place, scope, task);
            }
        }
    }

    /// Ends the deferral of a task early, because its fence was lifted or another daemon is
    /// available. It keeps its old position.
    pub fn requeue(&mut self, task: TaskId) {
        if matches!(self.position(task), Some(QueuePosition::Deferred(_))) {
            self.leave_lane(task);
            self.enter_lane(task);
        }
    }

    /// Ends the deferral of the next turn of a conversation.
    pub fn requeue_conversation(&mut self, key: &ConversationKey) {
        let first = self.conversations.get(key).and_then(|t| t.order.first());
        if let Some((_, task)) = first.copied() {
            self.requeue(task);
        }
    }

    /// Ends the deferrals that are due.
    pub fn tick(&mut self, now: MonotonicTime) {
        while let Some((at, task)) = self.deferred.first().copied() {
            if at > now {
                return;
            }
            self.requeue(task);
        }
    }

    /// When the next deferral ends.
    pub fn next_requeue_at(&self) -> Option<MonotonicTime> {
        self.deferred.first().map(|(at, _)| *at)
    }

    /// An attempt of the conversation is leased: no other turn of it is placed.
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

    /// Tasks that agents of this scope may claim, in the order in which daemons would get
    /// offers.
    pub fn claimable<'a>(
        &'a self,
        tenant: &TenantId,
        scope: &str,
    ) -> impl Iterator<Item = TaskId> + 'a {
        self.claims.in_scope(tenant, scope)
    }

    /// Whether a new turn of the conversation would have to wait for another one.
    pub fn has_turns(&self, key: &ConversationKey) -> bool {
        let turns = self.conversations.get(key);
        turns.is_some_and(|turns| turns.busy || !turns.order.is_empty())
    }

    /// Whether the task waits for an earlier turn of its conversation.
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

    /// Puts a task into its lane and the claimable tasks, as far as its eligible holders allow.
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

    /// Removes a task from its lane or ends its deferral. It then waits behind its conversation
    /// until `enter_lane` is called.
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

    /// Restores the invariant that only the first turn of an idle conversation is in its lane
    /// or deferred; the others wait behind it.
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
        // Only the first turn was in its lane before, and at most one new turn can have come
        // before it. So checking two turns is enough.
        for task in first.into_iter().chain(second).filter(|t| Some(*t) != next) {
            self.leave_lane(task);
        }
        if let Some(task) = next.filter(|task| self.is_behind_conversation(*task)) {
            self.enter_lane(task);
        }
    }
}
