//! Plays scripts over a wire: waits for a prompt, does what its script says, ends the turn, and waits for the next
//! prompt, as the real programs do. What it is told shapes what it does: an answer that never comes is waited for,
//! one that says no makes the tool fail, an interrupt ends the turn.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use uuid::Uuid;

use crate::handed::Server;
use crate::pipes::{Pipes, Sound};
use crate::script::{Call, Question, Step, parse};
use crate::{ignore_term, nap, stay};

/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(20);

/// What a client can tell an agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Prompt(String),
    /// To the request of this id.
    Answer(String, Answer),
    Interrupt,
    /// The process has no more to do, and ends with this code.
    Over(u8),
    /// What the wire has answered by itself, or what has no answer.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed {
        for_session: bool,
    },
    Denied,
    /// One for each question.
    Replies(Vec<String>),
}

/// A tool call that has begun.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) id: String,
    pub(crate) call: Call,
}

/// How a tool call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Denied,
}

/// One way to talk to a client.
pub(crate) trait Wire {
    /// Before anything is read. A wire that reads its prompt to the end has it here.
    fn open(&mut self, pipes: &mut Pipes) -> Heard;
    fn hear(&mut self, line: &str, pipes: &mut Pipes) -> Heard;
    fn begin_turn(&mut self, pipes: &mut Pipes);
    fn say(&mut self, words: &str, pipes: &mut Pipes);
    fn think(&mut self, words: &str, pipes: &mut Pipes);
    fn hint(&mut self, pipes: &mut Pipes);
    fn novel(&mut self, pipes: &mut Pipes);
    fn begin(&mut self, tool: &Tool, pipes: &mut Pipes);
    /// The id of the request; none where nobody can be asked.
    fn ask(&mut self, tool: &Tool, pipes: &mut Pipes) -> Option<String>;
    /// A prompt may come now, where something has to come before it.
    fn is_ready(&self) -> bool {
        false
    }
    /// Between the answer and what comes of it.
    fn answered(&mut self, _request: &str, _pipes: &mut Pipes) {}
    fn end(&mut self, tool: &Tool, outcome: Outcome, pipes: &mut Pipes);
    fn question(&mut self, tool: &Tool, asked: &[Question], pipes: &mut Pipes) -> Option<String>;
    /// The id of the request for a file; none where the wire has no such thing.
    fn read(&mut self, _path: &str, _pipes: &mut Pipes) -> Option<String> {
        None
    }
    /// The server of tools, where the wire itself names it.
    fn handed(&self) -> Option<Server> {
        None
    }
    fn result(&mut self, words: &str, pipes: &mut Pipes);
    fn fail(&mut self, status: u16, pipes: &mut Pipes);
    fn interrupted(&mut self, pipes: &mut Pipes);
}

/// Why a turn stops where it is.
enum Stop {
    Interrupted,
    Exit(u8),
}

struct Player<'a> {
    wire: &'a mut dyn Wire,
    pipes: Pipes,
    words: String,
    open: Option<Tool>,
    /// Tools that need no more leave in this session.
    allowed: BTreeSet<String>,
    hangs: bool,
    /// Turns that its script has beyond this one.
    later: VecDeque<Vec<Step>>,
    /// What it was told in this turn.
    prompt: String,
    /// What its command line said.
    handed: Option<Server>,
}

/// Without a script, each prompt is one.
pub(crate) fn play(wire: &mut dyn Wire, script: Option<&str>, handed: Option<Server>) -> ExitCode {
    let steps = script.map(parse);
    let mut player = Player {
        wire,
        pipes: Pipes::open(),
        words: String::new(),
        open: None,
        allowed: BTreeSet::new(),
        hangs: false,
        later: VecDeque::new(),
        prompt: String::new(),
        handed,
    };
    let first = steps.as_deref().and_then(<[Step]>::first);
    match first {
        Some(Step::Deaf) => stay(),
        Some(Step::Mute) => loop {
            if player.pipes.listen(None) == Sound::Closed {
                stay();
            }
        },
        Some(Step::Late(ms)) => nap(*ms),
        _ => {}
    }
    let mut heard = player.wire.open(&mut player.pipes);
    loop {
        let stop = match heard {
            Heard::Prompt(prompt) => {
                let turn = player.next_turn(prompt, steps.as_ref());
                player.turn(turn)
            }
            Heard::Over(code) => Err(Stop::Exit(code)),
            Heard::Answer(..) | Heard::Interrupt | Heard::Nothing => Ok(()),
        };
        if player.wire.is_ready() && first == Some(&Step::Aloof) {
            stay();
        }
        match stop {
            Ok(()) => {}
            Err(Stop::Interrupted) => player.wire.interrupted(&mut player.pipes),
            Err(Stop::Exit(code)) => return ExitCode::from(code),
        }
        heard = match player.pipes.listen(None) {
            Sound::Line(line) => player.wire.hear(&line, &mut player.pipes),
            Sound::Closed if player.hangs => stay(),
            Sound::Closed | Sound::Silence => return ExitCode::SUCCESS,
        };
    }
}

