//! Plays scripts over an agent protocol: waits for a prompt, executes its script, ends the
//! turn, and waits for the next prompt, like the real programs. It reacts to its client: it
//! waits for answers, a denied permission makes the tool fail, and an interrupt ends the turn.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use uuid::Uuid;

use crate::script::{ScriptStep, ScriptedCall, ScriptedQuestion, parse_script};
use crate::stdio_pipes::{InputLine, StdioPipes};
use crate::tool_server::McpToolServer;
use crate::{block_forever, ignore_term, sleep_ms};

/// Interval for checks of a file.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A message of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientMessage {
    Prompt(String),
    /// The answer to the request with this id.
    Answer(String, ClientAnswer),
    Interrupt,
    /// The process has nothing left to do, and exits with this code.
    Exit(u8),
    /// Answered by the protocol itself, or without an answer.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientAnswer {
    Allowed {
        for_session: bool,
    },
    Denied,
    /// One for each question.
    Replies(Vec<String>),
}

/// A tool call that has begun.
#[derive(Clone, Debug)]
pub(crate) struct OpenToolCall {
    pub(crate) id: String,
    pub(crate) call: ScriptedCall,
}

/// Result of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolOutcome {
    Done,
    Denied,
}

/// One agent protocol.
pub(crate) trait AgentWireProtocol {
    /// Called before anything is read. A protocol that reads its prompt up to the end of stdin
    /// returns it here.
    fn start_wire(&mut self, pipes: &mut StdioPipes) -> ClientMessage;
    fn handle_line(&mut self, line: &str, pipes: &mut StdioPipes) -> ClientMessage;
    fn begin_turn(&mut self, pipes: &mut StdioPipes);
    fn send_text(&mut self, text: &str, pipes: &mut StdioPipes);
    fn send_thinking(&mut self, text: &str, pipes: &mut StdioPipes);
    fn send_invisible_event(&mut self, pipes: &mut StdioPipes);
    fn send_unknown_event(&mut self, pipes: &mut StdioPipes);
    fn begin_tool(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes);
    /// The id of the request; none if the protocol has no permission requests.
    fn request_permission(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes)
    -> Option<String>;
    /// Whether the handshake before the prompt is complete, if the protocol has one.
    fn is_ready(&self) -> bool {
        false
    }
    /// Called after an answer and before the following steps.
    fn on_answer(&mut self, _request: &str, _pipes: &mut StdioPipes) {}
    fn end_tool(&mut self, tool: &OpenToolCall, outcome: ToolOutcome, pipes: &mut StdioPipes);
    fn ask_questions(
        &mut self,
        tool: &OpenToolCall,
        questions: &[ScriptedQuestion],
        pipes: &mut StdioPipes,
    ) -> Option<String>;
    /// The id of the request for a file; none if the protocol does not support it.
    fn request_file(&mut self, _path: &str, _pipes: &mut StdioPipes) -> Option<String> {
        None
    }
    /// The tool server, if the protocol's messages name it.
    fn tool_server(&self) -> Option<McpToolServer> {
        None
    }
    fn send_result(&mut self, text: &str, pipes: &mut StdioPipes);
    fn send_failure(&mut self, status: u16, pipes: &mut StdioPipes);
    fn send_interrupted(&mut self, pipes: &mut StdioPipes);
}

/// Why a turn stops early.
enum TurnStop {
    Interrupted,
    Exit(u8),
}

struct ScriptPlayer<'a> {
    wire: &'a mut dyn AgentWireProtocol,
    pipes: StdioPipes,
    last_text: String,
    open_tool: Option<OpenToolCall>,
    /// Tools that need no further permission in this session.
    allowed_tools: BTreeSet<String>,
    stays_after_result: bool,
    /// Further turns of the script.
    later_turns: VecDeque<Vec<ScriptStep>>,
    /// The prompt of this turn.
    prompt: String,
    /// The tool server of its command line.
    tool_server: Option<McpToolServer>,
}

