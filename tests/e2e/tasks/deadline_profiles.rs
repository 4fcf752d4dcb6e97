//! An absent, empty or partial deadline profile stays distinct through submit, store, crash,
//! dispatch and `baton show`.

use baton_proto::v1::Role;
use baton_proto::v1::{DeadlineProfile, TaskSpec};
use baton_tests::{RelayProcess, ScriptedDaemon, agent_task, hello};

use crate::BATON;

const PARTIAL_PROFILE: DeadlineProfile = DeadlineProfile {
    process_start_ms: Some(4_321),
    prompt_write_ms: None,
    first_event_ms: None,
    first_visible_event_ms: None,
    stream_idle_ms: Some(0),
    tool_idle_ms: None,
    user_input_ms: None,
    cleanup_term_ms: Some(1_500),
};

#[tokio::test(flavor = "multi_thread")]
async fn absent_empty_and_partial_profiles_stay_distinct_end_to_end() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let cases = [
        ("absent", None),
        ("empty", Some(DeadlineProfile::default())),
        ("partial", Some(PARTIAL_PROFILE)),
    ];
    let mut submitted = Vec::new();
    for (agent, profile) in cases {
        let task = client
            .submit(TaskSpec {
                profile,
                ..agent_task(agent)
            })
            .await;
        assert_eq!(
            task.requested_profile, profile,
            "{agent} in the answer to Submit"
        );
        submitted.push((agent, profile, task.task_id));
    }
    relay.kill().await;
    relay.start_again().await;

    let (_, secret) = client.create_token("", Role::Daemon).await;
    for (agent, requested, task_id) in submitted {
        let task = client.get(&task_id).await;
        assert_eq!(task.requested_profile, requested, "{agent} after the crash");
        let effective = task
            .effective_profile
            .expect("the enforced profile is always shown");
        let mut daemon =
            ScriptedDaemon::connect(&client.with_token(&secret), hello(&[agent])).await;
        let dispatched = daemon
            .next_dispatch()
            .await
            .dispatch
            .profile
            .unwrap_or_default();
        assert_eq!(dispatched, effective, "{agent} in Dispatch");
        match requested {
            // Only an absent profile gets the defaults of its turn kind.
            None => {
                assert_eq!(effective.process_start_ms, Some(15_000));
                assert_eq!(effective.stream_idle_ms, Some(120_000));
            }
            Some(profile) => assert_eq!(effective, profile, "{agent}"),
        }
        let shown = BATON
            .run(relay.data(), &["show", &task_id, "--json"])
            .await
            .stdout_json();
        let shown = shown.get("task").unwrap_or(&shown)["requestedProfile"].clone();
        match agent {
            "absent" => assert!(shown.is_null(), "{shown}"),
            "empty" => assert_eq!(shown, serde_json::json!({})),
            _ => assert_eq!(
                shown,
                serde_json::json!({"processStartMs": 4321, "streamIdleMs": 0, "cleanupTermMs": 1500})
            ),
        }
    }
}
