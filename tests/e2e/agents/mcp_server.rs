//! `baton mcp` with its own token, outside an attempt, as a Model Context Protocol client sees
//! it.

use baton_proto::v1::Role;
use baton_proto::verbs;
use baton_tests::{McpClient, RelayProcess, command_task};
use serde_json::json;

use crate::BATON;

#[tokio::test(flavor = "multi_thread")]
async fn every_tool_of_the_table_is_listed_with_a_strict_schema() {
    let relay = RelayProcess::start(BATON).await;
    let tools = McpClient::start(BATON, relay.data(), &[]).await;
    let listed = tools.list_tools().await;
    let mut tool_count = 0;
    for (verb, tool) in verbs::agent_tools() {
        for name in tool.aliases.iter().chain([&tool.name]) {
            let listed = &listed[*name];
            let hints = listed.annotations.as_ref().expect("annotations");
            assert_eq!(hints.read_only_hint, Some(tool.effect.is_read_only()));
            assert_eq!(hints.destructive_hint, Some(tool.effect.is_destructive()));
            assert_eq!(hints.idempotent_hint, Some(tool.effect.is_idempotent()));
            let description = listed.description.as_deref().unwrap_or_default();
            assert!(description.starts_with(verb.help), "{name}: {description}");
            let schema = listed.schema_as_json_value();
            assert_eq!(schema["additionalProperties"], json!(false), "{name}");
            tool_count += 1;
        }
    }
    assert_eq!((tool_count, listed.len()), (14, 14));
    let instructions = tools.instructions();
    for expected in [
        "list_blocked_tasks",
        "at each milestone",
        "before giving up",
    ] {
        assert!(instructions.contains(expected), "{instructions}");
    }
    assert!(tools.close().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reads_tasks_and_wrong_arguments_get_a_machine_code() {
    let relay = RelayProcess::start(BATON).await;
    let task = relay.admin().submit(command_task("true", &[], "mcp")).await;
    let tools = McpClient::start(BATON, relay.data(), &[]).await;
    let list = tools
        .call_tool("task_list", json!({"page_size": 5}))
        .await
        .into_content();
    assert_eq!(list["tasks"][0]["taskId"], json!(task.task_id));
    let task_argument = json!({"task_id": task.task_id});
    let got = tools
        .call_tool("task_get", task_argument)
        .await
        .into_content();
    assert_eq!(got["task"]["taskId"], json!(task.task_id));
    for (tool, arguments, status, code) in [
        (
            "task_get",
            json!({"task_id": "nonsense"}),
            "invalid_argument",
            "malformed_id",
        ),
        (
            "task_get",
            json!({"task_id": new_unknown_id()}),
            "not_found",
            "unknown_task",
        ),
        (
            "task_get",
            json!({"id": "x"}),
            "invalid_argument",
            "unknown_argument",
        ),
        (
            "task_get",
            json!({"task_id": 7}),
            "invalid_argument",
            "wrong_type",
        ),
        ("task_get", json!({}), "failed_precondition", "nothing_held"),
        (
            "task_list",
            json!({"page_size": 0}),
            "invalid_argument",
            "out_of_range",
        ),
        (
            "task_list",
            json!({"states": ["gone"]}),
            "invalid_argument",
            "unknown_enum_value",
        ),
        ("task_checkpoint", json!({}), "invalid_argument", "missing"),
        (
            "task_checkpoint",
            json!({"summary": "x"}),
            "failed_precondition",
            "nothing_held",
        ),
    ] {
        let response = tools.call_tool(tool, arguments.clone()).await;
        let seen = (response.error_field("status"), response.error_field("code"));
        assert_eq!(seen, (status, code), "{tool} {arguments}");
        assert!(!response.error_field("what").is_empty(), "{response:?}");
    }
    assert!(tools.try_call_tool("task_renew", json!({})).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_read_again_once() {
    let relay = RelayProcess::start(BATON).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "btn_wrong").unwrap();
    let path = file.to_str().unwrap();
    let tools = McpClient::start(BATON, relay.data(), &["--token-file", path]).await;
    let response = tools.call_tool("task_list", json!({})).await;
    assert_eq!(response.error_field("status"), "unauthenticated");
    let (_, good) = relay.admin().create_token("", Role::ReadOnly).await;
    std::fs::write(&file, &good).unwrap();
    let list = tools.call_tool("task_list", json!({})).await.into_content();
    assert_eq!(list["tasks"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_the_server_starts_without_tools_and_gives_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let tools = McpClient::start(BATON, dir.path(), &[]).await;
    assert!(tools.list_tools().await.is_empty());
    let instructions = tools.instructions();
    assert!(
        instructions.contains("not available") && instructions.contains("admin.token"),
        "{instructions}"
    );
    assert!(tools.try_call_tool("task_list", json!({})).await.is_err());
    assert!(tools.close().await);
}

fn new_unknown_id() -> String {
    uuid::Uuid::now_v7().to_string()
}
