//! Finds live processes in /proc by a marker in their environment, independent of their session
//! and parent.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::wait::poll_until;

/// Set by tests on the tasks they submit; every process of the task inherits it.
pub const MARKER_VARIABLE: &str = "CENSUS_MARK";

/// The marker's value in the environment. It includes the pid, so that two test runs do not
/// count each other's processes.
pub(crate) fn process_marker(mark: &str) -> String {
    format!("{mark}-{}", std::process::id())
}

/// A live process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: u32,
    pub command_line: String,
}

/// Contains the attempt's id in the environment of all its processes.
const ATTEMPT_VARIABLE: &str = "BATON_ATTEMPT_ID";

/// Live processes with the marker. A zombie has no environment and is not counted.
pub fn marked_processes(mark: &str) -> Vec<LiveProcess> {
    processes_by_variable(MARKER_VARIABLE)
        .remove(&process_marker(mark))
        .unwrap_or_default()
}

/// Live processes of an attempt, including its shim.
pub fn attempt_processes(attempt_id: &str) -> Vec<LiveProcess> {
    processes_by_attempt()
        .remove(attempt_id)
        .unwrap_or_default()
}

/// Live processes of all attempts on this machine, by attempt id, from one scan.
pub fn processes_by_attempt() -> BTreeMap<String, Vec<LiveProcess>> {
    processes_by_variable(ATTEMPT_VARIABLE)
}

/// A variable of an attempt's agent: from the first of its processes that has it.
pub fn attempt_variable(attempt_id: &str, name: &str) -> Option<String> {
    let processes = attempt_processes(attempt_id).into_iter();
    let paths = processes.map(|process| PathBuf::from(format!("/proc/{}", process.pid)));
    paths
        .filter_map(|path| environment_variable(&path, name))
        .next()
}

/// The shim of an attempt: the process without the task's environment.
pub fn attempt_shim(attempt_id: &str) -> Option<LiveProcess> {
    let is_shim = |process: &LiveProcess| {
        let path = PathBuf::from(format!("/proc/{}", process.pid));
        environment_variable(&path, MARKER_VARIABLE).is_none()
    };
    attempt_processes(attempt_id).into_iter().find(is_shim)
}

fn processes_by_variable(name: &str) -> BTreeMap<String, Vec<LiveProcess>> {
    let mut living: BTreeMap<String, Vec<LiveProcess>> = BTreeMap::new();
    for (pid, path) in all_processes() {
        if let Some(value) = environment_variable(&path, name) {
            let command_line = command_line(&path);
            let process = LiveProcess { pid, command_line };
            living.entry(value).or_default().push(process);
        }
    }
    living
}

fn environment_variable(path: &Path, name: &str) -> Option<String> {
    let environment = fs::read(path.join("environ")).ok()?;
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Returns when no process has the marker.
pub async fn wait_until_marked_gone(mark: &str) {
    poll_until(&format!("all processes of {mark} to end"), || {
        marked_processes(mark).is_empty().then_some(())
    })
    .await;
}

fn all_processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").expect("this machine has /proc");
    entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    })
}

fn command_line(path: &Path) -> String {
    let bytes = fs::read(path.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
