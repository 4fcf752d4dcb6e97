//! A coding agent that sends requests without end and never reads its stdin.

use std::collections::BTreeMap;

use baton_daemon::{AgentConfig, AgentWire};
use baton_proto::v1::attempt_frame::Body;

use crate::fake_relay::{FakeRelay, attempt, shell};
use crate::test_daemon::LinkTestDaemon;

/// Each request causes a refusal that repeats its id.
const ENDLESS_REQUESTS_SCRIPT: &str = r#"
id=$(head -c 60000 /dev/zero | tr '\0' y)
while :; do printf '{"id":"%s","method":"nobody/knows"}\n' "$id"; done
"#;

#[tokio::test]
async fn an_agent_that_never_reads_its_stdin_is_ended() {
    let mut relay = FakeRelay::start().await;
    let agent = AgentConfig::Coding {
        wire: AgentWire::CodexAppServer,
        program: "sh".into(),
        args: vec!["-c".into(), ENDLESS_REQUESTS_SCRIPT.into()],
        env: BTreeMap::new(),
        task_env: Vec::new(),
    };
    let _daemon = LinkTestDaemon::start_with(&relay.url, |config| {
        config.agents.insert("codex".to_owned(), agent);
    });
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let mut dispatch = shell("");
    dispatch.agent = "codex".to_owned();
    dispatch.command = None;
    dispatch.prompt = "Do it.".to_owned();
    session.run(&attempt, dispatch).await;
    let last = session.until_terminal().await;
    let Some(Body::Error(error)) = &last.body else {
        panic!("{last:?}")
    };
    assert_eq!(error.failure_code, "output_invalid", "{error:?}");
    assert!(error.message.contains("did not read"), "{error:?}");
    assert!(
        error
            .receipt
            .as_ref()
            .is_some_and(|receipt| receipt.group_empty)
    );
}