impl Player<'_> {
    /// A script of several turns is played to its end before another prompt is one.
    fn next_turn(&mut self, prompt: String, script: Option<&Vec<Step>>) -> Vec<Step> {
        if self.later.is_empty() {
            let steps = script.cloned().unwrap_or_else(|| parse(&prompt));
            let turns = steps.split(|step| *step == Step::Again);
            self.later = turns.map(<[Step]>::to_vec).collect();
        }
        self.prompt = prompt;
        self.later.pop_front().unwrap_or_default()
    }

    fn turn(&mut self, steps: Vec<Step>) -> Result<(), Stop> {
        self.words.clear();
        if steps.first() == Some(&Step::Mute) {
            self.hear_for(None)?;
        }
        self.wire.begin_turn(&mut self.pipes);
        for step in steps {
            while self.hear(Some(Duration::ZERO))?.is_some() {}
            if let Step::Error(status) = step {
                self.wire.fail(status, &mut self.pipes);
                return Ok(());
            }
            self.step(step)?;
        }
        let words = self.words.clone();
        self.wire.result(&words, &mut self.pipes);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), Stop> {
        match step {
            Step::Say(words) => self.say(&words),
            Step::Think(words) => self.wire.think(&words, &mut self.pipes),
            Step::Hint => self.wire.hint(&mut self.pipes),
            Step::Tool(call) => {
                self.begin(call);
                self.end(Outcome::Done);
            }
            Step::Use(call) => self.use_handed(&call),
            Step::Begin(call) => self.begin(call),
            Step::End => self.end(Outcome::Done),
            Step::Ask(call) => self.ask(call)?,
            Step::Question(questions) => self.question(&questions)?,
            Step::Read(path) => self.read(&path)?,
            Step::Stall => self.hear_for(None)?,
            Step::Nap(ms) => self.hear_for(Some(Duration::from_millis(ms)))?,
            Step::Until(file) => {
                while !Path::new(&file).exists() {
                    self.hear_for(Some(LOOK))?;
                }
            }
            Step::Flood(bytes) => self.flood(bytes),
            Step::Overlong(bytes) => self.pipes.raw(&format!("\"{}\"", "x".repeat(bytes))),
            Step::Garbage => self.pipes.raw("this is {no message"),
            Step::Novel => self.wire.novel(&mut self.pipes),
            Step::Crash(code) => return Err(Stop::Exit(code)),
            Step::Write(call) => write(&call),
            Step::Echo => {
                let prompt = self.prompt.clone();
                self.say(&prompt);
            }
            Step::Hang => self.hangs = true,
            Step::IgnoreTerm => ignore_term(),
            // They are about the time before the prompt, or end the turn.
            Step::Deaf
            | Step::Aloof
            | Step::Late(_)
            | Step::Mute
            | Step::Forget
            | Step::Error(_)
            | Step::Again => {}
        }
        Ok(())
    }

    fn say(&mut self, words: &str) {
        self.words = words.to_owned();
        self.wire.say(words, &mut self.pipes);
    }

    fn use_handed(&mut self, call: &Call) {
        let server = self.wire.handed().or_else(|| self.handed.clone());
        let told = match server {
            Some(server) => server.call(&call.name, &call.argument),
            None => "nothing was handed over".to_owned(),
        };
        self.say(&format!("{} -> {told}", call.name));
    }

    fn flood(&mut self, bytes: usize) {
        let piece = "flood ".repeat(170);
        for _ in 0..bytes.div_ceil(piece.len()) {
            self.wire.say(&piece, &mut self.pipes);
        }
    }

    fn begin(&mut self, call: Call) {
        let id = format!("call_{}", Uuid::now_v7().simple());
        let tool = Tool { id, call };
        self.wire.begin(&tool, &mut self.pipes);
        self.open = Some(tool);
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(tool) = self.open.take() {
            self.wire.end(&tool, outcome, &mut self.pipes);
        }
    }

    fn ask(&mut self, call: Call) -> Result<(), Stop> {
        let name = call.name.clone();
        self.begin(call);
        let tool = self.open.clone();
        let known = self.allowed.contains(&name);
        let request = match &tool {
            Some(tool) if !known => self.wire.ask(tool, &mut self.pipes),
            Some(_) | None => None,
        };
        let answer = match request {
            Some(request) => self.wait_for(&request)?,
            None => Answer::Allowed { for_session: false },
        };
        match answer {
            Answer::Allowed { for_session } => {
                if for_session {
                    self.allowed.insert(name);
                }
                self.end(Outcome::Done);
                self.say("allowed");
            }
            Answer::Denied | Answer::Replies(_) => {
                self.end(Outcome::Denied);
                self.say("denied");
            }
        }
        Ok(())
    }

    fn question(&mut self, asked: &[Question]) -> Result<(), Stop> {
        let argument = asked.first().map(|asked| asked.text.clone());
        self.begin(Call {
            name: "AskUserQuestion".to_owned(),
            argument: argument.unwrap_or_default(),
        });
        let tool = self.open.clone();
        let request = tool.and_then(|tool| self.wire.question(&tool, asked, &mut self.pipes));
        let answer = match request {
            Some(request) => self.wait_for(&request)?,
            None => Answer::Denied,
        };
        match answer {
            Answer::Replies(replies) => {
                self.end(Outcome::Done);
                self.say(&format!("answered {}", replies.join(" and ")));
            }
            Answer::Allowed { .. } | Answer::Denied => {
                self.end(Outcome::Denied);
                self.say("not answered");
            }
        }
        Ok(())
    }

    fn read(&mut self, path: &str) -> Result<(), Stop> {
        let request = self.wire.read(path, &mut self.pipes);
        let answer = match request {
            Some(request) => self.wait_for(&request)?,
            None => Answer::Denied,
        };
        match answer {
            Answer::Replies(contents) => self.say(&format!("read {}", contents.join(""))),
            Answer::Allowed { .. } | Answer::Denied => self.say("cannot read"),
        }
        Ok(())
    }

    fn wait_for(&mut self, request: &str) -> Result<Answer, Stop> {
        loop {
            match self.hear(None)? {
                Some(Heard::Answer(id, answer)) if id == request => {
                    self.wire.answered(request, &mut self.pipes);
                    return Ok(answer);
                }
                Some(_) => {}
                None => return Ok(Answer::Denied),
            }
        }
    }

    /// Until the time is over, or the turn.
    fn hear_for(&mut self, limit: Option<Duration>) -> Result<(), Stop> {
        while self.hear(limit)?.is_some() {}
        if limit.is_none() {
            stay();
        }
        Ok(())
    }

    /// None when nothing came, or nothing will.
    fn hear(&mut self, limit: Option<Duration>) -> Result<Option<Heard>, Stop> {
        let Sound::Line(line) = self.pipes.listen(limit) else {
            return Ok(None);
        };
        match self.wire.hear(&line, &mut self.pipes) {
            Heard::Interrupt => Err(Stop::Interrupted),
            Heard::Over(code) => Err(Stop::Exit(code)),
            heard @ (Heard::Prompt(_) | Heard::Answer(..) | Heard::Nothing) => Ok(Some(heard)),
        }
    }
}

fn write(call: &Call) {
    let path = Path::new(&call.name);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).expect("the test names a directory that can be made");
    }
    std::fs::write(path, &call.argument).expect("the test names a file that can be written");
}

/// Conversations are known by their ids: this program has begun every one that ends like this.
const OWN: [u8; 6] = *b"stand!";

pub(crate) fn new_conversation() -> String {
    let mut bytes = *Uuid::now_v7().as_bytes();
    bytes[10..].copy_from_slice(&OWN);
    Uuid::from_bytes(bytes).to_string()
}

/// Whether a conversation can be taken up again.
pub(crate) fn is_known(conversation: &str, script: Option<&str>) -> bool {
    let forgets = script.is_some_and(|script| parse(script).contains(&Step::Forget));
    let begun_here = Uuid::parse_str(conversation).is_ok_and(|id| id.as_bytes()[10..] == OWN);
    begun_here && !forgets
}