/// Without a script, each prompt is a script.
pub(crate) fn play_script(
    wire: &mut dyn AgentWireProtocol,
    script: Option<&str>,
    tool_server_argument: Option<McpToolServer>,
) -> ExitCode {
    let steps = script.map(parse_script);
    let mut player = ScriptPlayer {
        wire,
        pipes: StdioPipes::open(),
        last_text: String::new(),
        open_tool: None,
        allowed_tools: BTreeSet::new(),
        stays_after_result: false,
        later_turns: VecDeque::new(),
        prompt: String::new(),
        tool_server: tool_server_argument,
    };
    let first = steps.as_deref().and_then(<[ScriptStep]>::first);
    match first {
        Some(ScriptStep::Deaf) => block_forever(),
        Some(ScriptStep::Mute) => loop {
            if player.pipes.read_line(None) == InputLine::Closed {
                block_forever();
            }
        },
        Some(ScriptStep::Late(ms)) => sleep_ms(*ms),
        _ => {}
    }
    let mut message = player.wire.start_wire(&mut player.pipes);
    loop {
        let stop = match message {
            ClientMessage::Prompt(prompt) => {
                let turn = player.next_turn(prompt, steps.as_ref());
                player.play_turn(turn)
            }
            ClientMessage::Exit(code) => Err(TurnStop::Exit(code)),
            ClientMessage::Answer(..) | ClientMessage::Interrupt | ClientMessage::Nothing => Ok(()),
        };
        if player.wire.is_ready() && first == Some(&ScriptStep::Aloof) {
            block_forever();
        }
        match stop {
            Ok(()) => {}
            Err(TurnStop::Interrupted) => player.wire.send_interrupted(&mut player.pipes),
            Err(TurnStop::Exit(code)) => return ExitCode::from(code),
        }
        message = match player.pipes.read_line(None) {
            InputLine::Line(line) => player.wire.handle_line(&line, &mut player.pipes),
            InputLine::Closed if player.stays_after_result => block_forever(),
            InputLine::Closed | InputLine::TimedOut => return ExitCode::SUCCESS,
        };
    }
}

