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

use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::servers::Clocks;

/// Verbs that stand in `baton_proto::verbs` have their help line from there.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
    Watch(watch::WatchArgs),
    /// Print the output of one attempt.
    Output(output::OutputArgs),
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

impl Command {
    pub(crate) fn is_server(&self) -> bool {
        match self {
            Command::Daemon(args) => args.is_server(),
            command => matches!(
                command,
                Command::Up(_) | Command::Relay(_) | Command::Bench(_)
            ),
        }
    }

    /// Whether its runtime has a thread that waits for stdin.
    pub(crate) fn reads_stdin(&self) -> bool {
        matches!(self, Command::Mcp(_))
    }

    pub(crate) async fn run(self, console: &Console, clocks: &Clocks) -> Result<Exit, CliError> {
        match self {
            Command::Up(args) => up::run(args, console, clocks).await,
            Command::Relay(args) => relay::run(args, console, clocks).await,
            Command::Daemon(args) => daemon::run(args, console, clocks).await,
            Command::Health(args) => health::run(args, console).await,
            Command::Info(args) => info::run(args, console).await,
            Command::Submit(args) => submit::run(*args, console).await,
            Command::Watch(args) => watch::run(args, console).await,
            Command::Output(args) => output::run(args, console).await,
            Command::Tasks(args) => tasks::run(args, console).await,
            Command::Show(args) => show::run(args, console).await,
            Command::Inspect(args) => inspect::run(args, console).await,
            Command::Attempts(args) => attempts::run(args, console).await,
            Command::Inbox(args) => inbox::run(args, console).await,
            Command::Answer(args) => answer::run(args, console).await,
            Command::Cancel(args) => cancel::run(args, console).await,
            Command::Retry(args) => retry::run(args, console).await,
            Command::Blocked(args) => blocked::run(args, console).await,
            Command::Block(args) => block::run(args, console).await,
            Command::Resume(args) => resume::run(args, console).await,
            Command::Progress(args) => progress::run(args, console).await,
            Command::Checkpoints(args) => checkpoints::run(args, console).await,
            Command::Claim(args) => lease::claim(args, console).await,
            Command::PickUp(args) => lease::pick_up(args, console).await,
            Command::Renew(args) => lease::renew(args, console).await,
            Command::Release(args) => lease::release(args, console).await,
            Command::ForceRelease(args) => force::release(args, console).await,
            Command::ForceFail(args) => force::fail(args, console).await,
            Command::Complete(args) => complete::run(args, console).await,
            Command::Pause(args) => pause::pause(args, console).await,
            Command::Unpause(args) => pause::unpause(args, console).await,
            Command::Scheduler(args) => scheduler::run(args, console).await,
            Command::Daemons(args) => daemons::run(args, console).await,
            Command::Drain(args) => drain::run(args, console).await,
            Command::Disconnect(args) => disconnect::run(args, console).await,
            Command::Forget(args) => forget::run(args, console).await,
            Command::ReleaseInherited(args) => release_inherited::run(args, console).await,
            Command::Mcp(args) => mcp::run(args, clocks).await,
            Command::Token(command) => token::run(command, console).await,
            Command::Profile(command) => profile::run(command, console).await,
            Command::Export(args) => export::run(args, console).await,
            Command::Import(args) => import::run(args, console).await,
            Command::Verify(args) => verify::run(args, console).await,
            Command::Bench(command) => bench::run(command, console).await,
            Command::DemoAgent => demo_agent::run(console),
        }
    }
}
