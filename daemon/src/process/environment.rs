//! The environment of a child: an allow-list of the daemon's variables, then the task's own,
//! then Baton's. The daemon's token and the lease token are never among them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use baton_proto::TraceParent;

use super::{ATTEMPT_MARKER, DAEMON_MARKER};

/// Inherited from the daemon when set there; so is every `LC_*`.
const INHERITED_VARIABLES: [&str; 9] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TMPDIR",
];

/// The attempt and the daemon that a process belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessOwner<'a> {
    pub(crate) attempt_id: &'a str,
    pub(crate) daemon_id: &'a str,
    pub(crate) traceparent: Option<TraceParent>,
}

/// The whole environment of a child. `task` are the submitter's variables: reserved and
/// malformed names are left out.
pub(crate) fn child_environment<'a>(
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
    task: impl IntoIterator<Item = (&'a str, &'a str)>,
    owner: &ProcessOwner<'_>,
) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = daemon
        .into_iter()
        .filter(|(name, _)| is_inherited(name))
        .collect();
    let allowed = task
        .into_iter()
        .filter(|(name, value)| is_task_variable(name, value));
    environment.extend(allowed.map(|(name, value)| (name.into(), value.into())));
    environment.insert(ATTEMPT_MARKER.into(), owner.attempt_id.into());
    environment.insert(DAEMON_MARKER.into(), owner.daemon_id.into());
    if let Some(traceparent) = owner.traceparent {
        environment.insert("TRACEPARENT".into(), traceparent.to_string().into());
    }
    environment
}

fn is_inherited(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| INHERITED_VARIABLES.contains(&name) || name.starts_with("LC_"))
}

fn is_task_variable(name: &str, value: &str) -> bool {
    check_variable_name(name).is_ok() && !value.contains('\0')
}

/// Why a variable of this name cannot be set for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableNameError {
    #[error("the name of a variable consists of A-Z, a-z, 0-9 and _ and begins with no digit")]
    Malformed,
    #[error(
        "names that begin with BATON_ are Baton's own, and TRACEPARENT is the task's trace; choose another name"
    )]
    Reserved,
}

/// Whether a task or the daemon's configuration may set a variable of this name.
pub fn check_variable_name(name: &str) -> Result<(), VariableNameError> {
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name
            .bytes()
            .next()
            .is_some_and(|first| !first.is_ascii_digit());
    if !is_name {
        return Err(VariableNameError::Malformed);
    }
    if name.starts_with("BATON_") || name == "TRACEPARENT" {
        return Err(VariableNameError::Reserved);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_only_allowed_task_and_baton_variables() {
        let daemon = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("BATON_TOKEN_FILE", "/x"),
            ("AWS_KEY", "s"),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let task = [
            ("GREETING", "hi"),
            ("PATH", "/opt/bin"),
            ("BATON_ATTEMPT_ID", "forged"),
            ("9X", "no"),
            ("A=B", "no"),
            ("NUL", "a\0b"),
        ];
        let owner = ProcessOwner {
            attempt_id: "attempt-1",
            daemon_id: "daemon-1",
            traceparent: TraceParent::new([0xab; 16], [0xcd; 8], true),
        };
        let environment = child_environment(daemon, task, &owner);
        let seen: Vec<String> = environment
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        let expected = [
            "BATON_ATTEMPT_ID=attempt-1",
            "BATON_DAEMON_ID=daemon-1",
            "GREETING=hi",
            "LC_ALL=C",
            "PATH=/opt/bin",
            "TRACEPARENT=00-abababababababababababababababab-cdcdcdcdcdcdcdcd-01",
        ];
        assert_eq!(seen, expected);
    }
}
