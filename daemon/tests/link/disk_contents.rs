//! What a daemon stores on its disk, for how long, and what it never stores there.

use std::fs;
use std::path::Path;
use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, Dispatch, RejectCode};

use crate::fake_relay::{FakeRelay, TEST_TIMEOUT, attempt, shell};
use crate::test_daemon::LinkTestDaemon;

/// Between two checks of the disk, which sends no event.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

async fn wait_until(what: &str, mut seen: impl FnMut() -> bool) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    let looking = tokio::time::timeout(TEST_TIMEOUT, async {
        while !seen() {
            ticks.tick().await;
        }
    });
    assert!(looking.await.is_ok(), "waited in vain: {what}");
}

/// All bytes under a directory.
fn contents(dir: &Path) -> Vec<u8> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.fold(Vec::new(), |mut all, entry| {
        if entry.path().is_dir() {
            all.extend(contents(&entry.path()));
        } else {
            all.extend(fs::read(entry.path()).unwrap_or_default());
        }
        all
    })
}

#[tokio::test]
async fn an_attempt_is_on_disk_without_its_token_until_acknowledged() {
    let mut relay = FakeRelay::start().await;
    let data = tempfile::tempdir().unwrap();
    let _daemon = LinkTestDaemon::start_with(&relay.url, |config| {
        config.data_dir = data.path().to_owned();
    });
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let dir = data.path().join("attempts").join(&attempt.attempt_id);
    let dispatch = shell("echo a line of output");
    let token = dispatch.token.clone().unwrap().value;
    session.dispatch(&attempt, dispatch).await;
    session
        .until_frame(|body| matches!(body, Body::Accepted(_)))
        .await;
    assert!(dir.join("attempt").exists() && dir.join("outbox").exists());
    session.confirm(&attempt, 30_000).await;
    let last = session.until_terminal().await;
    let kept = contents(data.path());
    let holds = |wanted: &[u8]| kept.windows(wanted.len()).any(|part| part == wanted);
    assert!(
        holds(b"a line of output"),
        "unacknowledged output is not stored"
    );
    assert!(holds(attempt.task_id.as_bytes()));
    assert!(!holds(&token), "the token was stored");
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    session
        .ack(&attempt, last.control_seq, complete.final_offset)
        .await;
    wait_until("the removal of the directory", || !dir.exists()).await;
}

#[tokio::test]
async fn an_attempt_id_that_is_no_file_name_is_refused() {
    let mut relay = FakeRelay::start().await;
    let data = tempfile::tempdir().unwrap();
    let _daemon = LinkTestDaemon::start_with(&relay.url, |config| {
        config.data_dir = data.path().join("data");
    });
    let mut session = relay.welcome().await;
    let bad = AttemptRef {
        attempt_id: "../../escaped".to_owned(),
        ..attempt()
    };
    session.dispatch(&bad, Dispatch::default()).await;
    let answer = session.next_attempt_frame().await;
    let Some(Body::Rejected(rejected)) = &answer.body else {
        panic!("{answer:?}")
    };
    assert_eq!(rejected.code(), RejectCode::Invalid);
    assert!(rejected.message.contains("UUID"), "{}", rejected.message);
    assert!(!data.path().join("escaped").exists());
    assert_eq!(
        fs::read_dir(data.path().join("data/attempts"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn a_restarted_daemon_refuses_a_replaced_relay() {
    let mut relay = FakeRelay::start().await;
    let data = tempfile::tempdir().unwrap();
    let start = |relay: &FakeRelay| {
        LinkTestDaemon::start_with(&relay.url, |config| {
            config.data_dir = data.path().to_owned();
        })
    };
    let mut first = start(&relay);
    let (mut session, _) = relay.accept().await;
    session.epoch = 7;
    session.welcome(Vec::new()).await;
    first.wait_for_status(|status| status.connected).await;
    first.stop.cancel();
    while session.next_frame().await.is_some() {}
    drop(session);
    first.wait_for_end().await.unwrap();

    let mut second = start(&relay);
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.seen_relay_epoch, 7);
    session.epoch = 6;
    session.welcome(Vec::new()).await;
    assert!(
        session.next_frame().await.is_none(),
        "the stream stays open"
    );
    // A failed try with a growing delay, and not a lost stream.
    second
        .wait_for_status(|status| status.disconnect_reason.contains("replaced relay"))
        .await;
    let (_, hello) = relay.accept().await;
    assert_eq!(hello.seen_relay_epoch, 7);
}

#[tokio::test]
async fn heartbeats_report_free_disk_space_and_unacked_bytes() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell("echo 0123456789")).await;
    session.until_terminal().await;
    session.heartbeats.clear();
    while session.heartbeats.is_empty() {
        session.next_frame().await.expect("the stream is open");
    }
    let load = session.heartbeats[0].load.expect("it reports its load");
    assert!(load.disk_free_percent.is_some_and(|percent| percent <= 100));
    assert!(load.unacked_bytes.is_some_and(|bytes| bytes >= 11));
}
