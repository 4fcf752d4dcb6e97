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

/// What a tool is called with.
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

/// A script that says something else is a mistake in a test, and is told as what the agent says.
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
