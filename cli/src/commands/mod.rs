//! The verbs of `baton`: one file each, which holds the flags, the call and the printing, and nothing that decides.

pub(crate) mod answer;
pub(crate) mod attempts;
pub(crate) mod bench;
pub(crate) mod block;
pub(crate) mod blocked;
pub(crate) mod cancel;
pub(crate) mod checkpoints;
pub(crate) mod complete;
pub(crate) mod daemon;
pub(crate) mod daemons;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod disconnect;
pub(crate) mod drain;
pub(crate) mod export;
pub(crate) mod force;
pub(crate) mod forget;
pub(crate) mod health;
pub(crate) mod import;
pub(crate) mod inbox;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod lease;
pub(crate) mod mcp;
pub(crate) mod output;
pub(crate) mod pause;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod relay;
pub(crate) mod release_inherited;
pub(crate) mod resume;
pub(crate) mod retry;
pub(crate) mod scheduler;
pub(crate) mod show;
pub(crate) mod submit;
pub(crate) mod tasks;
pub(crate) mod token;
pub(crate) mod up;
pub(crate) mod verify;
pub(crate) mod watch;

use clap::Subcommand;

use crate::console::CliConsole;
use crate::errors::CliError;
use crate::exit::CommandExit;
use crate::servers::ServerClocks;

