//! `baton info`: who the relay is, whether it takes work, and what it has counted since its start.

use baton_proto::v1::{RelayInfoRequest, RelayInfoResponse};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::JsonArg;
use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::sanitize::one_line;
use crate::table::Table;
use crate::task_view;

#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: InfoArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let info = relay.operator().relay_info(RelayInfoRequest {}).await?;
    let info = info.into_inner();
    if args.json.json {
        console.json(&to_json(&info))?;
        return Ok(Exit::Done);
    }
    for (name, value) in facts(&info, clock::wall_ms()) {
        console.line(&format!("{name:<12}{value}"))?;
    }
    counters(&info, console)?;
    Ok(Exit::Done)
}

fn facts(info: &RelayInfoResponse, now_ms: u64) -> Vec<(&'static str, String)> {
    let you = format!(
        "{}, {} of tenant {}",
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
        ("admitting", admitting(info)),
        ("disk", disk(info)),
        ("you", you),
    ]
}

fn admitting(info: &RelayInfoResponse) -> String {
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

fn disk(info: &RelayInfoResponse) -> String {
    let disk = info.disk.unwrap_or_default();
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "{} MiB of {} MiB are free, {} MiB must be; {} MiB of ballast",
        mib(disk.free_bytes),
        mib(disk.total_bytes),
        mib(disk.needed_bytes),
        mib(disk.ballast_bytes)
    )
}

fn counters(info: &RelayInfoResponse, console: &Console) -> Result<(), CliError> {
    if info.counters.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["COUNTED", "REASON", "VALUE"]);
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
