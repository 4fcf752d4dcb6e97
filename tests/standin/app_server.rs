//! Codex as it speaks with `app-server`: JSON-RPC without its version tag, a thread with turns, approvals as requests
//! with ids of their own, running totals of what was used.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::pipes::Pipes;
use crate::play::{Answer, Heard, Outcome, Tool, Wire, is_known, new_conversation};
use crate::script::Question;
use crate::{halves, text};

const MODEL: &str = "standin-1";
/// What each request to the model is said to use: input, of that from the cache, output.
const USED: [u64; 3] = [312, 200, 27];
/// Any moment will do: nobody looks at it.
const NOW_MS: u64 = 1_700_000_000_000;

pub(crate) struct AppServer {
    script: Option<String>,
    thread: String,
    turn: String,
    /// Requests of its own, which have their own numbers.
    requests: u64,
    /// Requests to the model, in this turn and in the thread.
    used: u64,
    used_in_thread: u64,
    words: Option<Value>,
    questions: Vec<String>,
    interrupt: Option<Value>,
}

impl AppServer {
    pub(crate) fn new(script: Option<&str>) -> Self {
        Self {
            script: script.map(str::to_owned),
            thread: String::new(),
            turn: String::new(),
            requests: 0,
            used: 0,
            used_in_thread: 0,
            words: None,
            questions: Vec::new(),
            interrupt: None,
        }
    }

    fn notify(&self, method: &str, params: Value, pipes: &mut Pipes) {
        pipes.say(&json!({"method": method, "params": params, "emittedAtMs": NOW_MS}));
    }

    fn status(&self, status: Value, pipes: &mut Pipes) {
        let about = json!({"threadId": self.thread, "status": status});
        self.notify("thread/status/changed", about, pipes);
    }

    fn item(&self, stage: &str, item: Value, pipes: &mut Pipes) {
        let mut item = item;
        let done = stage == "completed";
        item["startedAtMs"] = json!(NOW_MS);
        item["completedAtMs"] = if done { json!(NOW_MS) } else { Value::Null };
        let at = if done { "completedAtMs" } else { "startedAtMs" };
        let about = json!({"item": item, "threadId": self.thread, "turnId": self.turn, at: NOW_MS});
        self.notify(&format!("item/{stage}"), about, pipes);
    }

