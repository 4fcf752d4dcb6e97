//! `baton claim`, `baton pick-up`, `baton renew`, `baton release`: leases at a terminal, for tokens with the
//! role agent.
//!
//! The lease token is printed once and read from the environment only: an argument would show up in every
//! process list.

use std::fmt;

use baton_proto::v1::{
    AgentGrant, AgentLease, AgentReleaseRequest, ClaimRequest, LeaseToken, PickUpRequest,
    RenewRequest,
};
use baton_proto::{ShortName, to_json};
use clap::Args;
use serde_json::Value;

use crate::args::duration;
use crate::args::shared_args::{OptionalReasonArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// Id of the task. The default is the first task that the token's scope may claim.
    #[arg(value_name = "TASK", default_value = "", hide_default_value = true)]
    task_id: String,

    /// Print the lease with its token, the task and the state of earlier attempts as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PickUpArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// The parked attempt that you expect; refused if another attempt is parked now.
    #[arg(
        long,
        value_name = "ATTEMPT",
        default_value = "",
        hide_default_value = true
    )]
    attempt: String,

    #[command(flatten)]
    why: OptionalReasonArg,

    /// Print the lease with its token, the task and the state of earlier attempts as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

/// A lease that was claimed or picked up.
#[derive(Args, Debug)]
pub(crate) struct LeaseArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Id of the attempt.
    #[arg(value_name = "ATTEMPT")]
    attempt_id: String,

    /// The lease token, as `claim` and `pick-up` print it.
    #[arg(skip = LeaseTokenSecret::from_environment())]
    token: LeaseTokenSecret,
}

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    why: OptionalReasonArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

const TOKEN_VARIABLE: &str = "BATON_LEASE_TOKEN";

/// The value of the environment variable; its Debug output hides it.
struct LeaseTokenSecret(Option<String>);

impl LeaseTokenSecret {
    fn from_environment() -> Self {
        Self(std::env::var(TOKEN_VARIABLE).ok())
    }

    fn decode(&self) -> Option<Vec<u8>> {
        let hex = self.0.as_deref()?.trim();
        let pair = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(pair).collect();
        bytes.filter(|bytes| bytes.len() == 32)
    }
}

impl fmt::Debug for LeaseTokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl LeaseArgs {
    async fn resolve(self, relay: &RelayClient) -> Result<AgentLease, CliError> {
        let task_id = self.task.resolve(relay).await?;
        let attempt_id = id_prefix::resolve_attempt_id(relay, &task_id, &self.attempt_id).await?;
        agent_lease(task_id, attempt_id, &self.token)
    }
}

/// The lease of an attempt, with the token from the environment, for other commands.
pub(crate) fn lease_from_environment(
    task_id: String,
    attempt_id: String,
) -> Result<AgentLease, CliError> {
    agent_lease(task_id, attempt_id, &LeaseTokenSecret::from_environment())
}

/// The holder of a task must send its lease; other users may call these commands without one. So a
/// denied call gets the hint to pass the lease.
pub(crate) fn with_holder_hint(error: CliError, verb: &str) -> CliError {
    match error {
        CliError::Rejected(mut rejection) if rejection.machine_code == "permission_denied" => {
            rejection.text.hint = format!(
                "if you hold the task, pass its lease: {TOKEN_VARIABLE}=… baton {verb} TASK --attempt ATTEMPT …, as \
                 `baton claim` or `baton pick-up TASK` printed it"
            );
            CliError::Rejected(rejection)
        }
        other => other,
    }
}

fn agent_lease(
    task_id: String,
    attempt_id: String,
    token: &LeaseTokenSecret,
) -> Result<AgentLease, CliError> {
    let token = token.decode().ok_or_else(|| {
        CliError::usage(
            format!("{TOKEN_VARIABLE} contains no lease token"),
            "set it to the 64 digits that `baton claim` or `baton pick-up TASK` printed",
        )
    })?;
    Ok(AgentLease {
        task_id,
        attempt_id,
        token: Some(LeaseToken {
            value: token.into(),
        }),
    })
}

pub(crate) async fn claim(args: ClaimArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = ClaimRequest {
        task_id: id_prefix::resolve_task_id(&relay, &args.task_id).await?,
        ..ClaimRequest::default()
    };
    match relay.agents().claim(request).await?.into_inner().grant {
        Some(grant) => print_grant(&grant, args.json, console),
        None => {
            console.note("no task of this scope can be claimed now");
            Ok(CommandExit::NotCompleted)
        }
    }
}

pub(crate) async fn pick_up(
    args: PickUpArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = PickUpRequest {
        attempt_id: id_prefix::resolve_attempt_id(&relay, &task_id, &args.attempt).await?,
        task_id,
        reason: args.why.reason,
        ..PickUpRequest::default()
    };
    let grant = relay.agents().pick_up(request).await?.into_inner().grant;
    print_grant(&grant.ok_or_else(missing_task_error)?, args.json, console)
}

pub(crate) async fn renew(args: RenewArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let lease = Some(args.lease.resolve(&relay).await?);
    let renewed = relay.agents().renew(RenewRequest { lease }).await?;
    let renewed = renewed.into_inner();
    console.line(&duration::format_short(renewed.granted_ms))?;
    if renewed.cancel_requested {
        console.note(
            "a cancellation was requested: stop, then release the task with: baton release TASK ATTEMPT",
        );
    }
    Ok(CommandExit::Done)
}

pub(crate) async fn release(
    args: ReleaseArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = AgentReleaseRequest {
        lease: Some(args.lease.resolve(&relay).await?),
        reason: args.why.reason,
        ..AgentReleaseRequest::default()
    };
    let response = relay.agents().release(request).await?.into_inner();
    let task = response.task.ok_or_else(missing_task_error)?;
    console.line(task.state().short_name())?;
    Ok(CommandExit::Done)
}

fn print_grant(
    grant: &AgentGrant,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    if json {
        console.json(&grant_json(grant))?;
        return Ok(CommandExit::Done);
    }
    let re = grant.r#ref.clone().unwrap_or_default();
    console.line(&format!("task {}", re.task_id))?;
    console.line(&format!("attempt {}", re.attempt_id))?;
    console.line(&format!("token {}", token_hex(grant)))?;
    console.note(&format!(
        "the lease ends in {} unless it is renewed: {TOKEN_VARIABLE}=… baton renew {} {}",
        duration::format_short(grant.granted_ms),
        re.task_id,
        re.attempt_id
    ));
    Ok(CommandExit::Done)
}

/// The JSON of a message never contains a token, because it may be logged. Only here the holder gets
/// the token.
fn grant_json(grant: &AgentGrant) -> Value {
    let mut shown = to_json(grant);
    shown["token"] = token_hex(grant).into();
    shown
}

/// The token as BATON_LEASE_TOKEN expects it.
fn token_hex(grant: &AgentGrant) -> String {
    let token = grant.token.clone().unwrap_or_default().value;
    token.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_grant_contains_a_token_for_the_environment() {
        let value: Vec<u8> = (0..32).collect();
        let grant = AgentGrant {
            token: Some(LeaseToken {
                value: value.clone().into(),
            }),
            granted_ms: 30_000,
            ..AgentGrant::default()
        };
        let shown = grant_json(&grant);
        let token = shown["token"].as_str().expect("a string").to_owned();
        assert_eq!(LeaseTokenSecret(Some(token)).decode(), Some(value));
        assert_eq!(shown["grantedMs"], to_json(&grant)["grantedMs"]);
        assert_eq!(to_json(&grant)["token"], "redacted");
    }
}
