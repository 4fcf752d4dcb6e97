//! Rules about the documents: the tests, files and links that they name exist, and every promise
//! and requirement names a test that `cargo test` runs.

use std::path::{Path, PathBuf};

use crate::tidy::{all_sources, workspace_root};

const PROMISES: usize = 17;
/// A quoted name with this many words is the name of a test.
const WORDS_OF_A_TEST_NAME: usize = 5;
const TOP_FOLDERS: [&str; 7] = [
    "shared/", "proto/", "relay/", "daemon/", "cli/", "tests/", "docs/",
];
const FILE_ENDINGS: [&str; 6] = [".rs", ".md", ".proto", ".toml", ".sh", ".py"];

/// Documents whose file names are relative to a folder that they name.
const SUBJECT_FOLDERS: [(&str, &str); 1] = [("docs/simulation.md", "tests/sim/src")];

/// A markdown file: its path from the root of the workspace, and its text.
struct MarkdownDocument {
    path: PathBuf,
    text: String,
}

/// A test that a document names in the form `name` (path/file.rs).
#[derive(Debug, PartialEq)]
struct NamedTest {
    name: String,
    file: String,
}

fn read_document(path: &str) -> MarkdownDocument {
    let text = std::fs::read_to_string(workspace_root().join(path));
    MarkdownDocument {
        path: PathBuf::from(path),
        text: text.unwrap_or_else(|_| panic!("{path} is not there")),
    }
}

/// Every document of the workspace. The changelog is history and may name what is gone.
fn all_documents() -> Vec<MarkdownDocument> {
    let mut waiting: Vec<PathBuf> = ["", "docs", "proto", "tests"].map(PathBuf::from).into();
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        let entries = std::fs::read_dir(workspace_root().join(&directory));
        for entry in entries.expect("a directory of the workspace").flatten() {
            let path = directory.join(entry.file_name());
            let is_root = directory.as_os_str().is_empty();
            if entry.path().is_dir() && !is_root {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md")
                && !path.ends_with("CHANGELOG.md")
            {
                found.push(read_document(&path.display().to_string()));
            }
        }
    }
    found
}

/// The texts between back quotes, each with the text that follows it.
fn quoted_texts(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split('`').collect();
    let quoted = parts.iter().skip(1).step_by(2);
    let after = parts.iter().skip(2).step_by(2);
    quoted.copied().zip(after.copied()).collect()
}

fn is_identifier(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit();
    !text.is_empty() && text.bytes().all(is_part)
}

fn named_tests(text: &str) -> Vec<NamedTest> {
    let quoted = quoted_texts(text).into_iter();
    let named = quoted.filter_map(|(name, after)| {
        let file = after.trim_start().strip_prefix('(')?;
        let file = file.split([')', ';', ',']).next()?.trim();
        (is_identifier(name) && file.ends_with(".rs")).then(|| NamedTest {
            name: name.to_owned(),
            file: file.to_owned(),
        })
    });
    named.collect()
}

/// Names of five words or more between back quotes, with or without a file.
fn long_names(text: &str) -> Vec<&str> {
    let quoted = quoted_texts(text).into_iter().map(|(name, _)| name);
    quoted
        .filter(|name| is_identifier(name))
        .filter(|name| name.split('_').count() >= WORDS_OF_A_TEST_NAME)
        .collect()
}

/// Paths of files of the workspace, quoted or not.
fn named_files(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./-*<>{}".contains(c);
    text.split(|c: char| !is_part(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| TOP_FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| FILE_ENDINGS.iter().any(|ending| word.ends_with(ending)))
        .filter(|word| !word.contains(['*', '<', '{']))
        .collect()
}

/// The targets of markdown links to files and headings of the workspace.
fn local_links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .collect()
}

/// The anchors that a markdown viewer gives the headings of a document.
fn heading_anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    titles
        .map(|title| title.chars().filter(kept).collect::<String>())
        .map(|title| title.replace(' ', "-"))
        .collect()
}

/// Whether `cargo test` runs this function of the source: it is a test, and is not ignored.
fn is_running_test(source: &str, name: &str) -> Option<bool> {
    let (before, _) = source.split_once(&format!("fn {name}("))?;
    let (lines_above, _) = before.rsplit_once('\n').unwrap_or_default();
    let attributes: Vec<&str> = lines_above
        .lines()
        .rev()
        .take_while(|line| line.trim_start().starts_with(['#', '/']))
        .collect();
    // Within a proptest block the tests have the attribute in the source as well.
    let is_test = attributes.iter().any(|line| line.contains("test"));
    let is_ignored = attributes.iter().any(|line| line.contains("ignore"));
    Some(is_test && !is_ignored)
}

