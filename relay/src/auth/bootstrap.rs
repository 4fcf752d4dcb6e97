//! First credentials: they make a new relay usable on its own machine without an administrator.
//!
//! Token files have mode 0600 and lie in the data directory, where the CLI looks by default.
//! The file is durable before the record. A crash in between leaves a file whose token is
//! unknown, and the next start replaces it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use baton_core::ids::TenantScope;
use baton_core::time::WallTime;

use super::{Role, Token, TokenRecord, TokenTable};

pub const ADMIN_TOKEN_FILE: &str = "admin.token";
pub const DAEMON_TOKEN_FILE: &str = "daemon.token";

/// Which local credentials a start creates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootstrapTokens {
    /// An administrator token, if the relay has no token at all.
    #[default]
    FirstAdmin,
    /// An administrator token and a daemon token, for `baton up`. A file with a usable token is
    /// left as it is.
    AdminAndDaemon,
    Nothing,
}

/// Creates the missing tokens and writes their files. The caller makes the records durable and
/// then inserts them into `tokens`.
pub fn make_missing_tokens(
    wanted: BootstrapTokens,
    data: &Path,
    tokens: &TokenTable,
    wall: WallTime,
) -> io::Result<Vec<TokenRecord>> {
    let missing = match wanted {
        BootstrapTokens::Nothing => Vec::new(),
        BootstrapTokens::FirstAdmin if tokens.is_empty() => vec![(Role::Admin, ADMIN_TOKEN_FILE)],
        BootstrapTokens::FirstAdmin => Vec::new(),
        BootstrapTokens::AdminAndDaemon => {
            let both = [
                (Role::Admin, ADMIN_TOKEN_FILE),
                (Role::Daemon, DAEMON_TOKEN_FILE),
            ];
            let missing = |(_, file): &(Role, &str)| !is_usable(&data.join(file), tokens);
            both.into_iter().filter(missing).collect()
        }
    };
    missing
        .into_iter()
        .map(|(role, file)| make_token(role, &data.join(file), wall))
        .collect()
}

/// Creates a local administrator token for imported data. The caller makes the record durable.
pub fn make_local_admin(data: &Path, wall: WallTime) -> io::Result<TokenRecord> {
    make_token(Role::Admin, &data.join(ADMIN_TOKEN_FILE), wall)
}

fn is_usable(file: &Path, tokens: &TokenTable) -> bool {
    fs::read_to_string(file)
        .ok()
        .and_then(|text| Token::parse(text.trim_end()))
        .is_some_and(|token| tokens.authenticate(&token).is_some())
}

fn make_token(role: Role, file: &Path, wall: WallTime) -> io::Result<TokenRecord> {
    let token = Token::generate();
    write_private(file, &token)?;
    Ok(TokenRecord {
        id: token.id,
        name: format!("local-{role}"),
        scope: TenantScope::All,
        role,
        agent_scope: None,
        secret_sha256: token.secret_sha256(),
        created_at: wall,
        expires_at: None,
        revoked_at: None,
        created_by: "bootstrap".into(),
    })
}

/// Replaces the file with a rename. The new file is created with mode 0600, so other users can
/// never read it.
fn write_private(path: &Path, token: &Token) -> io::Result<()> {
    let temporary = temp_path(path);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    writeln!(file, "{}", token.reveal())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn temp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::clock::RelayClock;

    #[test]
    fn first_start_makes_private_token_files_and_later_starts_keep_them() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = TokenTable::load([], RelayClock::system());
        let made = make_missing_tokens(
            BootstrapTokens::FirstAdmin,
            dir.path(),
            &tokens,
            WallTime(1),
        )
        .unwrap();
        assert_eq!(made.len(), 1);
        made.into_iter().for_each(|record| tokens.insert(record));
        let made = make_missing_tokens(
            BootstrapTokens::FirstAdmin,
            dir.path(),
            &tokens,
            WallTime(1),
        )
        .unwrap();
        assert!(made.is_empty());

        let made = make_missing_tokens(
            BootstrapTokens::AdminAndDaemon,
            dir.path(),
            &tokens,
            WallTime(2),
        )
        .unwrap();
        assert_eq!(
            made.iter().map(|m| m.role).collect::<Vec<_>>(),
            [Role::Daemon]
        );
        made.into_iter().for_each(|record| tokens.insert(record));
        for (file, role) in [
            (ADMIN_TOKEN_FILE, Role::Admin),
            (DAEMON_TOKEN_FILE, Role::Daemon),
        ] {
            let path = dir.path().join(file);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let token = Token::parse(fs::read_to_string(&path).unwrap().trim_end()).unwrap();
            let principal = tokens.authenticate(&token).unwrap();
            assert_eq!(principal.role, role);
            assert_eq!(principal.tenant.as_str(), "default");
            tokens.revoke(token.id, WallTime(4));
        }
        let made = make_missing_tokens(
            BootstrapTokens::AdminAndDaemon,
            dir.path(),
            &tokens,
            WallTime(5),
        )
        .unwrap();
        assert_eq!(made.len(), 2, "`baton up` replaces revoked tokens");
        let made = make_missing_tokens(
            BootstrapTokens::FirstAdmin,
            dir.path(),
            &tokens,
            WallTime(5),
        )
        .unwrap();
        assert!(
            made.is_empty(),
            "a relay that has tokens gets no first administrator"
        );
    }
}
