//! The commands of `baton`, one file each: flags, the call and the printing. Decisions about tasks
//! belong to the relay.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod data;
pub(crate) mod fleet;
pub(crate) mod operator;
pub(crate) mod server;
pub(crate) mod task;

use clap::Subcommand;

use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::start::ServerClocks;

/// Commands without a help line here get it from `baton_proto::verbs`.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Start a relay and a daemon in one process on this machine, to try Baton out or to work on a laptop.
    Up(server::up::UpArgs),
    /// Run a relay: the server that owns tasks, attempts and leases.
    Relay(server::relay::RelayServerArgs),
    /// Run a daemon: the worker that connects to a relay and runs agents.
    Daemon(server::daemon::DaemonArgs),
    /// Check whether the daemon of this machine can receive work, for people and for probes.
    Health(server::health::HealthArgs),
    /// Show the relay's identity, whether it accepts work, and its counters since the start.
    Info(operator::info::InfoArgs),
    /// Submit a task, and wait for it or follow its output.
    Submit(Box<task::submit::SubmitArgs>),
    /// Follow the events of one task until it ends, and exit with its code.
    ///
    /// A parked task has not ended: the command keeps waiting until it is resumed and ends. Use --history to print
    /// the events so far and exit.
    Watch(task::watch::WatchTaskArgs),
    /// Print the output of one attempt.
    Output(task::output::ReadOutputArgs),
    Tasks(task::tasks::TasksArgs),
    Show(task::show::ShowArgs),
    Inspect(operator::inspect::InspectArgs),
    /// List attempts of all tasks or of one task.
    Attempts(operator::attempts::AttemptsArgs),
    /// List permission requests and questions of agents that wait for an answer.
    Inbox(task::inbox::InboxArgs),
    /// Answer a permission request or a question of an agent.
    Answer(task::answer::AnswerArgs),
    Cancel(task::cancel::CancelArgs),
    Blocked(task::blocked::BlockedArgs),
    Block(task::block::BlockArgs),
    Resume(task::resume::ResumeArgs),
    Progress(task::progress::ProgressArgs),
    Checkpoints(task::checkpoints::CheckpointsArgs),
    Claim(agent::lease::ClaimArgs),
    PickUp(agent::lease::PickUpArgs),
    Renew(agent::lease::RenewArgs),
    Release(agent::lease::ReleaseArgs),
    Retry(operator::retry::RetryArgs),
    ForceRelease(operator::force::ForceArgs),
    ForceFail(operator::force::ForceArgs),
    Complete(operator::complete::CompleteArgs),
    Pause(operator::pause::PauseArgs),
    Unpause(operator::pause::UnpauseArgs),
    /// Show how many tasks wait and run, and what is paused.
    Scheduler(operator::scheduler::SchedulerArgs),
    /// List daemons.
    Daemons(fleet::daemons::DaemonsArgs),
    /// Stop offering work to a daemon; its running attempts continue.
    Drain(fleet::drain::DrainArgs),
    /// Close a daemon's stream; the daemon reconnects by itself.
    Disconnect(fleet::disconnect::DisconnectArgs),
    /// Remove the record of a daemon that will not return.
    Forget(fleet::forget::ForgetArgs),
    /// After an import or an accepted loss: confirm that the old fleet is down, so that inherited tasks are dispatched
    /// now.
    ReleaseInherited(operator::release_inherited::ReleaseInheritedArgs),
    /// Serve these commands as tools to an agent over stdin and stdout (Model Context Protocol).
    Mcp(agent::mcp::McpArgs),
    /// Create, list and revoke access tokens.
    #[command(subcommand)]
    Token(operator::token::TokenCommand),
    /// Store, list and remove named deadline profiles.
    #[command(subcommand)]
    Profile(operator::profile::ProfileCommand),
    /// Write a consistent copy of all data of a relay into one file while it keeps working.
    Export(data::export::ExportArgs),
    /// Import an export into a new directory, or into a running relay that has no tasks.
    Import(data::import::ImportArgs),
    /// Read all data of a relay, or an export, and report damage.
    Verify(data::verify::VerifyArgs),
    /// Measure the relay's performance on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// The agent of the demo: it makes one tool call and asks for permission first.
    #[command(hide = true)]
    DemoAgent,
}

