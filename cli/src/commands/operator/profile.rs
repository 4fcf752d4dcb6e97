//! `baton profile`: named deadline profiles that tasks can use.

use baton_proto::to_json;
use baton_proto::v1::{
    DeadlineProfile, DeleteProfileRequest, ListProfilesRequest, NamedProfile, PutProfileRequest,
};
use clap::{Args, Subcommand};

use crate::args::pairs;
use crate::args::pairs::{DeadlineName, NamedDeadline};
use crate::args::{duration, task_spec};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::render::{task_details, task_view};

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Store a profile, replacing one with that name. Tasks already submitted keep theirs.
    Put(PutProfileArgs),
    /// List the stored profiles.
    List(ListProfilesArgs),
    /// Remove a profile.
    Rm(RemoveProfileArgs),
}

#[derive(Args, Debug)]
pub(crate) struct PutProfileArgs {
    /// Name of the profile: letters a-z, digits, - and _.
    #[arg(value_name = "NAME")]
    name: String,

    /// Deadline of the profile: process_start, prompt_write, first_event, first_visible_event, stream_idle,
    /// tool_idle, user_input or cleanup_term. May be repeated; without any, the profile arms no deadline.
    #[arg(long = "deadline", value_name = "NAME=DURATION", value_parser = pairs::deadline)]
    deadlines: Vec<NamedDeadline>,

    /// Print the stored profile as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListProfilesArgs {
    /// Print one JSON object with the list in `profiles`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveProfileArgs {
    /// Name of the profile.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    command: ProfileCommand,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    match command {
        ProfileCommand::Put(args) => put_profile(args, console).await,
        ProfileCommand::List(args) => list_profiles(args, console).await,
        ProfileCommand::Rm(args) => remove_profile(args, console).await,
    }
}

async fn put_profile(args: PutProfileArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let profile = build_profile(&args.deadlines)?;
    let relay = RelayClient::discover(&args.relay).await?;
    let request = PutProfileRequest {
        name: args.name,
        profile: Some(profile),
    };
    let response = relay.operator().put_profile(request).await?.into_inner();
    if args.json {
        console.json(&to_json(&response))?;
    } else {
        console.note(if response.replaced {
            "replaced"
        } else {
            "stored"
        });
    }
    Ok(CommandExit::Done)
}

fn build_profile(deadlines: &[NamedDeadline]) -> Result<DeadlineProfile, CliError> {
    let mut profile = Some(DeadlineProfile::default());
    for deadline in deadlines {
        if matches!(deadline.name, DeadlineName::Queue | DeadlineName::Total) {
            return Err(CliError::usage(
                "queue and total cannot be part of a profile",
                "set them for each task: baton submit --deadline queue=1h",
            ));
        }
        task_spec::set_deadline(
            &mut profile,
            deadline.name,
            duration::millis(deadline.after),
        );
    }
    Ok(profile.unwrap_or_default())
}

async fn list_profiles(
    args: ListProfilesArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let response = relay
        .operator()
        .list_profiles(ListProfilesRequest {})
        .await?
        .into_inner();
    if args.json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let now = clock::wall_ms();
    let mut table = TextTable::new(["NAME", "AGE", "BY", "DEADLINES"]);
    for profile in &response.profiles {
        table.row(profile_row(profile, now));
    }
    if table.is_empty() {
        console.note(
            "no profiles; store one with: baton profile put patient --deadline stream_idle=10m",
        );
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

fn profile_row(named: &NamedProfile, now_ms: u64) -> [String; 4] {
    let deadlines = named
        .profile
        .as_ref()
        .map(task_details::profile_text)
        .unwrap_or_default();
    [
        one_line(&named.name),
        task_view::age(named.updated_at.as_ref(), now_ms),
        one_line(&named.updated_by),
        deadlines,
    ]
}

async fn remove_profile(
    args: RemoveProfileArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    relay
        .operator()
        .delete_profile(DeleteProfileRequest { name: args.name })
        .await?;
    console.note("removed");
    Ok(CommandExit::Done)
}