impl ScriptPlayer<'_> {
    /// A script of several turns is played to its end before another prompt is used as a
    /// script.
    fn next_turn(&mut self, prompt: String, script: Option<&Vec<ScriptStep>>) -> Vec<ScriptStep> {
        if self.later_turns.is_empty() {
            let steps = script.cloned().unwrap_or_else(|| parse_script(&prompt));
            let turns = steps.split(|step| *step == ScriptStep::Again);
            self.later_turns = turns.map(<[ScriptStep]>::to_vec).collect();
        }
        self.prompt = prompt;
        self.later_turns.pop_front().unwrap_or_default()
    }

    fn play_turn(&mut self, steps: Vec<ScriptStep>) -> Result<(), TurnStop> {
        self.last_text.clear();
        if steps.first() == Some(&ScriptStep::Mute) {
            self.handle_messages_for(None)?;
        }
        self.wire.begin_turn(&mut self.pipes);
        for step in steps {
            while self.next_message(Some(Duration::ZERO))?.is_some() {}
            if let ScriptStep::Error(status) = step {
                self.wire.send_failure(status, &mut self.pipes);
                return Ok(());
            }
            self.play_step(step)?;
        }
        let text = self.last_text.clone();
        self.wire.send_result(&text, &mut self.pipes);
        Ok(())
    }

    fn play_step(&mut self, step: ScriptStep) -> Result<(), TurnStop> {
        match step {
            ScriptStep::Say(text) => self.send_text(&text),
            ScriptStep::Think(text) => self.wire.send_thinking(&text, &mut self.pipes),
            ScriptStep::Hint => self.wire.send_invisible_event(&mut self.pipes),
            ScriptStep::Tool(call) => {
                self.begin_tool(call);
                self.end_tool(ToolOutcome::Done);
            }
            ScriptStep::Use(call) => self.call_tool_server(&call),
            ScriptStep::Begin(call) => self.begin_tool(call),
            ScriptStep::End => self.end_tool(ToolOutcome::Done),
            ScriptStep::Ask(call) => self.ask_permission(call)?,
            ScriptStep::Question(questions) => self.ask_questions(&questions)?,
            ScriptStep::Read(path) => self.read_client_file(&path)?,
            ScriptStep::Stall => self.handle_messages_for(None)?,
            ScriptStep::Nap(ms) => self.handle_messages_for(Some(Duration::from_millis(ms)))?,
            ScriptStep::Until(file) => {
                while !Path::new(&file).exists() {
                    self.handle_messages_for(Some(POLL_INTERVAL))?;
                }
            }
            ScriptStep::Flood(bytes) => self.send_flood(bytes),
            ScriptStep::Overlong(bytes) => {
                self.pipes.send_line(&format!("\"{}\"", "x".repeat(bytes)))
            }
            ScriptStep::Garbage => self.pipes.send_line("this is {no message"),
            ScriptStep::Novel => self.wire.send_unknown_event(&mut self.pipes),
            ScriptStep::Crash(code) => return Err(TurnStop::Exit(code)),
            ScriptStep::Write(call) => write_script_file(&call),
            ScriptStep::Echo => {
                let prompt = self.prompt.clone();
                self.send_text(&prompt);
            }
            ScriptStep::Hang => self.stays_after_result = true,
            ScriptStep::IgnoreTerm => ignore_term(),
            // These apply before the prompt, or end the turn.
            ScriptStep::Deaf
            | ScriptStep::Aloof
            | ScriptStep::Late(_)
            | ScriptStep::Mute
            | ScriptStep::Forget
            | ScriptStep::Error(_)
            | ScriptStep::Again => {}
        }
        Ok(())
    }

    fn send_text(&mut self, text: &str) {
        self.last_text = text.to_owned();
        self.wire.send_text(text, &mut self.pipes);
    }

    fn call_tool_server(&mut self, call: &ScriptedCall) {
        let server = self.wire.tool_server().or_else(|| self.tool_server.clone());
        let result = match server {
            Some(server) => server.call_tool(&call.name, &call.argument),
            None => "no tool server was configured".to_owned(),
        };
        self.send_text(&format!("{} -> {result}", call.name));
    }

    fn send_flood(&mut self, bytes: usize) {
        let piece = "flood ".repeat(170);
        for _ in 0..bytes.div_ceil(piece.len()) {
            self.wire.send_text(&piece, &mut self.pipes);
        }
    }

    fn begin_tool(&mut self, call: ScriptedCall) {
        let id = format!("call_{}", Uuid::now_v7().simple());
        let tool = OpenToolCall { id, call };
        self.wire.begin_tool(&tool, &mut self.pipes);
        self.open_tool = Some(tool);
    }

    fn end_tool(&mut self, outcome: ToolOutcome) {
        if let Some(tool) = self.open_tool.take() {
            self.wire.end_tool(&tool, outcome, &mut self.pipes);
        }
    }

    fn ask_permission(&mut self, call: ScriptedCall) -> Result<(), TurnStop> {
        let name = call.name.clone();
        self.begin_tool(call);
        let tool = self.open_tool.clone();
        let known = self.allowed_tools.contains(&name);
        let request = match &tool {
            Some(tool) if !known => self.wire.request_permission(tool, &mut self.pipes),
            Some(_) | None => None,
        };
        let answer = match request {
            Some(request) => self.wait_for_answer(&request)?,
            None => ClientAnswer::Allowed { for_session: false },
        };
        match answer {
            ClientAnswer::Allowed { for_session } => {
                if for_session {
                    self.allowed_tools.insert(name);
                }
                self.end_tool(ToolOutcome::Done);
                self.send_text("allowed");
            }
            ClientAnswer::Denied | ClientAnswer::Replies(_) => {
                self.end_tool(ToolOutcome::Denied);
                self.send_text("denied");
            }
        }
        Ok(())
    }

    fn ask_questions(&mut self, questions: &[ScriptedQuestion]) -> Result<(), TurnStop> {
        let argument = questions.first().map(|question| question.text.clone());
        self.begin_tool(ScriptedCall {
            name: "AskUserQuestion".to_owned(),
            argument: argument.unwrap_or_default(),
        });
        let tool = self.open_tool.clone();
        let request =
            tool.and_then(|tool| self.wire.ask_questions(&tool, questions, &mut self.pipes));
        let answer = match request {
            Some(request) => self.wait_for_answer(&request)?,
            None => ClientAnswer::Denied,
        };
        match answer {
            ClientAnswer::Replies(replies) => {
                self.end_tool(ToolOutcome::Done);
                self.send_text(&format!("answered {}", replies.join(" and ")));
            }
            ClientAnswer::Allowed { .. } | ClientAnswer::Denied => {
                self.end_tool(ToolOutcome::Denied);
                self.send_text("not answered");
            }
        }
        Ok(())
    }

    fn read_client_file(&mut self, path: &str) -> Result<(), TurnStop> {
        let request = self.wire.request_file(path, &mut self.pipes);
        let answer = match request {
            Some(request) => self.wait_for_answer(&request)?,
            None => ClientAnswer::Denied,
        };
        match answer {
            ClientAnswer::Replies(contents) => {
                self.send_text(&format!("read {}", contents.join("")))
            }
            ClientAnswer::Allowed { .. } | ClientAnswer::Denied => self.send_text("cannot read"),
        }
        Ok(())
    }

    fn wait_for_answer(&mut self, request: &str) -> Result<ClientAnswer, TurnStop> {
        loop {
            match self.next_message(None)? {
                Some(ClientMessage::Answer(id, answer)) if id == request => {
                    self.wire.on_answer(request, &mut self.pipes);
                    return Ok(answer);
                }
                Some(_) => {}
                None => return Ok(ClientAnswer::Denied),
            }
        }
    }

    /// Handles messages until the time is over or the turn ends.
    fn handle_messages_for(&mut self, limit: Option<Duration>) -> Result<(), TurnStop> {
        while self.next_message(limit)?.is_some() {}
        if limit.is_none() {
            block_forever();
        }
        Ok(())
    }

    /// None if no message arrived, or stdin is closed.
    fn next_message(&mut self, limit: Option<Duration>) -> Result<Option<ClientMessage>, TurnStop> {
        let InputLine::Line(line) = self.pipes.read_line(limit) else {
            return Ok(None);
        };
        match self.wire.handle_line(&line, &mut self.pipes) {
            ClientMessage::Interrupt => Err(TurnStop::Interrupted),
            ClientMessage::Exit(code) => Err(TurnStop::Exit(code)),
            message @ (ClientMessage::Prompt(_)
            | ClientMessage::Answer(..)
            | ClientMessage::Nothing) => Ok(Some(message)),
        }
    }
}

fn write_script_file(call: &ScriptedCall) {
    let path = Path::new(&call.name);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).expect("the test names a directory that can be created");
    }
    std::fs::write(path, &call.argument).expect("the test names a file that can be written");
}

/// Marks ids of conversations that this program began.
const CONVERSATION_SUFFIX: [u8; 6] = *b"stand!";

pub(crate) fn new_conversation() -> String {
    let mut bytes = *Uuid::now_v7().as_bytes();
    bytes[10..].copy_from_slice(&CONVERSATION_SUFFIX);
    Uuid::from_bytes(bytes).to_string()
}

/// Whether a conversation can be resumed.
pub(crate) fn is_known_conversation(conversation: &str, script: Option<&str>) -> bool {
    let forgets = script.is_some_and(|script| parse_script(script).contains(&ScriptStep::Forget));
    let begun_here =
        Uuid::parse_str(conversation).is_ok_and(|id| id.as_bytes()[10..] == CONVERSATION_SUFFIX);
    begun_here && !forgets
}
