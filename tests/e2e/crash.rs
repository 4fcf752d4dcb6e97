//! kill -9 of the relay under load, again and again. `BATON_CRASH_KILLS=30` makes the full run; the default is shorter.
//!
//! Four daemons run children that append a line to a file when they start, two clients submit without pause. At each
//! kill it is written down what a client has seen: what was accepted, what had completed, what was running. In the end all
//! of it must still be true, and every child must have run once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::v1::{
    AttemptState, ListTasksRequest, RetryPolicy, Role, SubmitRequest, Task, TaskSpec, TaskState,
    WhenUnsafe,
};
use baton_tests::{Client, DaemonProcess, RelayProcess, command, marked_gone, within};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{BATON, STANDIN};

const SHORT_RUN: usize = 8;
const DAEMONS: usize = 4;
const CLIENTS: usize = 2;
/// Per kill, so that thirty give more than 200 submits, 100 completions and 20 running attempts.
const SUBMITS: usize = 8;
const COMPLETIONS: usize = 4;
const RUNNING: usize = 3;
/// Tasks that are open at one time: enough to keep all daemons busy.
const OPEN: usize = 24;
const MARK: &str = "crash";
/// Between two looks, and between two tries while the relay is away.
const LOOK: Duration = Duration::from_millis(50);

/// What clients were told.
#[derive(Clone, Debug, Default)]
struct Ledger {
    accepted: BTreeSet<String>,
    /// Task to the attempt that completed it, as it was before a kill.
    completed: BTreeMap<String, String>,
    /// Attempts that ran when the relay was killed.
    running: BTreeSet<String>,
}

type Shared = Arc<Mutex<Ledger>>;

fn lock(ledger: &Shared) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(runs: &Path) -> TaskSpec {
    let nap = rand::random_range(50..900).to_string();
    let runs = runs.display().to_string();
    TaskSpec {
        // Relay and daemons are away for moments only; a loaded machine may stretch them.
        lease_ttl_ms: Some(15_000),
        retry: Some(RetryPolicy {
            max_losses: Some(10),
            when_unsafe: WhenUnsafe::Retry.into(),
            backoff_initial_ms: Some(10),
            ..RetryPolicy::default()
        }),
        ..command(
            STANDIN,
            &["count", &runs, "print", "1", "nap", &nap, "print", "1"],
            MARK,
        )
    }
}

/// A client that submits without pause.
struct Load {
    client: Client,
    number: usize,
    runs: PathBuf,
    room: Arc<Semaphore>,
    ledger: Shared,
    stop: CancellationToken,
}

impl Load {
    async fn submit(self) {
        for turn in 0.. {
            let permit = tokio::select! {
                permit = self.room.acquire() => permit.expect("the semaphore is never closed"),
                () = self.stop.cancelled() => return,
            };
            permit.forget();
            let task = self.one(turn).await;
            lock(&self.ledger).accepted.insert(task.task_id);
        }
    }

    /// A submit without an answer is repeated with its key, as a careful client does.
    async fn one(&self, turn: u32) -> Task {
        let request = SubmitRequest {
            spec: Some(work(&self.runs)),
            idempotency_key: format!("client-{}-{turn}", self.number),
            ..SubmitRequest::default()
        };
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            ticks.tick().await;
            if let Ok(answer) = self.client.try_submit(request.clone()).await {
                return answer.task.expect("an accepted task is in the answer");
            }
        }
    }
}

/// All tasks; none while the relay is away.
async fn all_tasks(client: &Client) -> Option<Vec<Task>> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListTasksRequest {
            page_size: 200,
            page_token,
            ..ListTasksRequest::default()
        };
        let mut tasks = client.tasks();
        let page = within("a page of tasks", tasks.list(request))
            .await
            .ok()?
            .into_inner();
        assert_eq!(page.skipped, 0, "every record can be read");
        found.extend(page.tasks);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Some(found);
        }
    }
}

/// A look at everything, with permits for what has ended since the last look.
struct Observer<'a> {
    client: &'a Client,
    room: Arc<Semaphore>,
    ended: usize,
}

struct Seen {
    completed: BTreeMap<String, String>,
    running: BTreeSet<String>,
    open: usize,
}

impl Observer<'_> {
    async fn look(&mut self) -> Option<Seen> {
        let tasks = all_tasks(self.client).await?;
        let newest = |task: &Task| task.attempts.last().cloned().unwrap_or_default();
        let of = |state: TaskState| tasks.iter().filter(move |task| task.state() == state);
        let completed: BTreeMap<_, _> = of(TaskState::Completed)
            .map(|task| (task.task_id.clone(), newest(task).attempt_id))
            .collect();
        let parked = of(TaskState::NeedsAttention).count();
        let running = tasks.iter().map(newest).filter(|attempt| {
            matches!(
                attempt.state(),
                AttemptState::Prompted | AttemptState::Streaming
            )
        });
        let running = running.map(|attempt| attempt.attempt_id).collect();
        let ended = completed.len() + parked;
        self.room.add_permits(ended - self.ended);
        self.ended = ended;
        Some(Seen {
            completed,
            running,
            open: tasks.len() - ended,
        })
    }

    async fn until(&mut self, what: &str, enough: impl Fn(&Seen) -> bool) -> Seen {
        let mut ticks = tokio::time::interval(LOOK);
        within(what, async {
            loop {
                ticks.tick().await;
                if let Some(seen) = self.look().await
                    && enough(&seen)
                {
                    return seen;
                }
            }
        })
        .await
    }
}

