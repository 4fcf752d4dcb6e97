//! docs/simulation.md lists exactly the existing mutants.

use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/simulation.md");
const MUTANTS: [&str; 2] = [
    include_str!("../../../relay/core/src/mutants.rs"),
    include_str!("../../../daemon/core/src/mutants.rs"),
];

/// Names of the declarations: `Name = "what is broken",`.
fn declared() -> BTreeSet<&'static str> {
    let lines = MUTANTS.iter().flat_map(|text| text.lines());
    let declarations = lines.filter(|line| line.contains(" = \""));
    declarations
        .filter_map(|line| line.trim().split_once(" = ").map(|(name, _)| name))
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .collect()
}

/// The last column of the table of promises.
fn documented() -> BTreeSet<&'static str> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| "));
    let last = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    let names = last.flat_map(|cell| cell.split(", ").map(str::trim));
    let is_name = |name: &&str| !name.contains(' ') && name.starts_with(char::is_uppercase);
    names.filter(is_name).collect()
}

#[test]
fn every_mutant_is_documented_with_its_promise() {
    let declared = declared();
    assert!(declared.len() >= 20, "{declared:?}");
    assert_eq!(declared, documented());
}
