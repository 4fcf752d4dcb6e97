//! `baton info`: the relay's identity, whether it accepts work, and its counters since the start.

use baton_proto::v1::{RelayInfoRequest, RelayInfoResponse};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::render::task_view;

#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: InfoArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let info = relay.operator().relay_info(RelayInfoRequest {}).await?;
    let info = info.into_inner();
    if args.json.json {
        console.json(&to_json(&info))?;
        return Ok(CommandExit::Done);
    }
    for (name, value) in info_fields(&info, clock::wall_ms()) {
        console.line(&format!("{name:<12}{value}"))?;
    }
    print_counters(&info, console)?;
    Ok(CommandExit::Done)
}

fn info_fields(info: &RelayInfoResponse, now_ms: u64) -> Vec<(&'static str, String)> {
    let you = format!(
        "{}, role {}, tenant {}",
        one_line(&info.principal),
        info.role().short_name(),
        one_line(&info.tenant)
    );
    let started = task_view::age(info.started_at.as_ref(), now_ms);
    let started = format!("{started} ago");
    vec![
        ("version", one_line(&info.version)),
        ("incarnation", one_line(&info.incarnation)),
        ("epoch", info.relay_epoch.to_string()),
        ("started", started),
        ("commit", info.commit_seq.to_string()),
        ("unreadable", info.unreadable_records.to_string()),
        ("admitting", admission_text(info)),
        ("disk", disk_text(info)),
        ("you", you),
    ]
}

fn admission_text(info: &RelayInfoResponse) -> String {
    if info.admitting {
        return "yes".to_owned();
    }
    let why = if info.draining {
        "the relay is stopping"
    } else {
        &info.admission_problem
    };
    format!("no: {}", one_line(why))
}

fn disk_text(info: &RelayInfoResponse) -> String {
    let disk = info.disk.unwrap_or_default();
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "{} MiB of {} MiB free, {} MiB must stay free; {} MiB reserved for emergencies",
        mib(disk.free_bytes),
        mib(disk.total_bytes),
        mib(disk.needed_bytes),
        mib(disk.ballast_bytes)
    )
}

fn print_counters(info: &RelayInfoResponse, console: &CliConsole) -> Result<(), CliError> {
    if info.counters.is_empty() {
        return Ok(());
    }
    let mut table = TextTable::new(["COUNTER", "REASON", "VALUE"]);
    for counter in &info.counters {
        table.row([
            one_line(&counter.name),
            one_line(&counter.reason),
            counter.value.to_string(),
        ]);
    }
    console.line("")?;
    for line in table.lines() {
        console.line(&line)?;
    }
    Ok(())
}
