//! Checks the `baton` commands in the documents and in the messages of the programs: the real
//! parser must accept every example, and every command in a sentence must exist. A printed hint
//! that fails is worse than none.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use crate::CliArguments;

/// How documents write the executable.
const EXECUTABLE_SPELLINGS: [&str; 3] =
    ["baton ", "target/release/baton ", "cargo run --release -- "];

/// Path and text of every document of the project.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = markdown_files(&root.join("docs"));
    paths.extend(["README.md", "ARCHITECTURE.md", "proto/PROTOCOL.md"].map(|name| root.join(name)));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a document of the project");
        (path.display().to_string(), text)
    };
    paths.into_iter().map(read).collect()
}

/// Every markdown file under a directory.
fn markdown_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory of documents") {
        let path = entry.expect("an entry of a directory").path();
        if path.is_dir() {
            files.extend(markdown_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    files
}

/// Lines of fenced and indented blocks; continued lines are joined.
fn shell_lines(text: &str) -> Vec<String> {
    let (mut lines, mut fenced) = (Vec::new(), false);
    let mut continued = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") || !continued.is_empty() {
            continued.push_str(line.trim().trim_end_matches('\\'));
            if !line.ends_with('\\') {
                lines.push(std::mem::take(&mut continued));
            }
        }
    }
    lines
}

/// The arguments after the executable's name, as a shell would split them, up to a pipe or the
/// end of the command.
fn command_arguments(line: &str) -> Option<Vec<String>> {
    let rest = EXECUTABLE_SPELLINGS
        .iter()
        .find_map(|name| line.strip_prefix(name))?;
    let words = shlex::split(&replace_substitutions(rest)).expect("closed quotes");
    let ends = |word: &String| ["|", "&", "&&", ">", ";"].contains(&word.as_str());
    Some(words.into_iter().take_while(|word| !ends(word)).collect())
}

/// A `$(command)` counts as one word.
fn replace_substitutions(line: &str) -> String {
    let mut parts = line.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.split_once(')').map_or("", |(_, rest)| rest);
        text + "printed" + rest
    })
}

/// Commands inside a sentence: `baton WORD …` between back quotes.
fn commands_in_prose(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let commands = quoted.filter_map(|quoted| quoted.strip_prefix("baton "));
    let words = commands.filter_map(|command| command.split_whitespace().next());
    let names = words.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
    names.map(str::to_owned).collect()
}

/// Directories with messages for people.
const SOURCE_DIRECTORIES: [&str; 5] = [
    "cli/src",
    "relay/src",
    "relay/core/src",
    "daemon/src",
    "daemon/core/src",
];

/// Files beside the programs' own that are tests.
const TEST_MODULES: [&str; 2] = ["documents.rs", "command_reference.rs"];

/// Path and text of every source file, without unit tests.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut waiting: Vec<PathBuf> = SOURCE_DIRECTORIES.map(|name| root.join(name)).into();
    let mut files = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory of the project") {
            let path = entry.expect("an entry").path();
            let name = path.display().to_string();
            if path.is_dir() && !name.ends_with("/tests") {
                waiting.push(path);
            } else if name.ends_with(".rs") && !TEST_MODULES.iter().any(|one| name.ends_with(one)) {
                let text = std::fs::read_to_string(&path).expect("a file of the project");
                let product = text.split("#[cfg(test)]\nmod tests").next();
                files.push((name, product.unwrap_or_default().to_owned()));
            }
        }
    }
    files
}

/// Commands in the messages of a program: between back quotes, or after a colon up to the end of
/// the text.
fn printed_commands(source: &str) -> Vec<String> {
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    // Joins string literals that continue on the next line.
    let mut text = String::new();
    for part in code.split("\\\n") {
        let part = if text.is_empty() {
            part
        } else {
            part.trim_start()
        };
        text.push_str(part);
    }
    let until = |start: &str, ends: &[char]| {
        let parts = text.split(start).skip(1);
        let commands = parts.filter_map(|rest| rest.split(ends).next());
        commands.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut commands = until("`baton ", &['`', '"']);
    commands.extend(until(": baton ", &['"', '\\', ',']));
    commands
}

/// The words of a command, with a value for every placeholder.
fn fill_placeholders(command: &str) -> Vec<String> {
    let mut text = String::new();
    let mut inside = false;
    for letter in command.chars() {
        match letter {
            '{' => text.push_str("filled"),
            '…' => text.push_str("something"),
            '}' | '[' | ']' => {}
            _ if inside => {}
            other => text.push(other),
        }
        inside = letter == '{' || (inside && letter != '}');
    }
    shlex::split(&text).expect("closed quotes")
}

#[test]
fn every_command_that_a_program_prints_can_be_parsed() {
    let mut wrong = Vec::new();
    let mut parsed = 0;
    for (path, source) in sources() {
        for command in printed_commands(&source) {
            let words = std::iter::once("baton".to_owned()).chain(fill_placeholders(&command));
            if let Err(error) = CliArguments::try_parse_from(words) {
                let why = error.to_string();
                let why = why.lines().take(2).collect::<Vec<_>>().join(" ");
                wrong.push(format!("{path}: `baton {command}`: {why}"));
            }
            parsed += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(parsed >= 50, "only {parsed} commands were found");
}

#[test]
fn every_command_in_a_document_can_be_parsed() {
    let mut parsed = 0;
    for (document, text) in documents() {
        for line in shell_lines(&text) {
            let Some(arguments) = command_arguments(&line) else {
                continue;
            };
            let words = std::iter::once("baton".to_owned()).chain(arguments);
            if let Err(error) = CliArguments::try_parse_from(words) {
                let shown = matches!(
                    error.kind(),
                    clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                );
                assert!(shown, "{document}: {line}\n{error}");
            }
            parsed += 1;
        }
    }
    assert!(parsed >= 20, "only {parsed} commands were found");
}

#[test]
fn every_command_in_a_sentence_exists() {
    let cli = CliArguments::command();
    let mut named = 0;
    for (document, text) in documents() {
        for name in commands_in_prose(&text) {
            let known = cli.find_subcommand(&name).is_some();
            assert!(
                known,
                "{document} mentions `baton {name}`, which does not exist"
            );
            named += 1;
        }
    }
    assert!(named >= 20, "only {named} commands were found");
}