fn assert_test_runs(document: &Path, test: &NamedTest) {
    let NamedTest { name, file } = test;
    let document = document.display();
    let source = std::fs::read_to_string(workspace_root().join(file))
        .unwrap_or_else(|_| panic!("{document} names {file}, which is not there"));
    match is_running_test(&source, name) {
        Some(runs) => assert!(
            runs,
            "{document}: `cargo test` does not run {name} ({file})"
        ),
        None => panic!("{document}: {file} has no test {name}"),
    }
}

#[test]
fn every_test_that_a_document_names_is_run_by_cargo_test() {
    let sources = all_sources();
    for MarkdownDocument { path, text } in all_documents() {
        for test in named_tests(&text) {
            assert_test_runs(&path, &test);
        }
        for name in long_names(&text) {
            let runs = sources
                .iter()
                .any(|(_, source)| is_running_test(source, name) == Some(true));
            assert!(runs, "{}: no test is called {name}", path.display());
        }
    }
}

/// The sections of docs/promises.md, `## 1. …` to `## 17. …`, name at least one test each.
#[test]
fn every_promise_names_a_test() {
    let promises = read_document("docs/promises.md").text;
    for number in 1..=PROMISES {
        let section = promises.split("\n## ").find_map(|section| {
            let mark = format!("{number}. ");
            section.strip_prefix(mark.as_str())
        });
        let section = section.unwrap_or_else(|| panic!("promise {number} has no section"));
        assert!(
            !named_tests(section).is_empty(),
            "promise {number} names no test"
        );
    }
}

/// Each requirement has one row, and each row names a test or a check of CI.
#[test]
fn every_requirement_names_a_test() {
    let requirements = read_document("tests/REQUIREMENTS.md").text;
    let counts = [("G", 9), ("O", 12), ("A", 13), ("L", 7), ("C", 13)];
    for (group, rows) in counts {
        for number in 1..=rows {
            let mark = format!("| {group}{number} |");
            let mut found = requirements.lines().filter(|line| line.starts_with(&mark));
            let row = found.next();
            let row = row.unwrap_or_else(|| panic!("{group}{number} has no row"));
            assert!(found.next().is_none(), "{group}{number} has two rows");
            let is_checked = !named_tests(row).is_empty() || row.contains("`.ci/run`");
            assert!(
                is_checked,
                "{group}{number} names neither a test nor a check"
            );
        }
    }
}

#[test]
fn every_file_that_a_document_names_exists() {
    for MarkdownDocument { path, text } in all_documents() {
        let subject = SUBJECT_FOLDERS
            .iter()
            .find(|(name, _)| path == Path::new(name));
        let folders = subject.map(|(_, folder)| *folder).into_iter().chain([""]);
        let folders: Vec<PathBuf> = folders.map(|name| workspace_root().join(name)).collect();
        for file in named_files(&text) {
            let exists = folders.iter().any(|folder| folder.join(file).exists());
            assert!(exists, "{} names {file}", path.display());
        }
    }
}

#[test]
fn every_link_in_a_document_leads_to_a_file_and_a_heading() {
    for MarkdownDocument { path, text } in all_documents() {
        let document = path.display();
        for link in local_links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let directory = path.parent().expect("a document in a folder");
            let target = match file {
                "" => workspace_root().join(&path),
                file => workspace_root().join(directory).join(file),
            };
            assert!(target.exists(), "{document} links to {link}");
            if !anchor.is_empty() {
                let target = std::fs::read_to_string(&target).expect("a linked document");
                let has_heading = heading_anchors(&target).iter().any(|found| found == anchor);
                assert!(has_heading, "{document} links to the heading {link}");
            }
        }
    }
}

#[test]
fn the_searches_in_documents_find_what_they_look_for() {
    let text = "`first_test` (relay/a.rs), `a_test_of_five_words`, `a_code`\n(tests/b.rs; long).";
    let file = |name: &str, file: &str| NamedTest {
        name: name.to_owned(),
        file: file.to_owned(),
    };
    let expected = [
        file("first_test", "relay/a.rs"),
        file("a_code", "tests/b.rs"),
    ];
    assert_eq!(named_tests(text), expected);
    assert_eq!(long_names(text), ["a_test_of_five_words"]);
    assert_eq!(named_files(text), ["relay/a.rs", "tests/b.rs"]);
    let linked = "[a](docs/x.md#one-two), [b](https://example.com), [c](#d)";
    assert_eq!(local_links(linked), ["docs/x.md#one-two", "#d"]);
    assert_eq!(heading_anchors("## 1. One, `two`"), ["1-one-two"]);
    let source = "#[test]\nfn runs() {}\n#[test]\n#[ignore]\nfn is_slow() {}";
    assert_eq!(is_running_test(source, "runs"), Some(true));
    assert_eq!(is_running_test(source, "is_slow"), Some(false));
    assert_eq!(is_running_test(source, "is_absent"), None);
}
