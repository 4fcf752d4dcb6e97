//! Submit, list, watch, cancel and output calls.

use baton_proto::v1;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::read_output_response::Item;
use tonic::Code;

use super::single_attempt_daemon::SingleAttemptDaemon;
use super::{RelayFixture, in_time, refusal_code, spec, submission};

#[tokio::test]
async fn absent_empty_and_partial_profiles_are_returned_as_sent() {
    let relay = RelayFixture::new().await;
    let partial = v1::DeadlineProfile {
        stream_idle_ms: Some(7_000),
        tool_idle_ms: Some(0),
        ..Default::default()
    };
    for sent in [None, Some(v1::DeadlineProfile::default()), Some(partial)] {
        let spec = v1::TaskSpec {
            profile: sent,
            ..spec()
        };
        let id = relay
            .submit(&relay.admin, submission(spec))
            .await
            .task
            .unwrap()
            .task_id;
        let ask = v1::GetTaskRequest {
            task_id: id,
            include_spec: true,
        };
        let task = relay
            .tasks(&relay.admin)
            .get(ask)
            .await
            .unwrap()
            .into_inner()
            .task
            .unwrap();
        assert_eq!(task.requested_profile, sent);
        assert_eq!(task.spec.unwrap().profile, sent);
        let effective = task
            .effective_profile
            .expect("the effective profile is always shown");
        match sent {
            None => assert_eq!(effective.process_start_ms, Some(15_000)),
            Some(sent) => assert_eq!(effective, sent),
        }
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn one_key_makes_one_task_and_fail_fast_without_a_daemon_is_refused() {
    let relay = RelayFixture::new().await;
    let keyed = |spec| v1::SubmitRequest {
        idempotency_key: "k".into(),
        ..submission(spec)
    };
    let first = relay.submit(&relay.admin, keyed(spec())).await;
    let again = relay.submit(&relay.admin, keyed(spec())).await;
    assert!(!first.existed && again.existed);
    assert_eq!(first.task.unwrap().task_id, again.task.unwrap().task_id);
    let other = v1::TaskSpec {
        goal: "another".into(),
        ..spec()
    };
    let before = relay.commit_seq().await;
    let conflict = relay.tasks(&relay.admin).submit(keyed(other)).await;
    assert_eq!(
        refusal_code(conflict),
        (Code::AlreadyExists, "idempotency_conflict".to_owned())
    );
    let policy = v1::DispatchPolicy::FailFast.into();
    let fail_fast = v1::TaskSpec {
        dispatch_policy: policy,
        ..spec()
    };
    let refused = relay
        .tasks(&relay.admin)
        .submit(submission(fail_fast))
        .await;
    assert_eq!(
        refusal_code(refused),
        (Code::Unavailable, "no_daemon".to_owned())
    );
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_is_refused_and_many_rows_are_answered_in_order() {
    let relay = RelayFixture::with_config(|config| config.max_open_tasks = 3).await;
    let row = |goal: &str| {
        submission(v1::TaskSpec {
            goal: goal.into(),
            ..spec()
        })
    };
    let bad = submission(v1::TaskSpec {
        agent: String::new(),
        ..spec()
    });
    let tasks = vec![row("a"), bad, row("b"), row("c"), row("d")];
    let many = relay
        .tasks(&relay.admin)
        .submit_many(v1::SubmitManyRequest { tasks })
        .await;
    let results = many.unwrap().into_inner().results;
    let outcomes: Vec<String> = results
        .into_iter()
        .map(|row| row_outcome(row.result.unwrap()))
        .collect();
    assert_eq!(outcomes, ["a", "missing", "b", "c", "queue_full"]);
    let full = relay.tasks(&relay.admin).submit(row("e")).await;
    assert_eq!(
        refusal_code(full),
        (Code::ResourceExhausted, "queue_full".to_owned())
    );

    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let ask = v1::ListTasksRequest {
            page_size: 2,
            page_token,
            ..Default::default()
        };
        let page = relay
            .tasks(&relay.admin)
            .list(ask)
            .await
            .unwrap()
            .into_inner();
        seen.extend(page.tasks.into_iter().map(|task| task.goal));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["c", "b", "a"], "newest first, over two pages");
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_watch_shows_history_then_the_cancel_and_ends_with_the_task() {
    let relay = RelayFixture::new().await;
    let task_id = relay
        .submit(&relay.admin, submission(spec()))
        .await
        .task
        .unwrap()
        .task_id;
    let ask = v1::WatchTaskRequest {
        task_id: task_id.clone(),
        ..Default::default()
    };
    let mut watch = relay
        .tasks(&relay.admin)
        .watch(ask)
        .await
        .unwrap()
        .into_inner();
    let mut revisions = Vec::new();
    let mut states = Vec::new();
    while let Some(message) = in_time("event", watch.message()).await.unwrap() {
        match message.item.unwrap() {
            v1::watch_task_response::Item::Event(event) => {
                revisions.push(event.revision);
                states.push(event.task_state());
            }
            v1::watch_task_response::Item::CaughtUp(at) => {
                assert_eq!(at.state(), v1::TaskState::Queued);
                let cancel = v1::CancelTaskRequest {
                    task_id: task_id.clone(),
                    ..Default::default()
                };
                let first = relay
                    .tasks(&relay.admin)
                    .cancel(cancel.clone())
                    .await
                    .unwrap();
                assert!(!first.into_inner().already_finished);
                let second = relay.tasks(&relay.admin).cancel(cancel).await.unwrap();
                assert!(second.into_inner().already_finished);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        revisions.iter().copied().eq(1..=revisions.len() as u64),
        "{revisions:?}"
    );
    assert_eq!(states.last(), Some(&v1::TaskState::Canceled));
    in_time("stop", relay.relay.stop()).await.unwrap();
}

/// The goal of an accepted row, or the machine code of a refused row.
fn row_outcome(row: v1::submit_many_result::Result) -> String {
    match row {
        v1::submit_many_result::Result::Accepted(accepted) => accepted.task.unwrap().goal,
        v1::submit_many_result::Result::Error(error) => error.code,
    }
}

#[tokio::test]
async fn output_is_followed_live_to_the_end_and_can_be_read_again() {
    let relay = RelayFixture::new().await;
    let (_, token) = relay.create_token("*", v1::Role::Daemon).await;
    let task_id = relay
        .submit(&relay.admin, submission(spec()))
        .await
        .task
        .unwrap()
        .task_id;
    let mut daemon = SingleAttemptDaemon::connect_and_accept(&relay, &token).await;
    daemon.send(Body::Started(v1::TaskStarted::default())).await;
    daemon.output(0, "one ").await;
    let ask = |from_offset, follow| v1::ReadOutputRequest {
        task_id: task_id.clone(),
        from_offset,
        follow,
        ..Default::default()
    };
    let reading = relay
        .tasks(&relay.admin)
        .read_output(ask(0, true))
        .await
        .unwrap();
    let mut live = reading.into_inner();
    let first = in_time("output", live.message())
        .await
        .unwrap()
        .unwrap()
        .item
        .unwrap();
    assert!(matches!(&first, Item::Chunk(chunk) if chunk.data == "one " && chunk.visible));
    daemon.output(4, "two").await;
    daemon.complete(7).await;
    assert_eq!(read_to_end(&mut live).await, ("two".to_owned(), 7, true));

    let again = relay
        .tasks(&relay.admin)
        .read_output(ask(2, false))
        .await
        .unwrap();
    assert_eq!(
        read_to_end(&mut again.into_inner()).await,
        ("e two".to_owned(), 7, true)
    );
    in_time("stop", relay.relay.stop()).await.unwrap();
}

/// The text up to the end, the final offset, and whether the output is complete.
async fn read_to_end(stream: &mut tonic::Streaming<v1::ReadOutputResponse>) -> (String, u64, bool) {
    let mut text = String::new();
    loop {
        let message = in_time("output", stream.message()).await.unwrap().unwrap();
        match message.item.unwrap() {
            Item::Chunk(chunk) => text.push_str(std::str::from_utf8(&chunk.data).unwrap()),
            Item::Cut(cut) => panic!("{cut:?}"),
            Item::End(end) => return (text, end.offset, end.complete),
        }
    }
}
