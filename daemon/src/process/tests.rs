//! The second lines: what happens to children when the daemon itself is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::clock::Clock;

const PATIENCE: Duration = Duration::from_secs(20);

fn sleeper(daemon_id: &str) -> ChildSpec {
    let environment = BTreeMap::from([
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        (DAEMON_MARKER.into(), daemon_id.into()),
    ]);
    ChildSpec {
        program: "sleep".into(),
        args: vec!["600".into()],
        cwd: "/".into(),
        environment,
    }
}

async fn exit_of(mut spawned: Spawned) -> Exit {
    tokio::time::timeout(PATIENCE, spawned.wait())
        .await
        .expect("the child lives on")
}

#[tokio::test]
async fn children_die_with_the_thread_that_started_them() {
    let spawner = Spawner::start().unwrap();
    let child = spawner.spawn(sleeper("")).await.unwrap();
    drop(spawner);
    assert_eq!(exit_of(child).await, Exit::Signal(9));
}

#[tokio::test]
async fn what_a_killed_daemon_left_behind_is_found_by_its_marker() {
    let spawner = Spawner::start().unwrap();
    let daemon_id = uuid::Uuid::now_v7().to_string();
    let mine = spawner.spawn(sleeper(&daemon_id)).await.unwrap();
    let foreign = spawner.spawn(sleeper("another")).await.unwrap();
    let cleared = kill_marked(DAEMON_MARKER, &daemon_id, &Clock::boot()).await;
    assert!(cleared.empty && cleared.killed && cleared.swept == 1);
    assert_eq!(exit_of(mine).await, Exit::Signal(9));
    assert!(stat::read(foreign.id.pid).is_some_and(|stat| !stat.is_zombie()));
}

#[tokio::test]
async fn a_dropped_child_takes_its_group_with_it() {
    let spawner = Spawner::start().unwrap();
    let mut spec = sleeper("");
    spec.program = "sh".into();
    spec.args = vec!["-c".into(), "sleep 600 & echo up; wait".into()];
    let mut spawned = spawner.spawn(spec).await.unwrap();
    let mut pipes = Pipes::take(&mut spawned.child, bytes::Bytes::new());
    while !matches!(pipes.next(true).await, PipeEvent::Output { .. }) {}
    drop(spawned);
    // The pipe ends only when the last of the group is gone.
    let drained = async { while !matches!(pipes.next(true).await, PipeEvent::Drained) {} };
    tokio::time::timeout(PATIENCE, drained)
        .await
        .expect("the group lives on");
}
