//! Inputs of the core: typed commands of clients and operators, messages of daemon sessions,
//! and the passing of time.
//!
//! A command has its own reply type, states which stored records it needs, and makes its
//! decision in `run`. It carries a reply port of the shell. The core returns the port together
//! with the outcome as a delivery that waits until the decision is durable. The shell has
//! authenticated and decoded the request and checked its sizes; the core checks its meaning.

use std::fmt;
use std::sync::Arc;

use crate::core_state::CoreOwners;
use crate::ids::{TaskId, TenantId, TokenId};
use crate::io::effects::{CommitDependency, Delivery, GatedDelivery, ReadyReply};
use crate::io::rejection::Rejection;
use crate::io::session_input::SessionInput;
use crate::io::stored_lookup::{StoredNeeds, StoredRecords};
use crate::turn::CoreTurn;

/// One request, with the type of its reply.
pub trait Command: fmt::Debug + Send + 'static {
    type Reply: fmt::Debug + Send + 'static;

    /// The stored records that `run` needs.
    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::default()
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply>;
}

/// The outcome of a command. A rejection wrote nothing, so it is sent at once.
pub type CommandOutcome<R> = Result<CommandReply<R>, Rejection>;

/// A reply, and the writes that must be durable before it is sent.
#[derive(Debug)]
pub struct CommandReply<R> {
    pub(crate) depends_on: CommitDependency,
    pub(crate) reply: R,
}

impl<R> CommandReply<R> {
    pub(crate) fn immediate(reply: R) -> Self {
        Self {
            depends_on: CommitDependency::Nothing,
            reply,
        }
    }

    pub(crate) fn after_task(task: TaskId, reply: R) -> Self {
        Self {
            depends_on: CommitDependency::Task(task),
            reply,
        }
    }

    pub(crate) fn after_everything(reply: R) -> Self {
        Self {
            depends_on: CommitDependency::Everything,
            reply,
        }
    }

    pub(crate) fn map<T>(self, convert: impl FnOnce(R) -> T) -> CommandReply<T> {
        CommandReply {
            depends_on: self.depends_on,
            reply: convert(self.reply),
        }
    }
}

/// Every input of the core.
#[derive(Debug)]
pub enum CoreInput {
    Command(BoxedCommand),
    Session(SessionInput),
    /// The disk has no room for the writes of a new attempt, or has room again. Not stored: the
    /// shell checks again at start.
    SuspendDispatch {
        suspended: bool,
    },
    /// Time passed. Early or additional ticks are harmless.
    Tick,
}

impl CoreInput {
    /// Boxes a command. `port` is called with the outcome when the shell sends the reply.
    pub fn command<C: Command>(
        command: C,
        port: impl FnOnce(Result<C::Reply, Rejection>) + Send + 'static,
    ) -> Self {
        CoreInput::Command(BoxedCommand(Box::new(CommandCall { command, port })))
    }

    /// Tasks whose stored record the input may need. Earlier writes to them must be readable
    /// first.
    pub fn named_tasks(&self) -> Vec<TaskId> {
        match self {
            CoreInput::Command(command) => command.0.stored_needs().named_tasks(),
            CoreInput::Session(input) => input.named_tasks(),
            CoreInput::SuspendDispatch { .. } | CoreInput::Tick => Vec::new(),
        }
    }

    /// The task whose stored progress the input updates. Earlier updates must be readable
    /// first.
    pub fn progress_task(&self) -> Option<TaskId> {
        match self {
            CoreInput::Command(command) => command.0.stored_needs().progress_task(),
            CoreInput::Session(input) => input.progress_task(),
            CoreInput::SuspendDispatch { .. } | CoreInput::Tick => None,
        }
    }
}

impl From<SessionInput> for CoreInput {
    fn from(input: SessionInput) -> Self {
        CoreInput::Session(input)
    }
}

/// A command of any type with its reply port.
pub struct BoxedCommand(Box<dyn ErasedCommand>);

impl BoxedCommand {
    pub(crate) fn stored_needs(&self) -> StoredNeeds {
        self.0.stored_needs()
    }

    /// Runs the command; the returned reply is ready to be sent.
    pub(crate) fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> GatedDelivery {
        self.0.run(core, stored, turn)
    }
}

impl fmt::Debug for BoxedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_command(f)
    }
}

struct CommandCall<C, P> {
    command: C,
    port: P,
}

trait ErasedCommand: Send {
    fn stored_needs(&self) -> StoredNeeds;

    fn run(
        self: Box<Self>,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> GatedDelivery;

    fn fmt_command(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl<C, P> ErasedCommand for CommandCall<C, P>
where
    C: Command,
    P: FnOnce(Result<C::Reply, Rejection>) + Send + 'static,
{
    fn stored_needs(&self) -> StoredNeeds {
        self.command.stored_needs()
    }

    fn run(
        self: Box<Self>,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> GatedDelivery {
        let Self { command, port } = *self;
        let (depends_on, outcome) = match command.run(core, stored, turn) {
            Ok(CommandReply { depends_on, reply }) => {
                let depends_on = depends_on.unless_broken(mutant!(ReplyBeforePersist));
                (depends_on, Ok(reply))
            }
            Err(code) => (CommitDependency::Nothing, Err(code)),
        };
        GatedDelivery {
            depends_on,
            delivery: Delivery::Reply(ReadyReply::new(move || port(outcome))),
        }
    }

    fn fmt_command(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

/// Who made a request, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestActor {
    /// Name of the credential.
    pub name: Arc<str>,
    /// The id of the credential: names need not be unique.
    pub token: TokenId,
    pub operator: bool,
}

/// The credential of an agent that holds leases itself, for tasks in its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPrincipal {
    pub token: TokenId,
    /// Name of the credential.
    pub name: Arc<str>,
    pub tenant: TenantId,
    pub scope: Arc<str>,
}
