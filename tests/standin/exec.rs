//! Codex as it prints with `exec --json`: the prompt is read to its end, items come whole, nobody can be asked, and
//! what was used is said of the whole thread.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::pipes::Pipes;
use crate::play::{Heard, Outcome, Tool, Wire, is_known, new_conversation};
use crate::script::Question;

/// What each request to the model is said to use: input, of that from the cache, output.
const USED: [u64; 3] = [312, 200, 27];

pub(crate) struct Exec {
    resume: Option<String>,
    forgets: bool,
    items: u32,
    /// Ids of tool calls by the item's.
    open: Option<String>,
}

impl Exec {
    pub(crate) fn new(arguments: &[String], script: Option<&str>) -> Self {
        let resume = arguments
            .iter()
            .skip_while(|word| *word != "resume")
            .nth(1)
            .cloned();
        Self {
            forgets: resume.as_ref().is_some_and(|id| !is_known(id, script)),
            resume,
            items: 0,
            open: None,
        }
    }

    fn next_item(&mut self) -> String {
        self.items += 1;
        format!("item_{}", self.items - 1)
    }

    fn completed(&mut self, mut item: Value, pipes: &mut Pipes) {
        item["id"] = json!(self.next_item());
        pipes.say(&json!({"type": "item.completed", "item": item}));
    }
}

impl Wire for Exec {
    fn open(&mut self, pipes: &mut Pipes) -> Heard {
        let prompt = pipes.listen_to_the_end();
        let thread = match &self.resume {
            // What is no id is taken for a name, and begins anew.
            Some(id) if self.forgets && Uuid::parse_str(id).is_ok() => {
                let problem = format!(
                    "Error: thread/resume: thread/resume failed: no rollout found for thread id {id} (code -32600)\n"
                );
                let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
                return Heard::Over(1);
            }
            Some(id) if !self.forgets => id.clone(),
            Some(_) | None => new_conversation(),
        };
        pipes.say(&json!({"type": "thread.started", "thread_id": thread}));
        Heard::Prompt(prompt)
    }

    fn hear(&mut self, _: &str, _: &mut Pipes) -> Heard {
        Heard::Nothing
    }

    fn begin_turn(&mut self, pipes: &mut Pipes) {
        pipes.say(&json!({"type": "turn.started"}));
    }

    fn say(&mut self, words: &str, pipes: &mut Pipes) {
        self.completed(json!({"type": "agent_message", "text": words}), pipes);
    }

    fn think(&mut self, words: &str, pipes: &mut Pipes) {
        self.completed(json!({"type": "reasoning", "text": words}), pipes);
    }

    /// A warning, which is no failure.
    fn hint(&mut self, pipes: &mut Pipes) {
        self.completed(json!({"type": "error", "message": "nothing to see"}), pipes);
    }

    fn novel(&mut self, pipes: &mut Pipes) {
        pipes.say(&json!({"type": "novelty.of.no.version"}));
    }

    fn begin(&mut self, tool: &Tool, pipes: &mut Pipes) {
        let id = self.next_item();
        let item = json!({
            "id": id, "type": "command_execution", "command": command(tool), "aggregated_output": "",
            "exit_code": null, "status": "in_progress",
        });
        self.open = Some(id);
        pipes.say(&json!({"type": "item.started", "item": item}));
    }

    fn ask(&mut self, _: &Tool, _: &mut Pipes) -> Option<String> {
        None
    }

    fn end(&mut self, tool: &Tool, _: Outcome, pipes: &mut Pipes) {
        let item = json!({
            "id": self.open.take(), "type": "command_execution", "command": command(tool),
            "aggregated_output": "done\n", "exit_code": 0, "status": "completed",
        });
        pipes.say(&json!({"type": "item.completed", "item": item}));
    }

    fn question(&mut self, _: &Tool, _: &[Question], _: &mut Pipes) -> Option<String> {
        None
    }

    /// Of the whole thread: one turn more when it was taken up again.
    fn result(&mut self, _: &str, pipes: &mut Pipes) {
        let turns = if self.resume.is_some() { 2 } else { 1 };
        let [input, cached, output] = USED.map(|used| used * turns);
        let usage = json!({
            "input_tokens": input, "cached_input_tokens": cached, "cache_write_input_tokens": 0,
            "output_tokens": output, "reasoning_output_tokens": 0,
        });
        pipes.say(&json!({"type": "turn.completed", "usage": usage}));
    }

    fn fail(&mut self, status: u16, pipes: &mut Pipes) {
        let message = format!("exceeded retry limit, last status: {status}");
        pipes.say(&json!({"type": "error", "message": message}));
        pipes.say(&json!({"type": "turn.failed", "error": {"message": message}}));
    }

    fn interrupted(&mut self, _: &mut Pipes) {}
}

fn command(tool: &Tool) -> String {
    format!("/bin/bash -lc '{}'", tool.call.argument)
}
