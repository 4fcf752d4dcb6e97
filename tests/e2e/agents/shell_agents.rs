//! Agents as shell scripts, one for each wire protocol that can ask. Each calls a tool, asks for
//! permission, prints a result and copies any further input to standard error. For tests that
//! check the bytes an agent receives; other tests use the stand-in.

use baton_daemon::AgentWire;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{OutputChunk, Task};
use baton_tests::TestClient;

const CLAUDE_SCRIPT: &str = r#"
read -r prompt
say() { printf '%s\n' "$1"; }
say '{"type":"system","subtype":"init","session_id":"talk-1","model":"opus"}'
say '{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"I look."}}}'
say '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}'
say '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{ "command": "ls" },"tool_use_id":"t1"}}'
read -r answer
case "$answer" in
  *'"behavior":"allow","updatedInput":{ "command": "ls" }'*) word=allowed; bad=false ;;
  *) word=denied; bad=true ;;
esac
say '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a.txt","is_error":'$bad'}]}}'
say '{"type":"result","subtype":"success","is_error":false,"result":"'$word'","session_id":"talk-1","num_turns":2,"total_cost_usd":0.25,"usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":6}}'
while read -r more; do say "$more" >&2; done
"#;

const CODEX_SCRIPT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r initialize
say '{"id":0,"result":{}}'
read -r initialized; read -r start
say '{"id":1,"result":{"thread":{"id":"talk-1"}}}'
read -r turn
say '{"id":2,"result":{"turn":{"id":"u1"}}}'
say '{"method":"turn/started","params":{"threadId":"talk-1","turn":{"id":"u1"}}}'
say '{"method":"item/agentMessage/delta","params":{"threadId":"talk-1","itemId":"m","delta":"I look."}}'
say '{"method":"item/started","params":{"threadId":"talk-1","item":{"type":"commandExecution","id":"t1","command":"ls"}}}'
say '{"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"talk-1","turnId":"u1","itemId":"t1","command":"ls"}}'
read -r answer
case "$answer" in *'"decision":"accept"'*) word=allowed; status=completed ;; *) word=denied; status=declined ;; esac
say '{"method":"item/completed","params":{"threadId":"talk-1","item":{"type":"commandExecution","id":"t1","status":"'$status'","aggregatedOutput":"a.txt"}}}'
say '{"method":"item/completed","params":{"threadId":"talk-1","item":{"type":"agentMessage","id":"n","text":"'$word'"}}}'
say '{"method":"thread/tokenUsage/updated","params":{"threadId":"talk-1","turnId":"u1","tokenUsage":{"total":{"inputTokens":108,"cachedInputTokens":5,"outputTokens":14},"last":{"inputTokens":8,"cachedInputTokens":5,"outputTokens":4}}}}'
say '{"method":"turn/completed","params":{"threadId":"talk-1","turn":{"id":"u1","status":"completed"}}}'
while read -r more; do say "$more" >&2; done
"#;

const ACP_SCRIPT: &str = r#"
say() { printf '%s\n' '{"jsonrpc":"2.0",'"$1"; }
update() { say '"method":"session/update","params":{"sessionId":"talk-1","update":{'"$1"'}}}'; }
read -r initialize
say '"id":0,"result":{"protocolVersion":1,"agentCapabilities":{}}}'
read -r new
say '"id":1,"result":{"sessionId":"talk-1"}}'
read -r prompt
update '"sessionUpdate":"agent_message_chunk","messageId":"m1","content":{"type":"text","text":"I look."}'
update '"sessionUpdate":"tool_call","toolCallId":"t1","name":"Bash","status":"pending"'
say '"id":0,"method":"session/request_permission","params":{"sessionId":"talk-1","toolCall":{"toolCallId":"t1","name":"Bash","rawInput":{"command":"ls"}},"options":[{"optionId":"y","kind":"allow_once"},{"optionId":"n","kind":"reject_once"}]}}'
read -r answer
case "$answer" in *'"optionId":"y"'*) word=allowed; status=completed ;; *) word=denied; status=failed ;; esac
update '"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"'$status'","content":[{"type":"content","content":{"type":"text","text":"a.txt"}}]'
update '"sessionUpdate":"agent_message_chunk","messageId":"m2","content":{"type":"text","text":"'$word'"}'
say '"id":2,"result":{"stopReason":"end_turn","usage":{"inputTokens":3,"outputTokens":4,"cachedReadTokens":5,"cachedWriteTokens":6}}}'
while read -r more; do printf '%s\n' "$more" >&2; done
"#;

pub(crate) const SHELL_AGENTS: [(AgentWire, &str); 3] = [
    (AgentWire::Claude, CLAUDE_SCRIPT),
    (AgentWire::CodexAppServer, CODEX_SCRIPT),
    (AgentWire::Acp, ACP_SCRIPT),
];

pub(crate) fn agent_of_wire(wire: AgentWire) -> (&'static str, &'static str) {
    match wire {
        AgentWire::Claude => ("a", "claude"),
        AgentWire::CodexAppServer | AgentWire::CodexExec => ("b", "codex"),
        AgentWire::Acp => ("c", "acp"),
    }
}

pub(crate) async fn read_output(
    client: &TestClient,
    task: &Task,
    wanted: impl Fn(&OutputChunk) -> bool,
) -> String {
    let mut text = String::new();
    for item in client.read_stored_output(&task.task_id).await {
        if let Item::Chunk(chunk) = item
            && wanted(&chunk)
        {
            text += &String::from_utf8_lossy(&chunk.data);
        }
    }
    text
}
