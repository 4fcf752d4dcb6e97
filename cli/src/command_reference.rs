//! The command reference docs/commands.md. It is generated from the command line's definition, and
//! a test compares the two. `BATON_BLESS=1 cargo test -p baton --lib command_reference` rewrites
//! it.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::{CliArguments, with_verb_help};

const INTRODUCTION: &str = "# Commands

This file is generated from the definition of the command line and compared with it by a test
(`the_command_reference_matches_the_command_line` in cli/src/command_reference.rs). Do not edit it.
`baton COMMAND --help` prints the same text.

- Data goes to stdout, everything else to stderr.
- Every command that reads takes `--json`: one object, or one object per line for a stream. The names
  are the JSON names of the protocol's fields (proto/PROTOCOL.md, section 20).
- Durations are written as `30s`, `10m`, `2h` or `14d`, sizes as `64KiB` or `10GiB`.
- An id may be shortened to any prefix that is unique, with or without dashes. A prefix that fits
  several ids is refused with a list of them. Ids begin with the time, so about 13 characters are needed.
- `BATON_RELAY`, `BATON_TOKEN_FILE`, `BATON_DATA` and the other variables below replace their options.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the task did not complete, or the relay refused the request |
| 2 | usage error, a request or credential that cannot be valid, or the relay cannot be reached |
| 3 | the task was canceled |
| 4 | the task needs attention, or an export is incomplete |
| 130 | interrupted with Ctrl-C |
";

/// Headings of options that many commands share. They are described once.
const SHARED_HEADINGS: [&str; 2] = ["Connection", "Logging"];

/// The options of one heading, as a markdown list.
type OptionLists = BTreeMap<String, String>;

/// The whole reference as markdown.
fn render_reference() -> String {
    let mut cli = with_verb_help(CliArguments::command()).term_width(0);
    cli.build();
    // The definition's own order: the table of verbs moves its commands to the end.
    let defined = CliArguments::command();
    let names = defined.get_subcommands().map(Command::get_name);
    let commands: Vec<&Command> = names
        .filter_map(|name| cli.find_subcommand(name))
        .filter(|command| !command.is_hide_set())
        .collect();
    let shared = shared_options(&cli);
    let mut text = format!("{INTRODUCTION}\n## All commands\n\n");
    text += "| command | purpose |\n|---|---|\n";
    for command in &commands {
        let name = command.get_name();
        let about = about(command).replace('|', "\\|");
        let about = about.trim_end_matches('.');
        text += &format!("| [`baton {name}`](#baton-{name}) | {about} |\n");
    }
    for (heading, options) in &shared {
        text += &format!("\n## {heading} options\n\n{options}");
    }
    for command in commands {
        text += &render_command(command, "baton", "##", &shared);
    }
    text
}

/// One command with its arguments and options, then its subcommands.
fn render_command(command: &Command, parent: &str, marks: &str, shared: &OptionLists) -> String {
    let name = format!("{parent} {}", command.get_name());
    let mut text = format!("\n{marks} {name}\n\n{}\n", about(command));
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines() {
        text += &format!("\nUsage: `{}`\n", line.trim());
    }
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    if !positionals.is_empty() {
        text += "\nArguments:\n\n";
        positionals
            .into_iter()
            .for_each(|argument| text += &list_item(argument));
    }
    for (heading, options) in option_lists(command) {
        if shared.get(&heading) == Some(&options) {
            let anchor = heading.to_lowercase();
            text += &format!("\nAlso the [{anchor} options](#{anchor}-options).\n");
        } else {
            text += &format!("\n{heading}:\n\n{options}");
        }
    }
    for subcommand in visible_subcommands(command) {
        text += &render_command(subcommand, &name, "###", shared);
    }
    text
}

/// The options of each heading of a command, without `--help`.
fn option_lists(command: &Command) -> OptionLists {
    let mut lists = OptionLists::new();
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    for option in options.filter(|arg| !arg.is_hide_set() && arg.get_id() != "help") {
        let heading = option.get_help_heading().unwrap_or("Options");
        *lists.entry(heading.to_owned()).or_default() += &list_item(option);
    }
    lists
}

/// The shared options, as the first command that has them describes them.
fn shared_options(cli: &Command) -> OptionLists {
    let mut shared = OptionLists::new();
    for command in visible_subcommands(cli) {
        for (heading, options) in option_lists(command) {
            if SHARED_HEADINGS.contains(&heading.as_str()) {
                shared.entry(heading).or_insert(options);
            }
        }
    }
    shared
}

fn visible_subcommands(command: &Command) -> Vec<&Command> {
    let subcommands = command.get_subcommands();
    subcommands
        .filter(|one| !one.is_hide_set() && one.get_name() != "help")
        .collect()
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    one_line(&about.unwrap_or_default())
}

/// An argument or option as one item of a list.
fn list_item(argument: &Arg) -> String {
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flag = long.or_else(|| argument.get_short().map(|short| format!("-{short}")));
    let takes_value = argument.get_action().takes_values();
    let values = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> = values.iter().map(|value| format!("<{value}>")).collect();
    let values = values.join(" ");
    let spelling = match flag {
        Some(flag) if takes_value => format!("{flag} {values}"),
        Some(flag) => flag,
        None => values,
    };
    let help = argument.get_help().map(ToString::to_string);
    let mut item = format!("- `{spelling}`: {}", one_line(&help.unwrap_or_default()));
    let notes = argument_notes(argument, takes_value);
    if !notes.is_empty() {
        item += &format!(" ({})", notes.join("; "));
    }
    item + "\n"
}

/// Default, allowed values and environment variable of an argument.
fn argument_notes(argument: &Arg, takes_value: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if takes_value {
        let values = argument.get_possible_values();
        let names: Vec<String> = values
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !names.is_empty() {
            notes.push(format!("values: {}", names.join(", ")));
        }
        let defaults = argument.get_default_values().iter();
        notes.extend(defaults.map(|value| format!("default: `{}`", value.to_string_lossy())));
    }
    let variable = argument.get_env().map(|name| name.to_string_lossy());
    notes.extend(variable.map(|name| format!("environment: `{name}`")));
    notes
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_command_reference_matches_the_command_line() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
    let expected = render_reference();
    if std::env::var_os("BATON_BLESS").is_some() {
        std::fs::write(&path, &expected).expect("write the command reference");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected
        .lines()
        .zip(stored.lines())
        .find(|(new, old)| new != old);
    assert!(
        stored == expected,
        "docs/commands.md is not current, first difference: {differs:?}; \
         BATON_BLESS=1 rewrites it"
    );
}
