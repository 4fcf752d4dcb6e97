//! Default places of the data directory, the relay's address and the token. All commands use the
//! same rule, so that a second shell finds what `baton up` started without any flags.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches};

use crate::error::cli_error::{CliError, ErrorText};

pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:7070";
pub(crate) const DEFAULT_RELAY: &str = "http://127.0.0.1:7070";
/// The local admin token that the first start on loopback creates (mode 0600).
pub(crate) const ADMIN_TOKEN_FILE: &str = "admin.token";
/// Address of the running relay, so that commands with the same data directory find it.
pub(crate) const RELAY_URL_FILE: &str = "relay.url";

/// How to reach the relay, for every command that connects to one.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConnectionArgs {
    /// Address of the relay. The default is the address that a relay wrote into the data directory, else
    /// http://127.0.0.1:7070.
    #[arg(
        long,
        env = "BATON_RELAY",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub relay: Option<String>,

    /// File with the access token. The default is the local admin token in the data directory.
    #[arg(
        long,
        env = "BATON_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub token_file: Option<PathBuf>,

    /// Data directory of the relay, with its address and the local admin token. The default is $XDG_DATA_HOME/baton or
    /// ~/.local/share/baton. This flag takes precedence over BATON_RELAY.
    #[arg(
        long,
        env = "BATON_DATA",
        value_name = "DIR",
        help_heading = "Connection"
    )]
    pub data: Option<PathBuf>,

    /// PEM file with the certificate authority of the relay's certificate. The default is the system's list of authorities.
    #[arg(
        long,
        env = "BATON_CA",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub ca: Option<PathBuf>,

    /// Tenant of the command, for tokens that may access all tenants. Their default is the tenant `default`.
    #[arg(
        long,
        env = "BATON_TENANT",
        value_name = "NAME",
        help_heading = "Connection"
    )]
    pub in_tenant: Option<String>,
}

impl ConnectionArgs {
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(default_data_dir)
    }

    /// The relay that was configured. A flag takes precedence over the environment, so --data wins over
    /// BATON_RELAY.
    pub(crate) fn named_relay(&self) -> Option<&str> {
        self.named_relay_with_env(|variable| env::var_os(variable))
    }

    fn named_relay_with_env(&self, variable: impl Fn(&str) -> Option<OsString>) -> Option<&str> {
        let relay = self.relay.as_deref().filter(|url| !url.is_empty())?;
        let data = self.data.as_ref().map(|data| data.as_os_str());
        let is_flag = |value: &OsStr, name| variable(name).as_deref() != Some(value);
        let data_is_flag = data.is_some_and(|data| is_flag(data, "BATON_DATA"));
        let relay_is_flag = is_flag(relay.as_ref(), "BATON_RELAY");
        (relay_is_flag || !data_is_flag).then_some(relay)
    }

    /// The relay that was configured, or the one of the data directory. The token of a data directory is
    /// only sent to the relay of that directory: after it has stopped, another process may listen on the
    /// default address.
    pub(crate) fn relay_url(&self) -> Result<String, CliError> {
        let data = self.data_dir();
        let given = self.named_relay().map(str::to_owned);
        let known = given.or_else(|| recorded_relay_url(&data));
        let own_token = self.named_token_file().is_none() && data.join(ADMIN_TOKEN_FILE).exists();
        match known {
            Some(url) => Ok(url),
            None if own_token => Err(not_running_error(&data)),
            None => Ok(DEFAULT_RELAY.to_owned()),
        }
    }

    fn named_token_file(&self) -> Option<&Path> {
        let named = self.token_file.as_deref();
        named.filter(|path| !path.as_os_str().is_empty())
    }

    /// The token, or an error that names the file.
    pub(crate) fn token(&self) -> Result<String, CliError> {
        let path = self.token_path();
        let named = self.named_token_file().is_some();
        read_token(&path).map_err(|error| token_file_error(&path, named, &error))
    }

    /// The file that the token is read from.
    pub(crate) fn token_path(&self) -> PathBuf {
        let named = self.named_token_file();
        named.map_or_else(|| self.data_dir().join(ADMIN_TOKEN_FILE), Path::to_owned)
    }

    /// The connection flags of a command line; `None` for commands that connect to no relay.
    pub(crate) fn from_matches(matches: &clap::ArgMatches) -> Option<Self> {
        let mut leaf = matches;
        while let Some((_, inner)) = leaf.subcommand() {
            leaf = inner;
        }
        // Servers have flags with the same names; only clients have this one.
        leaf.try_contains_id("in_tenant").ok()?;
        Self::from_arg_matches(leaf).ok()
    }
}

