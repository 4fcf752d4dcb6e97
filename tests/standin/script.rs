//! Steps of a stand-in agent in one turn. Steps are separated by line breaks or `;`:
//!
//! | step | effect |
//! |---|---|
//! | `say WORDS`, `think WORDS` | text, in two parts if the protocol has partial messages |
//! | `hint` | an event that is not visible |
//! | `tool NAME ARGUMENT` | a tool call with its start and end |
//! | `use NAME ARGUMENTS` | calls a tool of the daemon's server; prints `ok` or the error code |
//! | `begin NAME ARGUMENT`, `end` | start and end of a tool call, with other steps between them |
//! | `ask NAME ARGUMENT` | a tool call with a permission request; prints `allowed` or `denied` |
//! | `question TEXT = A, B & TEXT = C, D` | questions; `+=` for several choices; prints answers |
//! | `read PATH` | requests a file from its client, if the protocol supports it |
//! | `stall` | sends nothing more; an interrupt ends the turn |
//! | `nap MS` | the same for a while |
//! | `until FILE` | the same until the file exists |
//! | `flood BYTES` | this much text |
//! | `overlong BYTES` | one line of this length |
//! | `garbage` | a line that is not a message |
//! | `novel` | an event of an unknown kind |
//! | `error STATUS` | the provider fails with this status, and so does the turn |
//! | `crash CODE` | the process exits in the middle of the turn |
//! | `write FILE WORDS` | creates a file and its directory |
//! | `echo` | prints the prompt of this turn |
//! | `again` | ends the turn with success; the following steps are the next turn |
//! | `hang` | the process does not exit after the result |
//! | `deaf` | never reads stdin; first step, only in `STANDIN_SCRIPT` |
//! | `aloof` | completes the handshake but does not read its prompt; only in `STANDIN_SCRIPT` |
//! | `late MS` | reads nothing for this long; first step, only in `STANDIN_SCRIPT` |
//! | `mute` | reads but sends nothing, from the prompt on (`STANDIN_SCRIPT`: from the start) |
//! | `forget` | rejects every earlier conversation; only in `STANDIN_SCRIPT` |
//! | `ignore-term` | TERM has no effect |
//!
//! A turn without an `error` ends with success, and its result is the last text.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptStep {
    Say(String),
    Think(String),
    Hint,
    Tool(ScriptedCall),
    Use(ScriptedCall),
    Begin(ScriptedCall),
    End,
    Ask(ScriptedCall),
    Question(Vec<ScriptedQuestion>),
    Read(String),
    Stall,
    Nap(u64),
    Until(String),
    Flood(usize),
    Overlong(usize),
    Garbage,
    Novel,
    Error(u16),
    Crash(u8),
    Write(ScriptedCall),
    Echo,
    Again,
    Hang,
    Deaf,
    Aloof,
    Late(u64),
    Mute,
    Forget,
    IgnoreTerm,
}

/// Name and argument of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptedCall {
    pub(crate) name: String,
    pub(crate) argument: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptedQuestion {
    pub(crate) text: String,
    pub(crate) options: Vec<String>,
    pub(crate) allows_many: bool,
}

/// An unknown step is a mistake in a test. The agent prints it as text, so that the test shows
/// it.
pub(crate) fn parse_script(text: &str) -> Vec<ScriptStep> {
    let steps = text.split([';', '\n']).map(str::trim);
    let steps = steps.filter(|step| !step.is_empty());
    steps.map(parse_step).collect()
}

fn parse_step(text: &str) -> ScriptStep {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.trim();
    match verb {
        "say" => ScriptStep::Say(rest.to_owned()),
        "think" => ScriptStep::Think(rest.to_owned()),
        "hint" => ScriptStep::Hint,
        "tool" => ScriptStep::Tool(parse_call(rest)),
        "use" => ScriptStep::Use(parse_call(rest)),
        "begin" => ScriptStep::Begin(parse_call(rest)),
        "end" => ScriptStep::End,
        "ask" => ScriptStep::Ask(parse_call(rest)),
        "question" => ScriptStep::Question(rest.split('&').map(parse_question).collect()),
        "read" => ScriptStep::Read(rest.to_owned()),
        "stall" => ScriptStep::Stall,
        "nap" => ScriptStep::Nap(rest.parse().unwrap_or(0)),
        "until" => ScriptStep::Until(rest.to_owned()),
        "flood" => ScriptStep::Flood(rest.parse().unwrap_or(0)),
        "overlong" => ScriptStep::Overlong(rest.parse().unwrap_or(0)),
        "garbage" => ScriptStep::Garbage,
        "novel" => ScriptStep::Novel,
        "error" => ScriptStep::Error(rest.parse().unwrap_or(500)),
        "crash" => ScriptStep::Crash(rest.parse().unwrap_or(1)),
        "write" => ScriptStep::Write(parse_call(rest)),
        "echo" => ScriptStep::Echo,
        "again" => ScriptStep::Again,
        "hang" => ScriptStep::Hang,
        "deaf" => ScriptStep::Deaf,
        "aloof" => ScriptStep::Aloof,
        "late" => ScriptStep::Late(rest.parse().unwrap_or(0)),
        "mute" => ScriptStep::Mute,
        "forget" => ScriptStep::Forget,
        "ignore-term" => ScriptStep::IgnoreTerm,
        _ => ScriptStep::Say(text.to_owned()),
    }
}

fn parse_call(text: &str) -> ScriptedCall {
    let (name, argument) = text.split_once(' ').unwrap_or((text, ""));
    ScriptedCall {
        name: name.to_owned(),
        argument: argument.trim().to_owned(),
    }
}

fn parse_question(text: &str) -> ScriptedQuestion {
    let (text, options) = text.split_once('=').unwrap_or((text, ""));
    let many = text.ends_with('+');
    let options = options.split(',').map(str::trim);
    ScriptedQuestion {
        text: text.trim_end_matches('+').trim().to_owned(),
        options: options
            .filter(|option| !option.is_empty())
            .map(str::to_owned)
            .collect(),
        allows_many: many,
    }
}
