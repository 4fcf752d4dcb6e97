//! Conversations: the next turn resumes the agent's session, also after its daemon was killed.
//! If the agent has lost the session, the turn starts a new one once and reports that. The
//! agents are scripts that keep their session id in a file.

use std::path::Path;

use baton_proto::v1::{Task, TaskEventKind, TaskSpec, TaskState, TurnKind};
use baton_tests::{RelayAndDaemon, agent_task, command_task};

use crate::BATON;

/// The file `known` has the id of the agent's session, `next` the id for a new one. Each script
/// prints what it did: `began ID` or `went on with ID`.
const CLAUDE_SCRIPT: &str = r#"
here=$(dirname "$0"); known=$(cat "$here/known"); next=$(cat "$here/next")
read -r prompt
resume=; for arg in "$@"; do case "$arg" in --resume=*) resume=${arg#--resume=} ;; esac; done
if [ -n "$resume" ] && [ "$resume" != "$known" ]; then
  echo "No conversation found with session ID: $resume" >&2; exit 1
fi
if [ -n "$resume" ]; then id=$resume; did="went on with"; else id=$next; did=began; echo "$id" > "$here/known"; fi
printf '%s\n' '{"type":"system","subtype":"init","session_id":"'$id'"}'
printf '%s\n' '{"type":"result","subtype":"success","is_error":false,"result":"'"$did $id"'","session_id":"'$id'"}'
while read -r more; do :; done
"#;

const CODEX_SCRIPT: &str = r#"
here=$(dirname "$0"); known=$(cat "$here/known"); next=$(cat "$here/next")
say() { printf '%s\n' "$1"; }
read -r initialize; say '{"id":0,"result":{}}'
read -r initialized; read -r open
id=$next; did=began
case "$open" in
  *thread/resume*'"'$known'"'*) id=$known; did="went on with" ;;
  *thread/resume*) say '{"id":1,"error":{"code":-32600,"message":"no rollout found for thread"}}'; read -r more; exit 1 ;;
  *) echo "$id" > "$here/known" ;;
esac
say '{"id":1,"result":{"thread":{"id":"'$id'"}}}'
read -r turn; say '{"id":2,"result":{"turn":{"id":"u1"}}}'
say '{"method":"turn/started","params":{"threadId":"'$id'","turn":{"id":"u1"}}}'
say '{"method":"item/completed","params":{"threadId":"'$id'","item":{"type":"agentMessage","id":"n","text":"'"$did $id"'"}}}'
say '{"method":"turn/completed","params":{"threadId":"'$id'","turn":{"id":"u1","status":"completed"}}}'
while read -r more; do :; done
"#;

const CODEX_EXEC_SCRIPT: &str = r#"
here=$(dirname "$0"); known=$(cat "$here/known"); next=$(cat "$here/next")
say() { printf '%s\n' "$1"; }
id=$next; did=began
case "$*" in *" resume $known "*) id=$known; did="went on with" ;; *) echo "$id" > "$here/known.new" ;; esac
say '{"type":"thread.started","thread_id":"'$id'"}'
case "$*" in *" resume "*) [ "$did" = began ] && exit 0 ;; esac
[ "$did" = began ] && mv "$here/known.new" "$here/known"
cat > /dev/null
say '{"type":"turn.started"}'
say '{"type":"item.completed","item":{"id":"n","type":"agent_message","text":"'"$did $id"'"}}'
say '{"type":"turn.completed","usage":{"input_tokens":5,"output_tokens":2}}'
"#;

const ACP_SCRIPT: &str = r#"
here=$(dirname "$0"); known=$(cat "$here/known"); next=$(cat "$here/next")
say() { printf '%s\n' '{"jsonrpc":"2.0",'"$1"; }
read -r initialize; say '"id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}'
read -r open
id=$next; did=began
case "$open" in
  *session/load*'"'$known'"'*) id=$known; did="went on with"; say '"id":1,"result":{}}' ;;
  *session/load*) say '"id":1,"error":{"code":-32002,"message":"Resource not found"}}'; read -r more; exit 1 ;;
  *) echo "$id" > "$here/known"; say '"id":1,"result":{"sessionId":"'$id'"}}' ;;
esac
read -r prompt
say '"method":"session/update","params":{"sessionId":"'$id'","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$did $id"'"}}}}'
say '"id":2,"result":{"stopReason":"end_turn"}}'
while read -r more; do :; done
"#;

/// Name, configuration and script of each agent kind.
const AGENT_KINDS: [(&str, &str, &str); 4] = [
    ("claude", "kind = \"claude\"", CLAUDE_SCRIPT),
    ("codex", "kind = \"codex\"", CODEX_SCRIPT),
    (
        "exec",
        "kind = \"codex\"\nprotocol = \"exec\"",
        CODEX_EXEC_SCRIPT,
    ),
    ("acp", "kind = \"acp\"", ACP_SCRIPT),
];

struct ConversationsFixture {
    servers: RelayAndDaemon,
}

