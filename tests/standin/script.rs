//! What a stand-in agent does in one turn, step by step. Steps stand in lines, or with `;` between them:
//!
//! | step | what it does |
//! |---|---|
//! | `say WORDS`, `think WORDS` | words, in two pieces where the wire has pieces |
//! | `hint` | an event that nobody is shown |
//! | `tool NAME ARGUMENT` | a tool call, from its beginning to its end |
//! | `use NAME ARGUMENTS` | a tool of the server that the daemon handed over; says its name and `ok`, or the code of the refusal |
//! | `begin NAME ARGUMENT`, `end` | the two halves of one, with whatever stands between them |
//! | `ask NAME ARGUMENT` | a tool call that needs leave; says `allowed` or `denied` |
//! | `question TEXT = A, B & TEXT = C, D` | questions, asked together; `+=` where several may be chosen; says what was answered |
//! | `read PATH` | asks its client for a file, where the wire has that |
//! | `stall` | says nothing more; hears, and an interrupt ends the turn |
//! | `nap MS` | the same for a while |
//! | `until FILE` | the same until there is such a file |
//! | `flood BYTES`, `overlong BYTES`, `garbage` | that much text; one line of that length; a line that is no message |
//! | `novel` | an event of a kind that no version has |
//! | `error STATUS` | the provider fails with this status, and the turn with it |
//! | `crash CODE` | the process ends in the middle of the turn |
//! | `write FILE WORDS` | makes a file, and its directory |
//! | `echo` | says what it was told in this turn |
//! | `again` | the turn ends well; what follows is the next turn, whatever its prompt says |
//! | `hang` | after the result the process stays, whatever it is told |
//! | `deaf` | never reads its standard input; the first step, and only as `STANDIN_SCRIPT` |
//! | `aloof` | gets ready for its prompt, and does not read it; only as `STANDIN_SCRIPT`, where the wire has a greeting |
//! | `late MS` | reads nothing for so long; the first step, and only as `STANDIN_SCRIPT` |
//! | `mute` | hears and says nothing: from the prompt on, or as `STANDIN_SCRIPT` from the start; the first step |
//! | `forget` | knows no conversation of before; only as `STANDIN_SCRIPT` |
//! | `ignore-term` | TERM does nothing |
//!
//! A turn without an `error` ends well, and its result is what was said last.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Think(String),
    Hint,
    Tool(Call),
    Use(Call),
    Begin(Call),
    End,
    Ask(Call),
    Question(Vec<Question>),
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
    Write(Call),
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

/// What a tool is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) argument: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) options: Vec<String>,
    pub(crate) many: bool,
}

/// A script that says something else is a mistake in a test, and is told as what the agent says.
pub(crate) fn parse(text: &str) -> Vec<Step> {
    let steps = text.split([';', '\n']).map(str::trim);
    let steps = steps.filter(|step| !step.is_empty());
    steps.map(step).collect()
}

fn step(text: &str) -> Step {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.trim();
    match verb {
        "say" => Step::Say(rest.to_owned()),
        "think" => Step::Think(rest.to_owned()),
        "hint" => Step::Hint,
        "tool" => Step::Tool(call(rest)),
        "use" => Step::Use(call(rest)),
        "begin" => Step::Begin(call(rest)),
        "end" => Step::End,
        "ask" => Step::Ask(call(rest)),
        "question" => Step::Question(rest.split('&').map(question).collect()),
        "read" => Step::Read(rest.to_owned()),
        "stall" => Step::Stall,
        "nap" => Step::Nap(rest.parse().unwrap_or(0)),
        "until" => Step::Until(rest.to_owned()),
        "flood" => Step::Flood(rest.parse().unwrap_or(0)),
        "overlong" => Step::Overlong(rest.parse().unwrap_or(0)),
        "garbage" => Step::Garbage,
        "novel" => Step::Novel,
        "error" => Step::Error(rest.parse().unwrap_or(500)),
        "crash" => Step::Crash(rest.parse().unwrap_or(1)),
        "write" => Step::Write(call(rest)),
        "echo" => Step::Echo,
        "again" => Step::Again,
        "hang" => Step::Hang,
        "deaf" => Step::Deaf,
        "aloof" => Step::Aloof,
        "late" => Step::Late(rest.parse().unwrap_or(0)),
        "mute" => Step::Mute,
        "forget" => Step::Forget,
        "ignore-term" => Step::IgnoreTerm,
        _ => Step::Say(text.to_owned()),
    }
}

fn call(text: &str) -> Call {
    let (name, argument) = text.split_once(' ').unwrap_or((text, ""));
    Call {
        name: name.to_owned(),
        argument: argument.trim().to_owned(),
    }
}

fn question(text: &str) -> Question {
    let (text, options) = text.split_once('=').unwrap_or((text, ""));
    let many = text.ends_with('+');
    let options = options.split(',').map(str::trim);
    Question {
        text: text.trim_end_matches('+').trim().to_owned(),
        options: options
            .filter(|option| !option.is_empty())
            .map(str::to_owned)
            .collect(),
        many,
    }
}
