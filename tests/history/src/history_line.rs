//! The format: one line of a history. Ids, states and kinds are spelled as on the wire.

use serde::{Deserialize, Serialize};

/// One observation of one participant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// Milliseconds, by one clock for the whole run.
    pub at: u64,
    /// The participant.
    pub who: String,
    #[serde(flatten)]
    pub observation: Observation,
}

/// Kind of a client's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientOperation {
    Submit,
    Cancel,
    /// An operator's force command; it must be recorded.
    Force,
    /// Parks a task.
    Block,
    /// A person resumes a parked task.
    Resume,
    /// An agent picks up a parked task.
    PickUp,
    /// Reports progress; the body is the completed item.
    Progress,
    Checkpoint,
    Get,
    /// Requests a task of another tenant, which must look like one that does not exist.
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    Ok,
    /// Rejected: it had no effect.
    Fail,
    /// No answer: it may have had an effect.
    Info,
}

/// An event of a task as the relay reports it.
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

/// An attempt in a task's final record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalAttempt {
    pub attempt: String,
    pub number: u32,
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "saw", rename_all = "snake_case")]
pub enum Observation {
    /// A client's call. `call` is the client's own number for it.
    Call {
        call: u64,
        op: ClientOperation,
        tenant: String,
        task: Option<String>,
        /// Idempotency key, for submits.
        key: Option<String>,
        /// Represents the body: equal for equal bodies.
        body: Option<String>,
    },
    /// The answer to a call.
    Answer {
        call: u64,
        outcome: CallOutcome,
        task: Option<String>,
        revision: Option<u64>,
        /// The task's state in the answer.
        state: Option<String>,
        /// The machine code of a rejection.
        code: Option<String>,
        /// The submit's task existed already, or the cancel's task had finished.
        #[serde(default)]
        already: bool,
    },
    /// What an answered call created: the attempt that continues a task, or the number of a
    /// checkpoint.
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
    /// A daemon received Dispatch. Its tenant is `*` if it serves all.
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
    /// An agent was granted a lease.
    Granted {
        tenant: String,
        task: String,
        attempt: String,
    },
    /// A daemon sent a terminal frame, or an agent reported the end of its attempt.
    Sent {
        task: String,
        attempt: String,
        seq: u64,
        word: String,
    },
    /// A daemon got an ack for all control frames up to `seq`.
    Acked {
        attempt: String,
        seq: u64,
    },
    /// A daemon got a rejection of a frame.
    Refused {
        attempt: String,
        seq: u64,
        code: String,
    },
    /// A process of an attempt has started. The participant that records this first records all
    /// deaths that it can detect.
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
    /// A client reads an attempt's output from its beginning; `reading` is the client's own
    /// number for it.
    Read {
        reading: u64,
        tenant: String,
        task: String,
        attempt: String,
        offset: u64,
        text: String,
    },
    /// This many bytes will never be sent.
    ReadCut {
        reading: u64,
        attempt: String,
        offset: u64,
        length: u64,
    },
    /// The output ended here; `complete` if no more follows.
    ReadEnd {
        reading: u64,
        attempt: String,
        offset: u64,
        complete: bool,
    },
    /// The final state of a task.
    Record {
        tenant: String,
        task: String,
        revision: u64,
        state: String,
        attempts: Vec<FinalAttempt>,
    },
    /// Final progress of the task: completed items, number of items dropped for newer ones, and
    /// the numbers of its checkpoints.
    Goal {
        task: String,
        completed: Vec<String>,
        dropped: u64,
        checkpoints: Vec<u64>,
    },
    /// One of its events, as reported at the end.
    Timeline {
        task: String,
        event: HistoryEvent,
    },
    /// A task that retention removed: no rule applies to it any more.
    Removed {
        task: String,
    },
    /// An injected fault.
    Fault {
        fault: String,
        target: String,
    },
    /// The run is invalid if it counted fewer of these.
    Least {
        count: String,
        least: u64,
    },
}