    fn piece(&self, method: &str, item: &str, delta: &str, more: Value, pipes: &mut Pipes) {
        let mut about = json!({
            "threadId": self.thread, "turnId": self.turn, "itemId": item, "delta": delta,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            about[key] = value.clone();
        }
        self.notify(method, about, pipes);
    }

    fn open_thread(&mut self, id: &Value, method: &str, params: &Value, pipes: &mut Pipes) {
        let wanted = text(params, "/threadId");
        if method == "thread/resume" && !is_known(wanted, self.script.as_deref()) {
            let message = format!("no rollout found for thread id {wanted}");
            pipes.say(&json!({"error": {"code": -32600, "message": message}, "id": id}));
            return;
        }
        self.thread = match method {
            "thread/resume" => wanted.to_owned(),
            _ => new_conversation(),
        };
        let cwd = text(params, "/cwd");
        let result = json!({
            "thread": thread(&self.thread, cwd), "model": MODEL, "modelProvider": "standin",
            "serviceTier": null, "disabledPluginIds": [], "cwd": cwd, "runtimeWorkspaceRoots": [cwd],
            "instructionSources": [], "approvalPolicy": text(params, "/approvalPolicy"),
            "approvalsReviewer": "user", "sandbox": {"type": "workspaceWrite", "networkAccess": false},
            "activePermissionProfile": null, "reasoningEffort": null, "multiAgentMode": "explicitRequestOnly",
        });
        pipes.say(&json!({"id": id, "result": result}));
        if method == "thread/start" {
            self.notify(
                "thread/started",
                json!({"thread": thread(&self.thread, cwd)}),
                pipes,
            );
        }
    }

    /// With `startedAt` once it runs, and the rest once it has ended.
    fn turn(&self, status: &str, error: Value, ended: bool) -> Value {
        let at = NOW_MS / 1_000;
        let items: Vec<Value> = self.words.clone().into_iter().filter(|_| ended).collect();
        json!({
            "id": self.turn, "rootTurnId": self.turn, "items": items,
            "itemsView": if ended { "summary" } else { "notLoaded" }, "status": status, "error": error,
            "startedAt": at, "completedAt": ended.then_some(at), "durationMs": ended.then_some(1),
        })
    }

    fn count(&mut self, pipes: &mut Pipes) {
        if std::mem::take(&mut self.used) == 0 {
            return;
        }
        self.used_in_thread += 1;
        let counted = |requests: u64| {
            let [input, cached, output] = USED.map(|used| used * requests);
            json!({
                "totalTokens": input + output, "inputTokens": input, "cachedInputTokens": cached,
                "cacheWriteInputTokens": 0, "outputTokens": output, "reasoningOutputTokens": 0,
            })
        };
        let usage = json!({
            "total": counted(self.used_in_thread), "last": counted(1), "modelContextWindow": 258_400,
        });
        let about = json!({"threadId": self.thread, "turnId": self.turn, "tokenUsage": usage});
        self.notify("thread/tokenUsage/updated", about, pipes);
    }

    fn complete(&mut self, status: &str, error: Value, pipes: &mut Pipes) {
        self.count(pipes);
        let state = if status == "failed" {
            "systemError"
        } else {
            "idle"
        };
        self.status(json!({"type": state}), pipes);
        let turn = self.turn(status, error, true);
        let about = json!({"threadId": self.thread, "turn": turn});
        self.notify("turn/completed", about, pipes);
    }

    fn request(&mut self, method: &str, mut params: Value, pipes: &mut Pipes) -> Option<String> {
        let id = self.requests;
        self.requests += 1;
        params["threadId"] = json!(self.thread);
        params["turnId"] = json!(self.turn);
        params["startedAtMs"] = json!(NOW_MS);
        pipes.say(&json!({"method": method, "id": id, "params": params}));
        Some(id.to_string())
    }

    fn answer(&self, result: &Value) -> Answer {
        match text(result, "/decision") {
            "accept" => Answer::Allowed { for_session: false },
            "acceptForSession" => Answer::Allowed { for_session: true },
            _ => match result.get("answers").and_then(Value::as_object) {
                Some(answers) if !answers.is_empty() => Answer::Replies(self.replies(answers)),
                Some(_) | None => Answer::Denied,
            },
        }
    }

    fn replies(&self, answers: &serde_json::Map<String, Value>) -> Vec<String> {
        let reply = |id: &String| {
            let words = answers
                .get(id)
                .and_then(|answer| answer["answers"].as_array());
            let words = words.into_iter().flatten().filter_map(Value::as_str);
            words.collect::<Vec<_>>().join(", ")
        };
        self.questions.iter().map(reply).collect()
    }
}

impl Wire for AppServer {
    fn open(&mut self, _: &mut Pipes) -> Heard {
        Heard::Nothing
    }

