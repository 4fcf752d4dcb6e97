//! Streams that must be closed: no other stream is affected, and their attempts continue.

use baton_proto::v1::{
    DaemonFrame, GoodbyeCode, Heartbeat, Hello, RelayFrame, Role, TaskState, daemon_frame,
    relay_frame,
};
use baton_tests::{
    EmbeddedRelay, RawDaemonLink, ScriptedDaemon, TestClient, agent_task, error_code, hello,
    poll_until,
};
use bytes::Bytes;
use prost::Message;
use tonic::Code;

fn encode_frame(frame: daemon_frame::Frame) -> Bytes {
    DaemonFrame { frame: Some(frame) }.encode_to_vec().into()
}

/// A DaemonFrame with a Hello whose name is not valid UTF-8.
fn malformed_hello() -> Bytes {
    // Field 1 (hello), 4 bytes: field 4 (name), 2 bytes that are not valid UTF-8.
    Bytes::from_static(&[0x0a, 0x04, 0x22, 0x02, 0xff, 0xfe])
}

async fn new_daemon_client(relay: &EmbeddedRelay) -> TestClient {
    relay.admin().client_of_tenant("", Role::Daemon).await
}

/// First frames that are not a Hello, or are an invalid one.
fn bad_first_frames() -> Vec<(&'static str, Bytes, Code, &'static str)> {
    let bad = |change: fn(&mut Hello)| {
        let mut hello = hello(&["x"]);
        change(&mut hello);
        encode_frame(daemon_frame::Frame::Hello(hello))
    };
    let heartbeat = encode_frame(daemon_frame::Frame::Heartbeat(Heartbeat::default()));
    let garbage = Bytes::from_static(&[0xff; 7]);
    let invalid = Code::InvalidArgument;
    vec![
        (
            "a frame before Hello",
            heartbeat,
            invalid,
            "hello_not_first",
        ),
        ("no arm", Bytes::new(), invalid, "hello_not_first"),
        ("malformed UTF-8", malformed_hello(), invalid, "undecodable"),
        ("garbage", garbage, invalid, "undecodable"),
        (
            "no name",
            bad(|hello| hello.name.clear()),
            invalid,
            "bad_hello",
        ),
        (
            "no slots",
            bad(|hello| hello.slots = 0),
            invalid,
            "bad_hello",
        ),
        (
            "no instance",
            bad(|hello| hello.instance_id.clear()),
            invalid,
            "bad_hello",
        ),
        (
            "another version",
            bad(|hello| hello.protocol_version = 9),
            Code::FailedPrecondition,
            "version_unsupported",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_valid_hello_ends_without_side_effects() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let mut bystander = relay.start_scripted_daemon(&["bystander"]).await;
    let task = admin.submit(agent_task("bystander")).await;
    let mut attempt = bystander.start_next_attempt().await;
    bystander.wait_until_acked(&attempt).await;
    let client = new_daemon_client(&relay).await;
    let before = admin.commit_seq().await;
    for (what, first, code, machine) in bad_first_frames() {
        let status = match RawDaemonLink::open(&client, first).await {
            Ok(link) => link
                .wait_for_end()
                .await
                .unwrap_or_else(|| panic!("{what} did not end with an error")),
            Err(status) => status,
        };
        assert_eq!(
            (status.code(), error_code(&status).as_str()),
            (code, machine),
            "{what}: {status:?}"
        );
        assert_eq!(
            admin.commit_seq().await,
            before,
            "{what} committed something"
        );
    }
    attempt.complete("unharmed").await;
    admin
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_continue_on_a_new_stream_after_an_undecodable_frame() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let client = new_daemon_client(&relay).await;
    let mut daemon = ScriptedDaemon::connect(&client, hello(&["clumsy"])).await;
    let task = admin.submit(agent_task("clumsy")).await;
    let mut attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;

    // The same instance opens a second stream, which replaces the first one without Goodbye and
    // then sends an undecodable frame.
    let mut again = daemon.hello.clone();
    again.active = Vec::new();
    let mut daemon = daemon.reconnect(&client, &mut [&mut attempt]).await;
    let garbage = RawDaemonLink::open(
        &client,
        encode_frame(daemon_frame::Frame::Hello(hello_listing(&daemon, &attempt))),
    )
    .await;
    let mut raw = garbage.expect("the stream opens");
    let first = raw.next().await.expect("a Welcome").expect("a Welcome");
    let first = RelayFrame::decode(first).unwrap();
    assert!(
        matches!(first.frame, Some(relay_frame::Frame::Welcome(_))),
        "{first:?}"
    );
    drop(daemon.wait_for_stream_end().await);
    let before = admin.commit_seq().await;
    raw.send(malformed_hello()).await;
    let last = RelayFrame::decode(raw.next().await.unwrap().expect("a Goodbye")).unwrap();
    assert!(
        matches!(&last.frame, Some(relay_frame::Frame::Goodbye(bye)) if bye.code() == GoodbyeCode::ProtocolError),
        "{last:?}"
    );
    assert!(
        raw.wait_for_end().await.is_none(),
        "the stream ends after Goodbye"
    );
    let running = admin.get(&task.task_id).await;
    assert_eq!(
        running.state(),
        TaskState::Running,
        "losing a stream ends no attempt"
    );
    assert_eq!(admin.commit_seq().await, before);

    let daemon = daemon.reconnect(&client, &mut [&mut attempt]).await;
    attempt.send_output("still here").await;
    attempt.complete("unharmed").await;
    admin
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    drop(daemon);
}

fn hello_listing(daemon: &ScriptedDaemon, attempt: &baton_tests::ScriptedAttempt) -> Hello {
    Hello {
        active: vec![baton_proto::v1::ActiveAttempt {
            r#ref: Some(attempt.attempt_ref.clone()),
            token: Some(attempt.token()),
            state: baton_proto::v1::ActiveState::Running.into(),
            last_control_seq: attempt.control_seq,
            ..Default::default()
        }],
        ..daemon.hello.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hello_ends_the_stream_and_another_instance_supersedes_it() {
    let relay = EmbeddedRelay::start().await;
    let client = new_daemon_client(&relay).await;
    let mut daemon = ScriptedDaemon::connect(&client, hello(&["twice"])).await;
    daemon
        .send(daemon_frame::Frame::Hello(daemon.hello.clone()))
        .await;
    let goodbye = |frame: &RelayFrame| match &frame.frame {
        Some(relay_frame::Frame::Goodbye(goodbye)) => Some(goodbye.code()),
        _ => None,
    };
    let code = daemon.expect_frame("Goodbye", goodbye).await;
    assert_eq!(code, GoodbyeCode::ProtocolError);
    drop(daemon.wait_for_stream_end().await);

    let link = daemon.client().clone();
    let mut first = daemon.reconnect(&link, &mut []).await;
    let other = Hello {
        instance_id: uuid::Uuid::now_v7().to_string(),
        ..first.hello.clone()
    };
    let _second = ScriptedDaemon::connect(&link, other).await;
    let code = first.expect_frame("Goodbye", goodbye).await;
    assert_eq!(code, GoodbyeCode::Superseded);

    // An id that belongs to another credential is refused.
    let other_credential = new_daemon_client(&relay).await;
    let refused = ScriptedDaemon::try_connect(&other_credential, first.hello.clone()).await;
    assert_eq!(
        refused.map(|_| ()).unwrap_err().code(),
        Code::PermissionDenied
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_loses_no_output_and_ends_no_attempt() {
    let relay = EmbeddedRelay::start().await;
    let tap = baton_tests::FrameTap::start(relay.url()).await;
    let mut daemon =
        baton_tests::EmbeddedDaemon::start(&tap.url(), &relay.daemon_token().await).await;
    let client = relay.admin();
    let dir = tempfile::tempdir().unwrap();
    let go_on = dir.path().join("go-on");
    let task = client
        .submit(baton_tests::task_until_file(&go_on, "cut"))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_output().await;
    tap.cut();
    daemon
        .wait_for_status("the daemon to notice", |status| !status.connected)
        .await;
    std::fs::write(&go_on, "").unwrap();
    poll_until("the child to end on its own", || {
        baton_tests::marked_processes("cut")
            .is_empty()
            .then_some(())
    })
    .await;
    tap.restore();
    watch.wait_for_state(TaskState::Completed).await;
    assert_eq!(client.get(&task.task_id).await.attempts.len(), 1);
    assert_eq!(
        client.read_output_to_end(&task.task_id).await,
        b"begun\nfinished\n"
    );
}
