//! What the relay decides, as the simulation judges it: replies of all commands as one type, with
//! the request that each answers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use baton_core::commands::{
    AgentCallReply, BlockedTask, CanceledTask, GoalOutcome, OperatedTask, RenewedLease,
    SubmittedTask, UpdatedProgress,
};
use baton_core::ids::{SessionId, TaskId};
use baton_core::io::command::{Command, CoreInput};
use baton_core::io::effects::{
    AgentLeaseGrant, CoreMetric, DaemonMessage, DaemonView, Delivery, Effects, GatedDelivery,
    RecordChange,
};
use baton_core::io::rejection::Rejection;
use baton_core::record::{CheckpointRecord, ProgressRecord, TaskRecord, TimelineEvent};
use baton_core::task::spec::TaskSpec;

/// Pairs a request with its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub(crate) u64);

pub(crate) type SimOutcome = Result<SimReply, Rejection>;

#[derive(Debug)]
pub(crate) enum SimReply {
    Submitted {
        record: Arc<TaskRecord>,
        created: bool,
    },
    /// The task after the request.
    Task(Arc<TaskRecord>),
    /// It had ended before.
    Finished(Arc<TaskRecord>),
    Granted(Option<Box<AgentLeaseGrant>>),
    Renewed {
        granted_ms: u64,
        cancel_requested: bool,
    },
    Progressed {
        record: Arc<TaskRecord>,
        progress: Arc<ProgressRecord>,
    },
    Checkpointed {
        record: Arc<TaskRecord>,
        checkpoint: Arc<CheckpointRecord>,
    },
    Parked(Vec<TaskId>),
    Daemons(Vec<DaemonView>),
    Removed(Vec<TaskId>),
    /// Nothing in it is judged.
    Other,
}

impl SimReply {
    pub(crate) fn other<R>(_reply: R) -> Self {
        SimReply::Other
    }

    pub(crate) fn granted(grant: Box<AgentLeaseGrant>) -> Self {
        SimReply::Granted(Some(grant))
    }

    pub(crate) fn parked(rows: Vec<(Arc<TaskRecord>, Arc<TaskSpec>)>) -> Self {
        SimReply::Parked(rows.iter().map(|(task, _)| task.task).collect())
    }

    fn goal(record: Arc<TaskRecord>, progress: Option<Arc<ProgressRecord>>) -> Self {
        match progress {
            Some(progress) => SimReply::Progressed { record, progress },
            None => SimReply::Task(record),
        }
    }

    pub(crate) fn agent_end(reply: AgentCallReply<()>) -> Self {
        Self::agent_call(reply, |record, ()| SimReply::Task(record))
    }

    pub(crate) fn agent_progress(reply: AgentCallReply<Arc<ProgressRecord>>) -> Self {
        Self::agent_call(reply, |record, progress| SimReply::Progressed {
            record,
            progress,
        })
    }

    pub(crate) fn agent_checkpoint(reply: AgentCallReply<Arc<CheckpointRecord>>) -> Self {
        Self::agent_call(reply, |record, checkpoint| SimReply::Checkpointed {
            record,
            checkpoint,
        })
    }

    pub(crate) fn agent_block(reply: AgentCallReply<GoalOutcome>) -> Self {
        Self::agent_call(reply, |record, outcome| match outcome.checkpoint {
            Some(checkpoint) => SimReply::Checkpointed { record, checkpoint },
            None => Self::goal(record, outcome.progress),
        })
    }

    /// The agents of the simulation give their calls no fingerprint, so none is answered as
    /// repeated.
    fn agent_call<D>(
        reply: AgentCallReply<D>,
        done: impl FnOnce(Arc<TaskRecord>, D) -> Self,
    ) -> Self {
        match reply {
            AgentCallReply::Done { record, done: what } => done(record, what),
            AgentCallReply::Repeated { .. } => SimReply::Other,
        }
    }
}

