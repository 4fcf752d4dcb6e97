//! What the documents tell people to type is what the command line takes: every `baton` command in them is parsed by the real
//! parser, and every command that a sentence names exists.

use std::path::Path;

use clap::{CommandFactory, Parser};

use crate::Cli;

/// How a document spells the executable.
const SPELLINGS: [&str; 3] = ["baton ", "target/release/baton ", "cargo run --release -- "];

/// Name and text of everything that people read.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_dir(root.join("docs")).expect("the directory of documents");
    let docs = docs.flatten().map(|entry| entry.path());
    let markdown = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    markdown
        .chain(["README.md", "proto/PROTOCOL.md"].map(|name| root.join(name)))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a document of the project");
            (path.display().to_string(), text)
        })
        .collect()
}

/// Lines of fenced and indented blocks, with continued ones put together.
fn lines_to_type(text: &str) -> Vec<String> {
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

/// The words behind the executable's name, as a shell would see them; comments, pipes and what follows are left out.
fn arguments(line: &str) -> Option<Vec<String>> {
    let rest = SPELLINGS.iter().find_map(|name| line.strip_prefix(name))?;
    let words = shlex::split(&without_substitutions(rest)).expect("quotes that are closed");
    let ends = |word: &String| ["|", "&", "&&", ">", ";"].contains(&word.as_str());
    Some(words.into_iter().take_while(|word| !ends(word)).collect())
}

/// A `$(command)` is one word, whatever it prints.
fn without_substitutions(line: &str) -> String {
    let mut parts = line.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.split_once(')').map_or("", |(_, rest)| rest);
        text + "printed" + rest
    })
}

/// Commands inside a sentence: `baton WORD …` between back quotes.
fn named_in_sentences(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let commands = quoted.filter_map(|quoted| quoted.strip_prefix("baton "));
    let words = commands.filter_map(|command| command.split_whitespace().next());
    let names = words.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
    names.map(str::to_owned).collect()
}

#[test]
fn every_command_in_a_document_is_one_that_baton_takes() {
    let mut parsed = 0;
    for (document, text) in documents() {
        for line in lines_to_type(&text) {
            let Some(arguments) = arguments(&line) else {
                continue;
            };
            let line_of_words = std::iter::once("baton".to_owned()).chain(arguments);
            if let Err(error) = Cli::try_parse_from(line_of_words) {
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
fn every_command_that_a_sentence_names_exists() {
    let cli = Cli::command();
    let mut named = 0;
    for (document, text) in documents() {
        for name in named_in_sentences(&text) {
            let known = cli.find_subcommand(&name).is_some();
            assert!(known, "{document} speaks of `baton {name}`");
            named += 1;
        }
    }
    assert!(named >= 20, "only {named} commands were found");
}