/// `$XDG_DATA_HOME/baton`, `~/.local/share/baton`, or `./baton-data` without a home directory.
pub(crate) fn default_data_dir() -> PathBuf {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    variable("XDG_DATA_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from("baton-data"), |share| share.join("baton"))
}

fn recorded_relay_url(data: &Path) -> Option<String> {
    let text = fs::read_to_string(data.join(RELAY_URL_FILE)).ok()?;
    let url = text.trim();
    (!url.is_empty()).then(|| url.to_owned())
}

fn not_running_error(data: &Path) -> CliError {
    CliError::Unreachable(ErrorText {
        what: format!("cannot reach the relay of {}", data.display()),
        why: "no relay runs on this data directory".to_owned(),
        hint: "start it with `baton up` or `baton relay`, or choose another relay with --relay and its token with --token-file"
            .to_owned(),
    })
}

fn read_token(path: &Path) -> io::Result<String> {
    let token = fs::read_to_string(path)?.trim().to_owned();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it does not contain a token",
        ));
    }
    Ok(token)
}

fn token_file_error(path: &Path, named: bool, error: &io::Error) -> CliError {
    let hint = if named {
        "pass a readable file with --token-file or BATON_TOKEN_FILE"
    } else {
        "pass a token with --token-file, or the relay's data directory with --data; `baton up` creates both"
    };
    CliError::Usage(ErrorText {
        what: format!("cannot read the access token in {}", path.display()),
        why: error.to_string(),
        hint: hint.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(data: &Path) -> ConnectionArgs {
        ConnectionArgs {
            data: Some(data.to_owned()),
            ..ConnectionArgs::default()
        }
    }

    #[test]
    fn a_data_directory_is_enough_to_find_relay_and_token() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(args(dir.path()).relay_url().unwrap(), DEFAULT_RELAY);
        fs::write(dir.path().join(RELAY_URL_FILE), "http://127.0.0.1:9999\n").unwrap();
        fs::write(dir.path().join(ADMIN_TOKEN_FILE), "btn_abc\n").unwrap();
        assert_eq!(
            args(dir.path()).relay_url().unwrap(),
            "http://127.0.0.1:9999"
        );
        assert_eq!(args(dir.path()).token().unwrap(), "btn_abc");
    }

    #[test]
    fn the_token_of_a_stopped_relay_is_not_sent_to_another_relay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ADMIN_TOKEN_FILE), "btn_abc\n").unwrap();
        let stopped = args(dir.path()).relay_url().unwrap_err();
        assert!(stopped.is_transient() && stopped.to_string().contains("no relay runs"));
        let named = ConnectionArgs {
            token_file: Some("/of/another".into()),
            ..args(dir.path())
        };
        assert_eq!(named.relay_url().unwrap(), DEFAULT_RELAY);
    }

    #[test]
    fn a_data_flag_takes_precedence_over_a_relay_of_the_environment() {
        let environment = |name: &str| match name {
            "BATON_RELAY" => Some("http://127.0.0.1:1".into()),
            "BATON_DATA" => Some("/of/the/environment".into()),
            _ => None,
        };
        let named = |relay: &str, data: Option<&str>| {
            let args = ConnectionArgs {
                relay: Some(relay.to_owned()),
                data: data.map(PathBuf::from),
                ..ConnectionArgs::default()
            };
            args.named_relay_with_env(environment).map(str::to_owned)
        };
        let (inherited, given) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
        assert_eq!(named(inherited, None).as_deref(), Some(inherited));
        assert_eq!(
            named(inherited, Some("/of/the/environment")).as_deref(),
            Some(inherited)
        );
        assert_eq!(named(inherited, Some("/here")), None);
        assert_eq!(named(given, Some("/here")).as_deref(), Some(given));
        assert_eq!(named("", Some("/here")), None);
    }

    #[test]
    fn a_missing_or_empty_token_is_a_usage_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = args(dir.path()).token().unwrap_err();
        assert!(missing.to_string().contains(ADMIN_TOKEN_FILE), "{missing}");
        fs::write(dir.path().join(ADMIN_TOKEN_FILE), "\n").unwrap();
        let empty = args(dir.path()).token().unwrap_err();
        assert_eq!(empty.exit(), crate::error::exit_code::CommandExit::Usage);
    }
}
