//! The systemd unit files in docs/systemd: required settings are present, and the flags they use
//! exist.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::BATON;

/// Time after the drain for the last frames, the lease extension and Goodbye.
const AFTER_DRAIN_LIMIT: Duration = Duration::from_secs(10);

struct SystemdUnit {
    path: PathBuf,
    /// The values of each key, over all sections.
    lines: BTreeMap<String, Vec<String>>,
}

impl SystemdUnit {
    fn read(name: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/systemd/{name}"));
        let text = std::fs::read_to_string(&path).expect("the unit file exists");
        let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with(['#', '['])) {
            if let Some((key, value)) = line.split_once('=') {
                let values = lines.entry(key.to_owned()).or_default();
                values.push(value.to_owned());
            }
        }
        Self { path, lines }
    }

    fn single_value(&self, key: &str) -> &str {
        match self.lines.get(key).map(Vec::as_slice) {
            Some([value]) => value,
            other => panic!("{} has {key} = {other:?}", self.path.display()),
        }
    }

    /// The arguments after the program.
    fn exec_arguments(&self) -> Vec<&str> {
        self.single_value("ExecStart").split(' ').skip(1).collect()
    }

    fn argument(&self, flag: &str) -> &str {
        let arguments = self.exec_arguments();
        let at = arguments.iter().position(|argument| *argument == flag);
        let at = at.unwrap_or_else(|| panic!("{} has no {flag}", self.path.display()));
        arguments[at + 1]
    }
}

fn parse_seconds(text: &str) -> Duration {
    let number = text.trim_end_matches('s').parse();
    Duration::from_secs(number.expect("seconds"))
}

#[tokio::test]
async fn unit_files_stop_only_the_daemon_and_use_existing_flags() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["baton-relay.service", "baton-daemon.service"] {
        let unit = SystemdUnit::read(name);
        let verb = unit.exec_arguments()[0];
        let help = BATON.run(dir.path(), &[verb, "--help"]).await;
        for flag in unit
            .exec_arguments()
            .iter()
            .filter(|argument| argument.starts_with("--"))
        {
            let known = help
                .stdout
                .split_whitespace()
                .any(|argument| argument == *flag);
            assert!(
                known,
                "{name} uses {flag}, which `baton {verb}` does not have"
            );
        }
        assert_eq!(unit.single_value("Restart"), "always");
        assert_eq!(
            unit.single_value("StartLimitIntervalSec"),
            "0",
            "systemd restarts without limit"
        );
        let stop = parse_seconds(unit.single_value("TimeoutStopSec"));
        assert!(
            stop >= parse_seconds(unit.argument("--drain")) + AFTER_DRAIN_LIMIT,
            "{name}: systemd would kill the process during its drain"
        );
    }
    let daemon = SystemdUnit::read("baton-daemon.service");
    assert_eq!(daemon.single_value("KillMode"), "process");
    assert_eq!(daemon.single_value("Delegate"), "yes");
    assert_eq!(daemon.single_value("OOMPolicy"), "continue");
    let harmful = [
        "PrivateTmp",
        "RuntimeDirectory",
        "DynamicUser",
        "PrivatePIDs",
        "ProtectProc",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "RestrictNamespaces",
        "MemoryDenyWriteExecute",
    ];
    for key in harmful {
        assert!(!daemon.lines.contains_key(key), "{key} breaks agents");
    }
}

/// `systemd-analyze verify` must report nothing. Without systemd the test is skipped.
#[test]
fn systemd_analyze_accepts_the_unit_files() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["baton-relay.service", "baton-daemon.service"] {
        let unit = SystemdUnit::read(name);
        let text = std::fs::read_to_string(&unit.path).unwrap();
        // systemd-analyze checks that the program exists, and baton is not installed here.
        let here = dir.path().join(name);
        std::fs::write(&here, text.replace("/usr/local/bin/baton", "/bin/true")).unwrap();
        let Ok(verified) = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&here)
            .output()
        else {
            return;
        };
        let stderr = String::from_utf8_lossy(&verified.stderr);
        let own_lines: Vec<&str> = stderr
            .lines()
            .filter(|line| line.contains("baton"))
            .collect();
        assert!(
            verified.status.success() && own_lines.is_empty(),
            "{stderr}"
        );
    }
}