async fn start_fixture() -> ConversationsFixture {
    let config = |dir: &Path| {
        let mut config = String::new();
        for (name, kind, script) in AGENT_KINDS {
            let agent_dir = dir.join(name);
            std::fs::create_dir(&agent_dir).expect("a directory can be made");
            let path = agent_dir.join("agent.sh");
            std::fs::write(&path, script).expect("the file can be written");
            write_agent_file(&agent_dir, "known", "none");
            config += &format!("[agents.{name}]\n{kind}\nprogram = \"sh\"\nargs = [{path:?}]\n");
        }
        config
    };
    let servers = RelayAndDaemon::start_with_config(BATON, config).await;
    ConversationsFixture { servers }
}

fn write_agent_file(agent_dir: &Path, name: &str, text: &str) {
    std::fs::write(agent_dir.join(name), text).expect("the file can be written");
}

impl ConversationsFixture {
    fn set_agent_file(&self, name: &str, file: &str, text: &str) {
        write_agent_file(&self.servers.dir.path().join(name), file, text);
    }

    async fn run_turn(&self, agent: &str) -> Task {
        self.run_turn_of(agent, "our talk").await
    }

    async fn run_turn_of(&self, agent: &str, conversation: &str) -> Task {
        let spec = TaskSpec {
            conversation_id: format!("{conversation} with {agent}"),
            ..agent_task(agent)
        };
        let task = self.servers.client().run_to_end(spec).await;
        assert_eq!(task.state(), TaskState::Completed, "{agent}: {task:?}");
        task
    }
}

fn result_text(task: &Task) -> String {
    String::from_utf8_lossy(&task.result).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_resumes_and_a_forgotten_conversation_restarts_once() {
    let mut fixture = start_fixture().await;
    for (agent, _, _) in AGENT_KINDS {
        let (first, second) = (
            uuid::Uuid::now_v7().to_string(),
            uuid::Uuid::now_v7().to_string(),
        );
        fixture.set_agent_file(agent, "next", &first);
        let begun = fixture.run_turn(agent).await;
        assert_eq!(result_text(&begun), format!("began {first}"), "{agent}");
        let resumed = format!("went on with {first}");
        assert_eq!(
            result_text(&fixture.run_turn(agent).await),
            resumed,
            "{agent}"
        );
        fixture.servers.kill_and_restart_daemon().await;
        assert_eq!(
            result_text(&fixture.run_turn(agent).await),
            resumed,
            "{agent}: after its daemon was killed"
        );
        let other = fixture.run_turn_of(agent, "another talk").await;
        assert_eq!(
            result_text(&other),
            format!("began {first}"),
            "{agent}: another conversation"
        );

        // The agent loses its session.
        fixture.set_agent_file(agent, "known", "none");
        fixture.set_agent_file(agent, "next", &second);
        let restarted = fixture.run_turn(agent).await;
        assert_eq!(
            result_text(&restarted),
            format!("began {second}"),
            "{agent}"
        );
        assert_eq!(restarted.conversation_id, format!("our talk with {agent}"));
        let attempts: Vec<_> = restarted
            .attempts
            .iter()
            .map(|a| (a.failure_code.as_str(), a.resume_fallback))
            .collect();
        assert_eq!(attempts, [("resume_failed", false), ("", true)], "{agent}");
        assert_eq!(restarted.attempts[1].agent_session_id, second, "{agent}");
        let events = fixture
            .servers
            .client()
            .watch(&restarted.task_id)
            .await
            .collect_to_end()
            .await;
        let fallbacks = events
            .iter()
            .filter(|event| event.kind() == TaskEventKind::ResumeFallback);
        assert_eq!(fallbacks.count(), 1, "{agent}");
        let resumed = format!("went on with {second}");
        assert_eq!(
            result_text(&fixture.run_turn(agent).await),
            resumed,
            "{agent}: the new session replaced the old one"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_one_conversation_run_one_at_a_time_and_in_order() {
    let fixture = start_fixture().await;
    let client = fixture.servers.client();
    let log = fixture.servers.dir.path().join("log");
    let script = format!("echo \"+$0\" >> {log:?}; sleep 0.1; echo \"-$0\" >> {log:?}");
    let mut turns = Vec::new();
    for number in 0..5 {
        let spec = TaskSpec {
            conversation_id: "one talk".to_owned(),
            ..command_task("sh", &["-c", &script, &number.to_string()], "turns")
        };
        turns.push(client.submit(spec).await);
    }
    for turn in &turns {
        client.wait_for_end(&turn.task_id).await;
    }
    let log = std::fs::read_to_string(log).unwrap();
    let expected: Vec<String> = (0..5)
        .flat_map(|n| [format!("+{n}"), format!("-{n}")])
        .collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_turn_is_hidden_from_users_and_has_its_own_deadlines() {
    let fixture = start_fixture().await;
    fixture.set_agent_file("acp", "next", "talk");
    for (kind, visible) in [(TurnKind::User, true), (TurnKind::Control, false)] {
        let spec = TaskSpec {
            turn_kind: kind.into(),
            ..agent_task("acp")
        };
        let done = fixture.servers.client().run_to_end(spec).await;
        assert_eq!(result_text(&done), "began talk", "{kind:?}");
        let shown = fixture
            .servers
            .run_command(&["output", &done.task_id])
            .await;
        assert_eq!(
            shown.stdout.contains("began talk"),
            visible,
            "{kind:?}: {shown:?}"
        );
        let idle = done.effective_profile.unwrap().stream_idle_ms;
        assert_eq!(idle, Some(if visible { 120_000 } else { 30_000 }));
    }
}