impl CliCommand {
    pub(crate) fn is_server(&self) -> bool {
        match self {
            CliCommand::Daemon(args) => args.is_server(),
            command => matches!(
                command,
                CliCommand::Up(_) | CliCommand::Relay(_) | CliCommand::Bench(_)
            ),
        }
    }

    /// Whether a thread of the runtime waits for stdin.
    pub(crate) fn reads_stdin(&self) -> bool {
        matches!(self, CliCommand::Mcp(_))
    }

    pub(crate) async fn run(
        self,
        console: &CliConsole,
        clocks: &ServerClocks,
    ) -> Result<CommandExit, CliError> {
        match self {
            CliCommand::Up(args) => server::up::run(args, console, clocks).await,
            CliCommand::Relay(args) => server::relay::run(args, console, clocks).await,
            CliCommand::Daemon(args) => server::daemon::run(args, console, clocks).await,
            CliCommand::Health(args) => server::health::run(args, console).await,
            CliCommand::Info(args) => operator::info::run(args, console).await,
            CliCommand::Submit(args) => task::submit::run(*args, console).await,
            CliCommand::Watch(args) => task::watch::run(args, console).await,
            CliCommand::Output(args) => task::output::run(args, console).await,
            CliCommand::Tasks(args) => task::tasks::run(args, console).await,
            CliCommand::Show(args) => task::show::run(args, console).await,
            CliCommand::Inspect(args) => operator::inspect::run(args, console).await,
            CliCommand::Attempts(args) => operator::attempts::run(args, console).await,
            CliCommand::Inbox(args) => task::inbox::run(args, console).await,
            CliCommand::Answer(args) => task::answer::run(args, console).await,
            CliCommand::Cancel(args) => task::cancel::run(args, console).await,
            CliCommand::Retry(args) => operator::retry::run(args, console).await,
            CliCommand::Blocked(args) => task::blocked::run(args, console).await,
            CliCommand::Block(args) => task::block::run(args, console).await,
            CliCommand::Resume(args) => task::resume::run(args, console).await,
            CliCommand::Progress(args) => task::progress::run(args, console).await,
            CliCommand::Checkpoints(args) => task::checkpoints::run(args, console).await,
            CliCommand::Claim(args) => agent::lease::claim(args, console).await,
            CliCommand::PickUp(args) => agent::lease::pick_up(args, console).await,
            CliCommand::Renew(args) => agent::lease::renew(args, console).await,
            CliCommand::Release(args) => agent::lease::release(args, console).await,
            CliCommand::ForceRelease(args) => operator::force::release(args, console).await,
            CliCommand::ForceFail(args) => operator::force::fail(args, console).await,
            CliCommand::Complete(args) => operator::complete::run(args, console).await,
            CliCommand::Pause(args) => operator::pause::pause(args, console).await,
            CliCommand::Unpause(args) => operator::pause::unpause(args, console).await,
            CliCommand::Scheduler(args) => operator::scheduler::run(args, console).await,
            CliCommand::Daemons(args) => fleet::daemons::run(args, console).await,
            CliCommand::Drain(args) => fleet::drain::run(args, console).await,
            CliCommand::Disconnect(args) => fleet::disconnect::run(args, console).await,
            CliCommand::Forget(args) => fleet::forget::run(args, console).await,
            CliCommand::ReleaseInherited(args) => {
                operator::release_inherited::run(args, console).await
            }
            CliCommand::Mcp(args) => agent::mcp::run(args, clocks).await,
            CliCommand::Token(command) => operator::token::run(command, console).await,
            CliCommand::Profile(command) => operator::profile::run(command, console).await,
            CliCommand::Export(args) => data::export::run(args, console).await,
            CliCommand::Import(args) => data::import::run(args, console).await,
            CliCommand::Verify(args) => data::verify::run(args, console).await,
            CliCommand::Bench(command) => bench::run(command, console).await,
            CliCommand::DemoAgent => server::demo_agent::run(console),
        }
    }
}
