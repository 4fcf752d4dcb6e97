//! `baton token`: access tokens. A secret is shown only once, when it is created.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::{
    CreateTokenRequest, CreateTokenResponse, ListTokensRequest, ListTokensResponse,
    RevokeTokenRequest, Role, Token,
};
use baton_proto::{ShortName, to_json};
use clap::{Args, Subcommand};

use crate::args::duration;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::render::task_view;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print its secret, which is shown only once.
    Create(CreateTokenArgs),
    /// List tokens, without their secrets.
    List(ListTokensArgs),
    /// Revoke a token immediately and end the streams that use it.
    Revoke(RevokeTokenArgs),
}

#[derive(Args, Debug)]
pub(crate) struct CreateTokenArgs {
    /// Name for people, for example of the machine or program that will use the token. The default is its role.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Role of the token: admin, operator, submitter, answerer, agent, daemon or read_only.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Role,

    /// Tenant of the token, or * for a daemon that all tenants share. The default is the tenant of the caller.
    #[arg(
        long,
        value_name = "TENANT",
        default_value = "",
        hide_default_value = true
    )]
    tenant: String,

    /// Scope of a token with the role agent: which tasks it may claim or pick up.
    #[arg(
        long,
        value_name = "SCOPE",
        default_value = "",
        hide_default_value = true
    )]
    agent_scope: String,

    /// How long the token is valid. The default is until it is revoked.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,

    /// Write the secret to this new file, readable only by its owner, instead of printing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the token and its secret as one JSON object.
    #[arg(long, conflicts_with = "out")]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListTokensArgs {
    /// Include tokens that were revoked or have expired.
    #[arg(long)]
    all: bool,

    /// Print one JSON object with the list in `tokens`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeTokenArgs {
    /// Id of the token as `baton token list` shows it, or a unique prefix of it.
    #[arg(value_name = "TOKEN_ID")]
    token_id: String,

    /// Print the token as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

/// Also accepts `read-only`, as people write it.
fn role(text: &str) -> Result<Role, baton_proto::UnknownShortName> {
    Role::from_short_name(&text.replace('-', "_"))
}

pub(crate) async fn run(
    command: TokenCommand,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    match command {
        TokenCommand::Create(args) => create_token(args, console).await,
        TokenCommand::List(args) => print_tokens(args, console).await,
        TokenCommand::Revoke(args) => revoke_token(args, console).await,
    }
}

async fn create_token(
    args: CreateTokenArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    // The file is created first: if that fails, no token is created.
    let mut file = args.out.as_deref().map(create_private_file).transpose()?;
    let request = CreateTokenRequest {
        name: args
            .name
            .unwrap_or_else(|| args.role.short_name().to_owned()),
        tenant: args.tenant,
        role: args.role.into(),
        agent_scope: args.agent_scope,
        ttl_ms: args.ttl.map(duration::millis),
    };
    let response = relay.operator().create_token(request).await;
    if let (Err(_), Some(path)) = (&response, &args.out) {
        // The empty file would make the next try fail.
        drop(std::fs::remove_file(path));
    }
    let response = response?.into_inner();
    if args.json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let (token, secret) = token_and_secret(response)?;
    match &mut file {
        Some(file) => writeln!(file, "{secret}")
            .and_then(|()| file.sync_all())
            .map_err(|error| CliError::local("cannot write the token file", error))?,
        None => console.line(&secret)?,
    }
    let role = token.role().short_name();
    console.note(&format!(
        "token {} ({role}) for tenant {}",
        token.token_id,
        one_line(&token.tenant)
    ));
    Ok(CommandExit::Done)
}

/// The token's record and its secret.
fn token_and_secret(response: CreateTokenResponse) -> Result<(Token, String), CliError> {
    match (response.token, response.secret) {
        (Some(token), Some(secret)) => Ok((token, secret.value)),
        (None | Some(_), None | Some(_)) => Err(CliError::local(
            "the relay's response has no token",
            "it may be of another version",
        )),
    }
}

fn create_private_file(path: &Path) -> Result<std::fs::File, CliError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| {
            CliError::usage(
                format!("cannot create the token file {}: {error}", path.display()),
                "choose a file that does not exist yet",
            )
        })
}

async fn print_tokens(args: ListTokensArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let tokens = list_tokens(&relay, args.all).await?;
    if args.json {
        let response = ListTokensResponse {
            tokens,
            next_page_token: String::new(),
        };
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let now = clock::wall_ms();
    let mut table = TextTable::new(["TOKEN", "NAME", "ROLE", "TENANT", "AGE", "STATUS"]);
    for token in &tokens {
        table.row(token_row(token, now));
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

async fn list_tokens(relay: &RelayClient, include_ended: bool) -> Result<Vec<Token>, CliError> {
    let mut request = ListTokensRequest {
        include_ended,
        page_size: 200,
        page_token: String::new(),
    };
    let mut tokens = Vec::new();
    loop {
        let page = relay
            .operator()
            .list_tokens(request.clone())
            .await?
            .into_inner();
        tokens.extend(page.tokens);
        if page.next_page_token.is_empty() {
            return Ok(tokens);
        }
        request.page_token = page.next_page_token;
    }
}

fn token_row(token: &Token, now_ms: u64) -> [String; 6] {
    let expired = token
        .expires_at
        .as_ref()
        .is_some_and(|at| task_view::unix_ms(at) <= now_ms);
    let status = match (&token.revoked_at, expired) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "live",
    };
    [
        one_line(&token.token_id),
        one_line(&token.name),
        token.role().short_name().to_owned(),
        one_line(&token.tenant),
        task_view::age(token.created_at.as_ref(), now_ms),
        status.to_owned(),
    ]
}

async fn revoke_token(
    args: RevokeTokenArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = RevokeTokenRequest {
        token_id: id_prefix::resolve_token_id(&relay, &args.token_id).await?,
    };
    let response = relay.operator().revoke_token(request).await?.into_inner();
    if let (true, Some(token)) = (args.json, &response.token) {
        console.json(&to_json(token))?;
    } else {
        console.note("revoked");
    }
    Ok(CommandExit::Done)
}
