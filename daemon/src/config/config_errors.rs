//! Lists everything that is wrong with a `daemon.toml` at once, so that a person can correct it
//! in one pass.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use super::config_file::{AgentEntry, LimitsEntry, RootEntry, check_roots};
use super::{ANY_COMMAND_AGENT, ConfigError, key_check};

/// The tables of the file, each of which can be wrong by itself.
#[derive(Deserialize)]
struct RawConfigTables {
    #[serde(default)]
    agents: BTreeMap<String, toml::Value>,
    #[serde(default)]
    roots: BTreeMap<String, toml::Value>,
    limits: Option<toml::Value>,
}

/// One line for each error; empty when `read_config` accepts the file.
pub fn list_config_errors(path: &Path) -> Vec<String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(source) => {
            let path = path.to_owned();
            return vec![ConfigError::Unreadable { path, source }.to_string()];
        }
    };
    let shown = path.display();
    let (table, tables) = match (
        DeTable::parse(&text),
        toml::from_str::<RawConfigTables>(&text),
    ) {
        (Ok(table), Ok(tables)) => (table, tables),
        (Err(error), _) | (Ok(_), Err(error)) => return vec![one_line_error(path, &text, &error)],
    };
    let mut faults = Vec::new();
    if let Err(fault) = key_check::check_keys(&text, table.get_ref()) {
        faults.push(format!("{shown}, {fault}"));
    }
    faults.extend(table_errors(&tables).map(|fault| format!("{shown}, {fault}")));
    faults
}

/// Errors in the contents of the tables.
fn table_errors(tables: &RawConfigTables) -> impl Iterator<Item = String> {
    let mut faults = Vec::new();
    for (name, entry) in &tables.agents {
        faults.extend(read_entry::<AgentEntry>(&format!("agents.{name}"), entry).err());
        if name == ANY_COMMAND_AGENT {
            faults.push(ConfigError::ReservedName(name.clone()).to_string());
        }
    }
    for (name, entry) in &tables.roots {
        match read_entry::<RootEntry>(&format!("roots.{name}"), entry) {
            Ok(root) => {
                let one = BTreeMap::from([(name.clone(), root)]);
                faults.extend(check_roots(one).err().map(|error| error.to_string()));
            }
            Err(fault) => faults.push(fault),
        }
    }
    if let Some(limits) = &tables.limits {
        faults.extend(read_entry::<LimitsEntry>("limits", limits).err());
    }
    faults.into_iter()
}

fn read_entry<T: DeserializeOwned>(name: &str, entry: &toml::Value) -> Result<T, String> {
    let read: Result<T, toml::de::Error> = entry.clone().try_into();
    read.map_err(|error| format!("[{name}]: {}", error.message()))
}

/// In one line: the library's own message with its excerpt needs five.
fn one_line_error(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| 1 + before.matches('\n').count());
    let message = error.message().replace('\n', ", ");
    format!("{}, line {line}: {message}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.toml");
        std::fs::write(&path, text).unwrap();
        list_config_errors(&path)
    }

    #[test]
    fn all_configuration_errors_are_listed_one_per_line() {
        let faults = faults_of(
            "[agents.lint]\nkind = \"comand\"\nprogram = \"make\"\n[agents.gemini]\nkind = \"acp\"\n\
             [roots.src]\npath = \"/nowhere/at/all\"\n[limits]\nmemory_floor_percent = 200\n[agents.x]\nkind = \"claude\"\nmodle = 1\n",
        );
        let expected = [
            "modle",
            "[agents.gemini]",
            "[agents.lint]",
            "\"src\"",
            "[limits]",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:#?}");
        for (fault, expected_text) in faults.iter().zip(expected) {
            assert!(
                fault.contains(expected_text) && !fault.contains('\n'),
                "{expected_text} in {fault}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_an_error_with_its_line() {
        let faults = faults_of("[agents.x]\nkind = claude\n");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].contains("line 2") && !faults[0].contains('\n'),
            "{faults:?}"
        );
        assert!(list_config_errors(Path::new("/nowhere/daemon.toml"))[0].contains("cannot read"));
    }

    #[test]
    fn a_valid_configuration_has_no_errors() {
        let none: Vec<String> = Vec::new();
        assert_eq!(faults_of("[agents.claude]\nkind = \"claude\"\n"), none);
    }
}