impl From<SubmittedTask> for SimReply {
    fn from(SubmittedTask { record, created }: SubmittedTask) -> Self {
        SimReply::Submitted { record, created }
    }
}

impl From<CanceledTask> for SimReply {
    fn from(canceled: CanceledTask) -> Self {
        if canceled.already_finished {
            SimReply::Finished(canceled.record)
        } else {
            SimReply::Task(canceled.record)
        }
    }
}

impl From<OperatedTask> for SimReply {
    fn from(operated: OperatedTask) -> Self {
        if operated.changed {
            SimReply::Task(operated.record)
        } else {
            SimReply::Other
        }
    }
}

impl From<UpdatedProgress> for SimReply {
    fn from(UpdatedProgress { record, progress }: UpdatedProgress) -> Self {
        SimReply::Progressed { record, progress }
    }
}

impl From<BlockedTask> for SimReply {
    fn from(BlockedTask { record, progress }: BlockedTask) -> Self {
        Self::goal(record, progress)
    }
}

impl From<RenewedLease> for SimReply {
    fn from(renewed: RenewedLease) -> Self {
        SimReply::Renewed {
            granted_ms: renewed.granted_ms,
            cancel_requested: renewed.cancel_requested,
        }
    }
}

/// The effects of one input, with replies that can be read.
#[derive(Debug)]
pub(crate) struct SimEffects {
    pub(crate) changes: Vec<RecordChange>,
    pub(crate) deliveries: Vec<GatedDelivery<SimDelivery>>,
    pub(crate) metrics: Vec<CoreMetric>,
}

#[derive(Debug)]
pub(crate) enum SimDelivery {
    Reply {
        request: RequestId,
        outcome: SimOutcome,
    },
    ToSession {
        session: SessionId,
        message: DaemonMessage,
    },
    CloseSession {
        session: SessionId,
    },
    Published {
        record: Arc<TaskRecord>,
        events: Vec<Arc<TimelineEvent>>,
    },
}

/// The other end of all reply ports. The core's replies are opened as soon as they are decided, and
/// pass the gate as data.
#[derive(Debug)]
pub(crate) struct ReplyPorts {
    ports: Sender<(RequestId, SimOutcome)>,
    replies: Receiver<(RequestId, SimOutcome)>,
}

impl Default for ReplyPorts {
    fn default() -> Self {
        let (ports, replies) = channel();
        Self { ports, replies }
    }
}

impl ReplyPorts {
    pub(crate) fn input<C: Command>(
        &self,
        request: RequestId,
        command: C,
        reply: impl FnOnce(C::Reply) -> SimReply + Send + 'static,
    ) -> CoreInput {
        let port = self.ports.clone();
        CoreInput::command(command, move |outcome| {
            // The simulation may be over.
            let _ = port.send((request, outcome.map(reply)));
        })
    }

    pub(crate) fn open_replies(&self, effects: Effects) -> SimEffects {
        let deliveries = effects.deliveries.into_iter().map(|outgoing| {
            let depends_on = outgoing.depends_on;
            let delivery = self.open_delivery(outgoing.delivery);
            GatedDelivery {
                depends_on,
                delivery,
            }
        });
        SimEffects {
            deliveries: deliveries.collect(),
            changes: effects.changes,
            metrics: effects.metrics,
        }
    }

    fn open_delivery(&self, delivery: Delivery) -> SimDelivery {
        match delivery {
            Delivery::Reply(reply) => {
                reply.send();
                let sent = self.replies.try_recv();
                let (request, outcome) = sent.expect("a reply that is sent arrives at its port");
                SimDelivery::Reply { request, outcome }
            }
            Delivery::ToSession { session, message } => SimDelivery::ToSession { session, message },
            Delivery::CloseSession { session, .. } => SimDelivery::CloseSession { session },
            Delivery::Published { record, events, .. } => SimDelivery::Published { record, events },
        }
    }
}