    fn hear(&mut self, line: &str, pipes: &mut Pipes) -> Heard {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match text(&message, "/method") {
            "initialize" => {
                let result = json!({
                    "userAgent": "standin/0.166.0", "codexHome": "/home/user/.codex",
                    "platformFamily": "unix", "platformOs": "linux",
                });
                pipes.say(&json!({"id": id, "result": result}));
            }
            method @ ("thread/start" | "thread/resume") => {
                self.open_thread(&id, method, &params, pipes);
            }
            "turn/start" => {
                self.turn = Uuid::now_v7().to_string();
                let mut turn = self.turn("inProgress", Value::Null, false);
                turn["startedAt"] = Value::Null;
                pipes.say(&json!({"id": id, "result": {"turn": turn}}));
                return Heard::Prompt(text(&params, "/input/0/text").to_owned());
            }
            "turn/interrupt" => {
                self.interrupt = Some(id);
                return Heard::Interrupt;
            }
            "" if message.get("result").is_some() => {
                return Heard::Answer(id.to_string(), self.answer(&message["result"]));
            }
            "" if message.get("error").is_some() => {
                return Heard::Answer(id.to_string(), Answer::Denied);
            }
            method if !id.is_null() => {
                let message = format!("Invalid request: unknown variant `{method}`");
                pipes.say(&json!({"error": {"code": -32600, "message": message}, "id": id}));
            }
            _ => {}
        }
        Heard::Nothing
    }

    fn is_ready(&self) -> bool {
        !self.thread.is_empty()
    }

    fn begin_turn(&mut self, pipes: &mut Pipes) {
        self.words = None;
        self.status(json!({"type": "active", "activeFlags": []}), pipes);
        let turn = self.turn("inProgress", Value::Null, false);
        self.notify(
            "turn/started",
            json!({"threadId": self.thread, "turn": turn}),
            pipes,
        );
    }

    fn say(&mut self, words: &str, pipes: &mut Pipes) {
        self.used = 1;
        let id = format!("msg_{}", Uuid::now_v7().simple());
        let message = |text: &str| {
            json!({
                "type": "agentMessage", "id": id, "text": text, "phase": null, "memoryCitation": null,
                "delivery": null, "questions": null,
            })
        };
        self.item("started", message(""), pipes);
        for piece in halves(words) {
            self.piece("item/agentMessage/delta", &id, piece, json!({}), pipes);
        }
        self.item("completed", message(words), pipes);
        let mut said = message(words);
        said["startedAtMs"] = json!(NOW_MS);
        said["completedAtMs"] = json!(NOW_MS);
        self.words = Some(said);
    }

    fn think(&mut self, words: &str, pipes: &mut Pipes) {
        self.used = 1;
        let id = format!("rs_{}", Uuid::now_v7().simple());
        let thoughts = |summary: Value| json!({"type": "reasoning", "id": id, "summary": summary, "content": []});
        self.item("started", thoughts(json!([])), pipes);
        let first = json!({"summaryIndex": 0});
        self.piece("item/reasoning/summaryTextDelta", &id, words, first, pipes);
        self.item("completed", thoughts(json!([words])), pipes);
    }

    fn hint(&mut self, pipes: &mut Pipes) {
        let about = json!({"threadId": self.thread, "message": "nothing to see"});
        self.notify("warning", about, pipes);
    }

    fn novel(&mut self, pipes: &mut Pipes) {
        self.notify(
            "novelty/of/no/version",
            json!({"threadId": self.thread}),
            pipes,
        );
    }

    fn begin(&mut self, tool: &Tool, pipes: &mut Pipes) {
        self.used = 1;
        self.item("started", execution(tool, "inProgress", false), pipes);
    }

    fn ask(&mut self, tool: &Tool, pipes: &mut Pipes) -> Option<String> {
        let waiting = json!({"type": "active", "activeFlags": ["waitingOnApproval"]});
        self.status(waiting, pipes);
        let command = command(tool);
        let params = json!({
            "kind": "command", "itemId": tool.id, "environmentId": "local",
            "reason": format!("Need {}", tool.call.name), "command": command, "cwd": cwd(),
            "commandActions": [{"type": "unknown", "command": tool.call.argument}],
            "proposedExecpolicyAmendment": [command],
            "availableDecisions": ["accept", "acceptForSession", "cancel"],
        });
        self.request("item/commandExecution/requestApproval", params, pipes)
    }

