//! Killed at every instant that matters: before each write, rename and sync of one commit and of one start, in turn. After each there is a clean start, and
//! everything that was acknowledged is there. All of them: `BATON_CHAOS_POINTS=all`; else a sample.

use std::collections::BTreeSet;

use baton_history::{Op, Outcome, Saw};
use baton_tests::copy_directory;
use tempfile::TempDir;

use crate::run::{Run, now};
use crate::skips;
use crate::traced::{Start, TENANT, Traced, clean_start, client, counted, look, start};

/// Points in a short run.
const SAMPLE: usize = 6;
/// No commit and no start makes so many changes.
const MOST: u64 = 2_000;

/// A directory with something in it, as a relay left it that was killed.
struct Sound {
    dir: TempDir,
    token: String,
    tasks: Vec<String>,
}

impl Sound {
    async fn make() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a directory can be made");
        let relay = match start(dir, "", &[], false).await {
            Start::Up(relay) => *relay,
            Start::Down(_, status) => panic!("a first start: {status}"),
        };
        let token = std::fs::read_to_string(relay.dir.path().join("data/admin.token"));
        let token = token
            .expect("a first start makes a token")
            .trim()
            .to_owned();
        let admin = relay.client.with_token(&token);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(admin.submit(baton_tests::for_agent("nobody")).await.task_id);
        }
        let dir = relay.kill().await;
        Self { dir, token, tasks }
    }

    fn copy(&self) -> TempDir {
        let copied = tempfile::tempdir().expect("a temporary directory can be made");
        copy_directory(self.dir.path(), copied.path());
        copied
    }
}

/// All numbers up to the end, or some of them: the first ones, and others that are spread over what is known to be there.
fn points(all: u64) -> Vec<u64> {
    if std::env::var("BATON_CHAOS_POINTS").is_ok_and(|word| word == "all") {
        return (1..MOST).collect();
    }
    let mut some: BTreeSet<u64> = [1, 2].into();
    while some.len() < SAMPLE.min(usize::try_from(all).unwrap_or(SAMPLE)) {
        some.insert(rand::random_range(1..=all));
    }
    some.into_iter().collect()
}

/// One commit of each kind, and a stop that leaves nothing in memory. How many changes it made, if it came to its end.
async fn commit(sound: &Sound, run: &Run, deed: &[&str]) -> TempDir {
    let relay = match start(sound.copy(), &sound.token, deed, true).await {
        Start::Up(relay) => *relay,
        Start::Down(_, status) => panic!("nothing was to happen before it is told: {status}"),
    };
    let asker = client(run, &relay.client);
    relay.arm().await;
    let (submitted, _) = asker.submit_once("nobody", "at a crash point").await;
    let canceled = asker.cancel_once(&sound.tasks[0]).await;
    finish(relay, submitted == Outcome::Ok && canceled == Outcome::Ok).await
}

async fn finish(mut relay: Traced, alive: bool) -> TempDir {
    if alive && !relay.has_ended() {
        return relay.stop().await;
    }
    relay.ended().await
}

async fn recovery(sound: &Sound, deed: &[&str]) -> TempDir {
    match start(sound.copy(), &sound.token, deed, false).await {
        Start::Up(relay) => finish(*relay, true).await,
        Start::Down(dir, _) => dir,
    }
}

/// What was acknowledged before the copy was made.
fn claim(sound: &Sound, run: &Run) {
    let view = run
        .recorder
        .viewpoint("before")
        .expect("a file can be made");
    for (call, task) in (0..).zip(&sound.tasks) {
        let asked = Saw::Call {
            call,
            op: Op::Submit,
            tenant: TENANT.to_owned(),
            task: None,
            key: None,
            body: None,
        };
        let answer = Saw::Answer {
            call,
            outcome: Outcome::Ok,
            task: Some(task.clone()),
            revision: None,
            state: None,
            code: None,
            already: false,
        };
        for saw in [asked, answer] {
            view.saw(now(), saw).expect("the history can be written");
        }
    }
}

async fn survives(sound: &Sound, run: Run, dir: TempDir) {
    claim(sound, &run);
    let relay = clean_start(dir, &sound.token).await;
    look(&run, &relay.client).await;
    let dir = relay.stop().await;
    run.end_quietly();
    // A second start has nothing left to mend.
    clean_start(dir, &sound.token).await.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_change_of_a_commit_loses_nothing() {
    if !skips::can_trace() {
        return;
    }
    let sound = Sound::make().await;
    let run = Run::new("commit-whole");
    let all = counted(commit(&sound, &run, &["count"]).await.path());
    run.forget();
    assert!(
        all >= 8,
        "two commits and a stop are more than {all} changes"
    );
    let mut killed = 0;
    for point in points(all) {
        let run = Run::new(&format!("commit-{point}"));
        let dir = commit(&sound, &run, &["kill", &point.to_string()]).await;
        let over = counted(dir.path()) < point;
        survives(&sound, run, dir).await;
        if over {
            break;
        }
        killed += 1;
    }
    println!(
        "killed at {killed} of about {all} changes of a commit: nothing acknowledged was lost"
    );
    assert!(killed >= SAMPLE / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_change_of_its_start_starts_again() {
    if !skips::can_trace() {
        return;
    }
    let sound = Sound::make().await;
    let all = counted(recovery(&sound, &["count"]).await.path());
    assert!(all >= 8, "a start and a stop are more than {all} changes");
    let mut killed = 0;
    for point in points(all) {
        let dir = recovery(&sound, &["kill", &point.to_string()]).await;
        let over = counted(dir.path()) < point;
        survives(&sound, Run::new(&format!("start-{point}")), dir).await;
        if over {
            break;
        }
        killed += 1;
    }
    println!(
        "killed at {killed} of about {all} changes of a start and stop: each next start found everything"
    );
    assert!(killed >= SAMPLE / 2);
}