async fn fleet(client: &Client, dir: &Path) -> Vec<DaemonProcess> {
    let mut daemons = Vec::new();
    for number in 0..DAEMONS {
        let (_, secret) = client.make_token("", Role::Daemon).await;
        let name = format!("daemon-{number}");
        daemons.push(DaemonProcess::start(BATON, dir, &name, client.url(), &secret).await);
    }
    daemons
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_or_doubled_when_the_relay_is_killed_under_load() {
    let kills = std::env::var("BATON_CRASH_KILLS").map_or(SHORT_RUN, |kills| {
        kills.parse().expect("BATON_CRASH_KILLS is a number")
    });
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let mut daemons = fleet(&client, dir.path()).await;
    let (ledger, stop) = (Shared::default(), CancellationToken::new());
    let room = Arc::new(Semaphore::new(OPEN));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let load = Load {
                client: Client::new(client.url(), client.secret()),
                number,
                runs: runs.clone(),
                room: room.clone(),
                ledger: ledger.clone(),
                stop: stop.clone(),
            };
            tokio::spawn(load.submit())
        })
        .collect();

    let mut observer = Observer {
        client: &client,
        room,
        ended: 0,
    };
    let (mut accepted, mut completed, mut at_kills) = (0, 0, 0);
    for kill in 0..kills {
        let seen = observer
            .until(&format!("load before kill {kill}"), |seen| {
                lock(&ledger).accepted.len() >= accepted + SUBMITS
                    && seen.completed.len() >= completed + COMPLETIONS
                    && seen.running.len() >= RUNNING
            })
            .await;
        relay.kill().await;
        accepted = lock(&ledger).accepted.len();
        completed = seen.completed.len();
        at_kills += seen.running.len();
        lock(&ledger).completed.extend(seen.completed);
        lock(&ledger).running.extend(seen.running);
        relay.revive().await;
    }
    stop.cancel();
    for client in clients {
        within("a client to stop", client).await.unwrap();
    }
    observer
        .until("all work to end", |seen| seen.open == 0)
        .await;
    marked_gone(MARK).await;
    for daemon in &mut daemons {
        assert_eq!(daemon.terminate().await.code(), Some(0));
    }
    let ledger = lock(&ledger).clone();
    let parked = check(&client, &ledger, &runs).await;
    println!(
        "{kills} kills of the relay: {} submits acknowledged, {} completions acknowledged before a kill, {at_kills} \
         attempts running at kills ({} different ones), {parked} tasks parked for a person; nothing lost, nothing doubled",
        ledger.accepted.len(),
        ledger.completed.len(),
        ledger.running.len(),
    );
    refuse_a_vacuous_run(&ledger, kills);
}

fn refuse_a_vacuous_run(ledger: &Ledger, kills: usize) {
    let enough = |seen: usize, each: usize| seen >= kills * each * 7 / 8;
    assert!(
        enough(ledger.accepted.len(), SUBMITS),
        "too few submits to mean anything"
    );
    assert!(
        enough(ledger.completed.len(), COMPLETIONS),
        "too few completions"
    );
    assert!(ledger.running.len() >= kills, "too little was running");
}

/// Compares what was told with what is; returns how many tasks wait for a person.
async fn check(client: &Client, ledger: &Ledger, runs: &Path) -> usize {
    let lines = std::fs::read_to_string(runs).expect("children ran");
    let mut ran: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.lines() {
        *ran.entry(line).or_default() += 1;
    }
    let twice: Vec<_> = ran.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "attempts that ran twice: {twice:?}");
    let mut parked = 0;
    let mut went_on = 0;
    for id in &ledger.accepted {
        let task = client.get(id).await;
        let states: Vec<_> = task
            .attempts
            .iter()
            .map(|attempt| attempt.state())
            .collect();
        let results = states
            .iter()
            .filter(|state| **state == AttemptState::Completed)
            .count();
        let started = task
            .attempts
            .iter()
            .filter(|one| ran.contains_key(one.attempt_id.as_str()));
        let started = started.count();
        match task.state() {
            TaskState::Completed => {
                assert_eq!((results, started), (1, 1), "one result, one run: {task:#?}");
            }
            TaskState::NeedsAttention => {
                parked += 1;
                assert_eq!(
                    (results, started),
                    (0, 0),
                    "parked before it ran: {task:#?}"
                );
            }
            other => panic!("an accepted task ended as {other:?}: {task:#?}"),
        }
        for attempt in &task.attempts {
            if ledger.running.contains(&attempt.attempt_id) {
                assert_eq!(
                    attempt.state(),
                    AttemptState::Completed,
                    "it went on: {task:#?}"
                );
                went_on += 1;
            }
        }
        if let Some(attempt) = ledger.completed.get(id) {
            let last = task.attempts.last().expect("a completed task has attempts");
            assert_eq!(
                (task.state(), &last.attempt_id),
                (TaskState::Completed, attempt)
            );
        }
    }
    assert_eq!(
        went_on,
        ledger.running.len(),
        "every attempt that ran at a kill is accounted for"
    );
    parked
}