    fn answered(&mut self, request: &str, pipes: &mut Pipes) {
        let id: Value = serde_json::from_str(request).unwrap_or_default();
        let about = json!({"threadId": self.thread, "requestId": id});
        self.notify("serverRequest/resolved", about, pipes);
        self.status(json!({"type": "active", "activeFlags": []}), pipes);
    }

    fn end(&mut self, tool: &Tool, outcome: Outcome, pipes: &mut Pipes) {
        let status = match outcome {
            Outcome::Done => "completed",
            Outcome::Denied => "declined",
        };
        self.item(
            "completed",
            execution(tool, status, outcome == Outcome::Done),
            pipes,
        );
        self.count(pipes);
    }

    fn question(&mut self, tool: &Tool, asked: &[Question], pipes: &mut Pipes) -> Option<String> {
        let question = |(at, asked): (usize, &Question)| {
            let option = |label: &String| json!({"label": label, "description": ""});
            let options: Vec<Value> = asked.options.iter().map(option).collect();
            json!({
                "id": format!("q{at}"), "header": "Choice", "question": asked.text, "isOther": false,
                "isSecret": false, "options": options,
            })
        };
        let questions: Vec<Value> = asked.iter().enumerate().map(question).collect();
        self.questions = (0..asked.len()).map(|at| format!("q{at}")).collect();
        let params = json!({"itemId": tool.id, "questions": questions});
        self.request("item/tool/requestUserInput", params, pipes)
    }

    fn result(&mut self, _: &str, pipes: &mut Pipes) {
        self.complete("completed", Value::Null, pipes);
    }

    fn fail(&mut self, status: u16, pipes: &mut Pipes) {
        let message = format!("exceeded retry limit, last status: {status}");
        let info = json!({"responseTooManyFailedAttempts": {"httpStatusCode": status}});
        let error = json!({
            "message": message, "codexErrorInfo": info, "additionalDetails": null, "misalignment": null,
        });
        let about = json!({
            "error": error, "willRetry": false, "threadId": self.thread, "turnId": self.turn,
        });
        self.notify("error", about, pipes);
        self.complete("failed", error, pipes);
    }

    fn interrupted(&mut self, pipes: &mut Pipes) {
        if let Some(id) = self.interrupt.take() {
            pipes.say(&json!({"id": id, "result": {}}));
        }
        self.complete("interrupted", Value::Null, pipes);
    }
}

fn cwd() -> String {
    let cwd = std::env::current_dir().unwrap_or_default();
    cwd.display().to_string()
}

fn command(tool: &Tool) -> String {
    format!("/bin/bash -lc '{}'", tool.call.argument)
}

fn execution(tool: &Tool, status: &str, done: bool) -> Value {
    json!({
        "type": "commandExecution", "id": tool.id, "pluginId": null, "scriptPath": null,
        "command": command(tool), "cwd": cwd(), "processId": null, "source": "agent", "status": status,
        "commandActions": [{"type": "unknown", "command": tool.call.argument}],
        "aggregatedOutput": done.then_some("done\n"), "exitCode": done.then_some(0),
        "durationMs": done.then_some(1),
    })
}

fn thread(id: &str, cwd: &str) -> Value {
    let at = NOW_MS / 1_000;
    json!({
        "id": id, "environments": [], "extra": null, "sessionId": id, "forkedFromId": null,
        "parentThreadId": null, "preview": "", "ephemeral": false, "section": null,
        "sectionEnteredAt": null, "projectId": null, "historyMode": "paginated",
        "modelProvider": "standin", "model": MODEL, "reasoningEffort": null, "createdAt": at,
        "updatedAt": at, "recencyAt": at, "status": {"type": "idle"}, "path": "", "cwd": cwd,
        "cliVersion": "0.166.0", "originator": "standin", "source": "vscode",
        "canAcceptDirectInput": true, "threadSource": null, "agentNickname": null, "agentRole": null,
        "gitInfo": null, "name": null, "daybreakEnabled": null, "turns": [],
    })
}
