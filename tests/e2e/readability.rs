//! Rules about how the source reads: names, folders and comments, measured over the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tidy::{all_sources, workspace_root};

/// Crates with fewer types have no meaningful share.
const TYPES_IN_A_CRATE: usize = 20;
const ONE_WORD_TYPES_PERCENT: usize = 25;
const FILES_IN_A_FOLDER: usize = 15;
const COMMENT_COLUMNS: usize = 100;
const ODD_COMMENTS_PER_MILLE: usize = 5;
/// Names that every module may define for itself.
const SHARED_TYPE_NAMES: [&str; 3] = ["State", "Error", "Config"];
/// Words of comments that narrate instead of naming the part that acts.
const ODD_WORDS: [&str; 5] = ["nobody", "whoever", "told", "said", "heard"];

/// The names of the structs, enums and traits that a file defines.
fn defined_types(text: &str) -> Vec<&str> {
    text.lines().filter_map(defined_type).collect()
}

fn defined_type(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let rest = match rest.strip_prefix("pub") {
        Some(visible) => visible.split_once(' ').map_or(visible, |(_, rest)| rest),
        None => rest,
    };
    // `pub(in path) struct` has one more word.
    let rest = rest.split_once(") ").map_or(rest, |(_, rest)| rest);
    let keywords = ["struct ", "enum ", "trait "];
    let name = keywords.iter().find_map(|word| rest.strip_prefix(word))?;
    let end = name.find(|c: char| !c.is_alphanumeric());
    let name = &name[..end.unwrap_or(name.len())];
    name.starts_with(char::is_uppercase).then_some(name)
}

/// Words in `CamelCase`.
fn word_count(name: &str) -> usize {
    name.chars().filter(|c| c.is_uppercase()).count()
}

/// The nearest directory above that has a manifest.
fn crate_of(path: &Path) -> PathBuf {
    let has_manifest = |directory: &&Path| directory.join("Cargo.toml").exists();
    let found = path.ancestors().skip(1).find(has_manifest);
    found.expect("a source file of a crate").to_path_buf()
}

fn comment_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| line.trim_start().starts_with("//"))
}

fn is_odd(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    let mut words = comment.split(|c: char| !c.is_alphanumeric());
    words.any(|word| ODD_WORDS.contains(&word))
}

#[test]
fn type_names_have_two_words_or_more() {
    let mut by_crate: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (path, text) in all_sources() {
        let names = defined_types(&text).into_iter().map(str::to_owned);
        by_crate.entry(crate_of(&path)).or_default().extend(names);
    }
    for (directory, names) in by_crate {
        let short: Vec<&String> = names.iter().filter(|name| word_count(name) == 1).collect();
        let allowed = names.len() * ONE_WORD_TYPES_PERCENT / 100;
        let directory = directory.strip_prefix(workspace_root()).unwrap().display();
        println!("{directory}: {} of {} types", short.len(), names.len());
        assert!(
            names.len() < TYPES_IN_A_CRATE || short.len() <= allowed,
            "{directory} has too many types of one word: {short:?}"
        );
    }
}

#[test]
fn a_type_name_is_defined_at_most_twice() {
    let mut defined: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in all_sources() {
        for name in defined_types(&text) {
            defined
                .entry(name.to_owned())
                .or_default()
                .push(path.clone());
        }
    }
    for (name, files) in defined {
        let is_shared = SHARED_TYPE_NAMES.contains(&name.as_str());
        assert!(files.len() <= 2 || is_shared, "{name} is in {files:?}");
    }
}

#[test]
fn folders_have_at_most_fifteen_source_files() {
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (path, _) in all_sources() {
        let folder = path.parent().expect("a file in a folder").to_path_buf();
        *folders.entry(folder).or_default() += 1;
    }
    for (folder, files) in folders {
        let folder = folder.display();
        assert!(
            files <= FILES_IN_A_FOLDER,
            "{folder} has {files} source files"
        );
    }
}

#[test]
fn comments_are_short_lines_of_plain_english() {
    let (mut lines, mut comments, mut odd) = (0, 0, Vec::new());
    for (path, text) in all_sources() {
        lines += text.lines().count();
        for comment in comment_lines(&text) {
            comments += 1;
            let width = comment.chars().count();
            assert!(width <= COMMENT_COLUMNS, "{}: {comment}", path.display());
            odd.extend(is_odd(comment).then(|| format!("{}: {comment}", path.display())));
        }
    }
    println!("{comments} comment lines of {lines}, {} odd", odd.len());
    assert!(
        odd.len() * 1000 <= comments * ODD_COMMENTS_PER_MILLE,
        "{odd:#?}"
    );
    let percent = comments * 100 / lines;
    assert!(
        (6..=15).contains(&percent),
        "comments are {percent} % of all lines"
    );
}

#[test]
fn the_measures_see_what_they_count() {
    let text = "pub(in crate::a) struct LeaseClock {\n    enum Kind {\npub trait Clock: Send {}\nlet x = 1;\nfn f() {}";
    assert_eq!(defined_types(text), ["LeaseClock", "Kind", "Clock"]);
    assert_eq!([word_count("LeaseClock"), word_count("Clock")], [2, 1]);
    assert!(is_odd("// The daemon is Told so.") && !is_odd("// A retold story."));
}
