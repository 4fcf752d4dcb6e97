//! Where things are when nobody says so: the data directory, the relay's address, the credential.
//! One rule for every command, so that a second shell finds what `baton up` started with no flags at all.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches};

use crate::error::cli_error::{CliError, ErrorText};

pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:7070";
pub(crate) const DEFAULT_RELAY: &str = "http://127.0.0.1:7070";
/// The local admin token that a first start on loopback makes (mode 0600).
pub(crate) const ADMIN_TOKEN_FILE: &str = "admin.token";
/// Written by a running relay, so that commands with the same data directory find its address.
pub(crate) const RELAY_URL_FILE: &str = "relay.url";

/// How to reach the relay, for every command that talks to one.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConnectionArgs {
    /// Address of the relay. Without it, the address that a relay wrote into the data directory is used, else
    /// http://127.0.0.1:7070.
    #[arg(
        long,
        env = "BATON_RELAY",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub relay: Option<String>,

    /// File that holds the access token. Without it, the local admin token in the data directory is used.
    #[arg(
        long,
        env = "BATON_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub token_file: Option<PathBuf>,

    /// Data directory of the relay: its address and the local admin token are looked for there. The default is
    /// $XDG_DATA_HOME/baton or ~/.local/share/baton. Named here, it goes before BATON_RELAY.
    #[arg(
        long,
        env = "BATON_DATA",
        value_name = "DIR",
        help_heading = "Connection"
    )]
    pub data: Option<PathBuf>,

    /// PEM file with the certificate authority that the relay's certificate is checked against. Without it, https is checked
    /// against the system's.
    #[arg(
        long,
        env = "BATON_CA",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub ca: Option<PathBuf>,

    /// Tenant that the command is about, for tokens that reach all tenants. Without it, theirs is the tenant `default`.
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

    /// The relay that was named. A flag beats the environment: who names a directory means that one, whatever BATON_RELAY says.
    pub(crate) fn named_relay(&self) -> Option<&str> {
        self.named_relay_with_env(|variable| env::var_os(variable))
    }

    fn named_relay_with_env(&self, variable: impl Fn(&str) -> Option<OsString>) -> Option<&str> {
        let relay = self.relay.as_deref().filter(|url| !url.is_empty())?;
        let data = self.data.as_ref().map(|data| data.as_os_str());
        let is_flag = |value: &OsStr, name| variable(name).as_deref() != Some(value);
        let directory_is_meant = data.is_some_and(|data| is_flag(data, "BATON_DATA"));
        let relay_is_meant = is_flag(relay.as_ref(), "BATON_RELAY");
        (relay_is_meant || !directory_is_meant).then_some(relay)
    }

    /// The relay that was named, or that of the data directory. A directory's own token is sent to no relay but its own: where
    /// that has stopped, whoever listens at the usual address now may be a stranger.
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

    /// The token, or a story about where it was looked for.
    pub(crate) fn token(&self) -> Result<String, CliError> {
        let path = self.token_path();
        let named = self.named_token_file().is_some();
        read_token(&path).map_err(|error| token_file_error(&path, named, &error))
    }

    /// Where it is looked for.
    pub(crate) fn token_path(&self) -> PathBuf {
        let named = self.named_token_file();
        named.map_or_else(|| self.data_dir().join(ADMIN_TOKEN_FILE), Path::to_owned)
    }

    /// What a command line said about the relay, for those commands that talk to one.
    pub(crate) fn from_matches(matches: &clap::ArgMatches) -> Option<Self> {
        let mut leaf = matches;
        while let Some((_, inner)) = leaf.subcommand() {
            leaf = inner;
        }
        // Servers have flags of the same names; this one only clients have.
        leaf.try_contains_id("in_tenant").ok()?;
        Self::from_arg_matches(leaf).ok()
    }
}

/// `$XDG_DATA_HOME/baton`, `~/.local/share/baton`, or `./baton-data` where there is no home.
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
        what: format!("reach the relay of {}", data.display()),
        why: "no relay runs on this data directory".to_owned(),
        hint: "start it with `baton up` or `baton relay`, or name another relay with --relay and its token with --token-file"
            .to_owned(),
    })
}

fn read_token(path: &Path) -> io::Result<String> {
    let token = fs::read_to_string(path)?.trim().to_owned();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it does not hold a token",
        ));
    }
    Ok(token)
}

fn token_file_error(path: &Path, named: bool, error: &io::Error) -> CliError {
    let hint = if named {
        "name a readable file with --token-file or BATON_TOKEN_FILE"
    } else {
        "name a token with --token-file, or the relay's data directory with --data; `baton up` makes both"
    };
    CliError::Usage(ErrorText {
        what: format!("read the access token in {}", path.display()),
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
    fn the_token_of_a_relay_that_has_stopped_is_sent_to_no_other() {
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
    fn a_directory_that_is_named_goes_before_a_relay_of_the_environment() {
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
