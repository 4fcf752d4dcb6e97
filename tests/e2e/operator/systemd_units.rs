//! The unit files that we offer: what must stand in them stands there, and what they call exists.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::BATON;

/// After the drain: the last frames, the handing over, the farewell.
const AFTER_DRAIN_LIMIT: Duration = Duration::from_secs(10);

struct SystemdUnit {
    path: PathBuf,
    /// Keys with their values, in every section.
    lines: BTreeMap<String, Vec<String>>,
}

impl SystemdUnit {
    fn read(name: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/systemd/{name}"));
        let text = std::fs::read_to_string(&path).expect("the unit is in the source");
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

    /// The words after the program.
    fn exec_arguments(&self) -> Vec<&str> {
        self.single_value("ExecStart").split(' ').skip(1).collect()
    }

    fn argument(&self, flag: &str) -> &str {
        let arguments = self.exec_arguments();
        let at = arguments.iter().position(|word| *word == flag);
        let at = at.unwrap_or_else(|| panic!("{} gives no {flag}", self.path.display()));
        arguments[at + 1]
    }
}

fn parse_seconds(text: &str) -> Duration {
    let number = text.trim_end_matches('s').parse();
    Duration::from_secs(number.expect("seconds"))
}

#[tokio::test]
async fn unit_files_stop_the_daemon_alone_and_name_flags_that_exist() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["baton-relay.service", "baton-daemon.service"] {
        let unit = SystemdUnit::read(name);
        let verb = unit.exec_arguments()[0];
        let help = BATON.run(dir.path(), &[verb, "--help"]).await;
        for flag in unit
            .exec_arguments()
            .iter()
            .filter(|word| word.starts_with("--"))
        {
            let known = help.stdout.split_whitespace().any(|word| word == *flag);
            assert!(
                known,
                "{name} gives {flag}, which baton {verb} does not know"
            );
        }
        assert_eq!(unit.single_value("Restart"), "always");
        assert_eq!(
            unit.single_value("StartLimitIntervalSec"),
            "0",
            "it never gives up"
        );
        let stop = parse_seconds(unit.single_value("TimeoutStopSec"));
        assert!(
            stop >= parse_seconds(unit.argument("--drain")) + AFTER_DRAIN_LIMIT,
            "{name}: systemd would kill what still drains"
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
        assert!(!daemon.lines.contains_key(key), "{key} harms agents");
    }
}

/// Where systemd is installed it has its own opinion, which must be none. Elsewhere there is nothing to ask.
#[test]
fn systemd_finds_nothing_wrong_with_the_unit_files() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["baton-relay.service", "baton-daemon.service"] {
        let unit = SystemdUnit::read(name);
        let text = std::fs::read_to_string(&unit.path).unwrap();
        // It looks for the program, which is not installed on the machine that tests.
        let here = dir.path().join(name);
        std::fs::write(&here, text.replace("/usr/local/bin/baton", "/bin/true")).unwrap();
        let Ok(verified) = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&here)
            .output()
        else {
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        let about_us: Vec<&str> = said.lines().filter(|line| line.contains("baton")).collect();
        assert!(verified.status.success() && about_us.is_empty(), "{said}");
    }
}
