//! The format: one line of a history. Ids, states and kinds are the words of the wire.

use serde::{Deserialize, Serialize};

/// One thing that one participant saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// Milliseconds, by one clock for the whole run.
    pub at: u64,
    /// Who saw it.
    pub who: String,
    #[serde(flatten)]
    pub observation: Observation,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientOperation {
    Submit,
    Cancel,
    /// An operator's verb: it must be on record.
    Force,
    /// Parks a task.
    Block,
    /// A person sends a parked task on.
    Resume,
    /// An agent takes a parked task over.
    PickUp,
    /// Adds to a task's progress; the body is the item that is done.
    Progress,
    Checkpoint,
    Get,
    /// Asks for a task of another tenant, which must look like one that does not exist.
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    Ok,
    /// Refused: it did not happen.
    Fail,
    /// No answer: it may have happened.
    Info,
}

/// An event of a task as the relay tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEvent {
    pub revision: u64,
    pub kind: String,
    /// Empty for events of the task alone.
    pub attempt: String,
    /// The attempt's state after it; empty without one.
    pub state: String,
    /// The task's state after it.
    pub task_state: String,
}

/// An attempt in a task's last record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalAttempt {
    pub attempt: String,
    pub number: u32,
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "saw", rename_all = "snake_case")]
pub enum Observation {
    /// A client calls. `call` is its own number for it.
    Call {
        call: u64,
        op: ClientOperation,
        tenant: String,
        task: Option<String>,
        /// Idempotency key, for submits.
        key: Option<String>,
        /// Stands for the body: the same for the same.
        body: Option<String>,
    },
    /// What came of a call.
    Answer {
        call: u64,
        outcome: CallOutcome,
        task: Option<String>,
        revision: Option<u64>,
        /// The task's state, as answered.
        state: Option<String>,
        /// The machine code of a refusal.
        code: Option<String>,
        /// The submit found its task already there, or the cancel found it finished.
        #[serde(default)]
        already: bool,
    },
    /// What an answered call has made: the attempt by which a task goes on, or the number of a checkpoint.
    Made {
        call: u64,
        made: String,
    },
    /// A watch was opened; `watch` is the client's own number for it.
    WatchOpened {
        watch: u64,
        tenant: String,
        task: String,
        after: u64,
    },
    Watched {
        watch: u64,
        event: HistoryEvent,
    },
    /// A daemon received Dispatch. Its tenant is `*` when it serves all.
    Offered {
        tenant: String,
        task: String,
        attempt: String,
    },
    /// A daemon received LeaseConfirmed.
    Confirmed {
        task: String,
        attempt: String,
    },
    /// An agent that holds leases itself was told that it has one.
    Granted {
        tenant: String,
        task: String,
        attempt: String,
    },
    /// A daemon sent a terminal frame, or an agent told the end of its attempt.
    Sent {
        task: String,
        attempt: String,
        seq: u64,
        word: String,
    },
    /// A daemon was told that everything up to `seq` is durable.
    Acked {
        attempt: String,
        seq: u64,
    },
    /// A daemon was told that a frame was refused.
    Refused {
        attempt: String,
        seq: u64,
        code: String,
    },
    /// A process of an attempt came to life. Whoever writes this first writes down all deaths that it can know of by then.
    Began {
        attempt: String,
        pid: u32,
        started: u64,
    },
    Ended {
        attempt: String,
        pid: u32,
        started: u64,
    },
    /// A child is about to write this to its stdout.
    Wrote {
        attempt: String,
        text: String,
    },
    /// A client reads an attempt's output from its beginning; `reading` is its own number for it.
    Read {
        reading: u64,
        tenant: String,
        task: String,
        attempt: String,
        offset: u64,
        text: String,
    },
    /// So many bytes will never come.
    ReadCut {
        reading: u64,
        attempt: String,
        offset: u64,
        length: u64,
    },
    /// The output ended here; `complete` if nothing more will come.
    ReadEnd {
        reading: u64,
        attempt: String,
        offset: u64,
        complete: bool,
    },
    /// A task as it is in the end.
    Record {
        tenant: String,
        task: String,
        revision: u64,
        state: String,
        attempts: Vec<FinalAttempt>,
    },
    /// What is kept of its goal in the end: the items that are done, those that newer ones pushed out, and the numbers of its
    /// checkpoints.
    Goal {
        task: String,
        completed: Vec<String>,
        dropped: u64,
        checkpoints: Vec<u64>,
    },
    /// One of its events, as told in the end.
    Timeline {
        task: String,
        event: HistoryEvent,
    },
    /// A task that was removed as it may be: nothing is claimed of it any more.
    Removed {
        task: String,
    },
    /// Something was broken on purpose.
    Fault {
        fault: String,
        target: String,
    },
    /// The run is worth nothing if it counted fewer of these.
    Least {
        count: String,
        least: u64,
    },
}