/// Verbs that stand in `baton_proto::verbs` have their help line from there.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Start a relay and a daemon in one process on this machine, to try Baton out or to work on a laptop.
    Up(up::UpArgs),
    /// Run a relay: the server that owns tasks, attempts and leases.
    Relay(relay::RelayServerArgs),
    /// Run a daemon: the worker that holds a stream to a relay and runs agents.
    Daemon(daemon::DaemonArgs),
    /// Ask the daemon of this machine whether work reaches it, for people and for probes.
    Health(health::HealthArgs),
    /// Show who the relay is, whether it takes work, and what it has counted since its start.
    Info(info::InfoArgs),
    /// Submit a task, and wait for it or follow it if asked to.
    Submit(Box<submit::SubmitArgs>),
    /// Follow the events of one task until it ends, with the task's exit code.
    Watch(watch::WatchTaskArgs),
    /// Print the output of one attempt.
    Output(output::ReadOutputArgs),
    Tasks(tasks::TasksArgs),
    Show(show::ShowArgs),
    Inspect(inspect::InspectArgs),
    /// List attempts, of all tasks or of one.
    Attempts(attempts::AttemptsArgs),
    /// List what agents ask and nobody has answered yet.
    Inbox(inbox::InboxArgs),
    /// Answer a permission request or a question of an agent.
    Answer(answer::AnswerArgs),
    Cancel(cancel::CancelArgs),
    Blocked(blocked::BlockedArgs),
    Block(block::BlockArgs),
    Resume(resume::ResumeArgs),
    Progress(progress::ProgressArgs),
    Checkpoints(checkpoints::CheckpointsArgs),
    Claim(lease::ClaimArgs),
    PickUp(lease::PickUpArgs),
    Renew(lease::RenewArgs),
    Release(lease::ReleaseArgs),
    Retry(retry::RetryArgs),
    ForceRelease(force::ForceArgs),
    ForceFail(force::ForceArgs),
    Complete(complete::CompleteArgs),
    Pause(pause::PauseArgs),
    Unpause(pause::UnpauseArgs),
    /// Show how much waits and runs, and what is paused.
    Scheduler(scheduler::SchedulerArgs),
    /// List daemons.
    Daemons(daemons::DaemonsArgs),
    /// Stop offering work to a daemon; what it has goes on.
    Drain(drain::DrainArgs),
    /// Close a daemon's stream; it connects again by itself.
    Disconnect(disconnect::DisconnectArgs),
    /// Take a daemon that is gone for good off the record.
    Forget(forget::ForgetArgs),
    /// After an import or an accepted loss: say that the old fleet is down, so that inherited tasks are dispatched now.
    ReleaseInherited(release_inherited::ReleaseInheritedArgs),
    /// Serve these verbs as tools to an agent, over stdin and stdout (Model Context Protocol).
    Mcp(mcp::McpArgs),
    /// Create, list and revoke access tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Store, list and remove named deadline profiles.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Write everything that a relay keeps into one file, as of one moment, while it goes on working.
    Export(export::ExportArgs),
    /// Take an export into a new directory, or into a running relay that has no task.
    Import(import::ImportArgs),
    /// Read everything that a relay keeps, or an export, and say what is wrong with it.
    Verify(verify::VerifyArgs),
    /// Measure this machine with load.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// The agent of the demo, which knows one trick and asks before it does it.
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

    /// Whether its runtime has a thread that waits for stdin.
    pub(crate) fn reads_stdin(&self) -> bool {
        matches!(self, CliCommand::Mcp(_))
    }

    pub(crate) async fn run(
        self,
        console: &CliConsole,
        clocks: &ServerClocks,
    ) -> Result<CommandExit, CliError> {
        match self {
            CliCommand::Up(args) => up::run(args, console, clocks).await,
            CliCommand::Relay(args) => relay::run(args, console, clocks).await,
            CliCommand::Daemon(args) => daemon::run(args, console, clocks).await,
            CliCommand::Health(args) => health::run(args, console).await,
            CliCommand::Info(args) => info::run(args, console).await,
            CliCommand::Submit(args) => submit::run(*args, console).await,
            CliCommand::Watch(args) => watch::run(args, console).await,
            CliCommand::Output(args) => output::run(args, console).await,
            CliCommand::Tasks(args) => tasks::run(args, console).await,
            CliCommand::Show(args) => show::run(args, console).await,
            CliCommand::Inspect(args) => inspect::run(args, console).await,
            CliCommand::Attempts(args) => attempts::run(args, console).await,
            CliCommand::Inbox(args) => inbox::run(args, console).await,
            CliCommand::Answer(args) => answer::run(args, console).await,
            CliCommand::Cancel(args) => cancel::run(args, console).await,
            CliCommand::Retry(args) => retry::run(args, console).await,
            CliCommand::Blocked(args) => blocked::run(args, console).await,
            CliCommand::Block(args) => block::run(args, console).await,
            CliCommand::Resume(args) => resume::run(args, console).await,
            CliCommand::Progress(args) => progress::run(args, console).await,
            CliCommand::Checkpoints(args) => checkpoints::run(args, console).await,
            CliCommand::Claim(args) => lease::claim(args, console).await,
            CliCommand::PickUp(args) => lease::pick_up(args, console).await,
            CliCommand::Renew(args) => lease::renew(args, console).await,
            CliCommand::Release(args) => lease::release(args, console).await,
            CliCommand::ForceRelease(args) => force::release(args, console).await,
            CliCommand::ForceFail(args) => force::fail(args, console).await,
            CliCommand::Complete(args) => complete::run(args, console).await,
            CliCommand::Pause(args) => pause::pause(args, console).await,
            CliCommand::Unpause(args) => pause::unpause(args, console).await,
            CliCommand::Scheduler(args) => scheduler::run(args, console).await,
            CliCommand::Daemons(args) => daemons::run(args, console).await,
            CliCommand::Drain(args) => drain::run(args, console).await,
            CliCommand::Disconnect(args) => disconnect::run(args, console).await,
            CliCommand::Forget(args) => forget::run(args, console).await,
            CliCommand::ReleaseInherited(args) => release_inherited::run(args, console).await,
            CliCommand::Mcp(args) => mcp::run(args, clocks).await,
            CliCommand::Token(command) => token::run(command, console).await,
            CliCommand::Profile(command) => profile::run(command, console).await,
            CliCommand::Export(args) => export::run(args, console).await,
            CliCommand::Import(args) => import::run(args, console).await,
            CliCommand::Verify(args) => verify::run(args, console).await,
            CliCommand::Bench(command) => bench::run(command, console).await,
            CliCommand::DemoAgent => demo_agent::run(console),
        }
    }
}
