//! Attempts with real children: whatever a child does, the attempt ends in time, with all of its
//! output and with no process left.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::*;
use crate::outbox::OutputKind;
use crate::process::{adopt_orphans, reap_orphans};

/// Nothing in here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a stop may take beyond cleanup_term.
const MARGIN: Duration = Duration::from_secs(1);

struct Bench {
    spawner: Spawner,
    clock: Clock,
}

struct Live {
    id: String,
    stop: watch::Sender<Option<Stop>>,
    hold_back: watch::Sender<bool>,
    events: mpsc::Receiver<(String, AttemptEvent)>,
    seen: Seen,
    clock: Clock,
}

#[derive(Default)]
struct Seen {
    phases: Vec<OncePhase>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    largest_chunk: usize,
    ending: Option<Ending>,
}

impl Bench {
    fn new() -> Self {
        adopt_orphans().unwrap();
        Self {
            spawner: Spawner::start().unwrap(),
            clock: Clock::boot(),
        }
    }

    fn start(&self, script: &str) -> Live {
        self.start_with(script, "", Deadlines::default(), Duration::from_millis(300))
    }

    fn start_with(&self, script: &str, prompt: &str, deadlines: Deadlines, term: Duration) -> Live {
        let id = uuid::Uuid::now_v7().to_string();
        let environment = BTreeMap::from([
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
            (ATTEMPT_MARKER.into(), id.clone().into()),
        ]);
        let child = ChildSpec {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            cwd: "/".into(),
            environment,
        };
        let plan = AttemptPlan {
            attempt_id: id.clone(),
            child,
            prompt: Bytes::copy_from_slice(prompt.as_bytes()),
            deadlines,
            cleanup_term: term,
        };
        let (stop, stop_rx) = watch::channel(None);
        let (hold_back, hold_rx) = watch::channel(false);
        let (events_tx, events) = mpsc::channel(16);
        let lines = Lines {
            stop: stop_rx,
            hold_back: hold_rx,
            events: events_tx,
        };
        tokio::spawn(run(plan, lines, self.spawner.clone(), self.clock.clone()));
        Live {
            id,
            stop,
            hold_back,
            events,
            seen: Seen::default(),
            clock: self.clock.clone(),
        }
    }
}

impl Live {
    /// Reads events until `enough`, under one generous deadline.
    async fn until(&mut self, enough: impl Fn(&Seen) -> bool) {
        let reading = async {
            while !enough(&self.seen) {
                let (_, event) = self.events.recv().await.expect("attempt ended too early");
                self.seen.take(event);
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("the attempt hangs");
    }

    async fn end(&mut self) -> Ending {
        self.until(|seen| seen.ending.is_some()).await;
        self.seen.ending.take().unwrap()
    }

    /// Orders the stop and returns how long it took until everything was gone.
    async fn stop_and_end(&mut self, term: Duration) -> (Duration, Ending) {
        let from = self.clock.now();
        self.stop.send_replace(Some(Stop {
            kill_at: from.after(term),
        }));
        let ending = self.end().await;
        (from.until(self.clock.now()), ending)
    }

    /// Processes that carry the attempt's marker, dead ones of ours included.
    fn left(&self) -> usize {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        pids.filter(|entry| {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&self.id)
        })
        .count()
    }
}

impl Seen {
    fn take(&mut self, event: AttemptEvent) {
        match event {
            AttemptEvent::Entered { phase, .. } => self.phases.push(phase),
            AttemptEvent::Output(Chunk { kind, bytes }) => {
                self.largest_chunk = self.largest_chunk.max(bytes.len());
                match kind {
                    OutputKind::Stdout => self.stdout.extend_from_slice(&bytes),
                    OutputKind::Stderr => self.stderr.extend_from_slice(&bytes),
                }
            }
            AttemptEvent::Ended(ending) => self.ending = Some(ending),
        }
    }
}

fn ready(seen: &Seen) -> bool {
    seen.stdout.ends_with(b"ready\n")
}

#[tokio::test]
async fn a_command_gets_its_prompt_and_reports_every_phase_once_in_order() {
    let bench = Bench::new();
    let mut live = bench.start_with(
        "cat; echo oops >&2; exit 3",
        "the prompt",
        Deadlines::default(),
        MARGIN,
    );
    let ending = live.end().await;
    assert!(
        matches!(ending.cause, Cause::Exited(Exit::Code(3))),
        "{ending:?}"
    );
    assert_eq!(live.seen.stdout, b"the prompt");
    assert_eq!(
        (live.seen.stderr.as_slice(), ending.stderr_tail.as_str()),
        (&b"oops\n"[..], "oops\n")
    );
    let wanted = [
        OncePhase::Started,
        OncePhase::AgentStarted,
        OncePhase::PromptWritten,
        OncePhase::FirstEventSeen,
        OncePhase::FirstVisibleEventSeen,
    ];
    assert_eq!(live.seen.phases[..5], wanted);
    assert_eq!(
        live.seen.phases[live.seen.phases.len() - 2..],
        [OncePhase::CleanupStarted, OncePhase::CleanupFinished]
    );
    assert_eq!(
        ending.cleared,
        Cleared {
            empty: true,
            ..Cleared::default()
        }
    );
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let bench = Bench::new();
    let mut plan_less = bench.start("true");
    assert!(matches!(
        plan_less.end().await.cause,
        Cause::Exited(Exit::Code(0))
    ));
    let missing = ChildSpec {
        program: "/no/such/program".into(),
        args: vec![],
        cwd: "/".into(),
        environment: BTreeMap::new(),
    };
    let error = bench.spawner.spawn(missing.clone()).await.unwrap_err();
    assert_eq!(error.failure_code(), "spawn_failed");
    let lost = ChildSpec {
        cwd: "/no/such/place".into(),
        ..missing
    };
    let error = bench.spawner.spawn(lost).await.unwrap_err();
    assert_eq!(error.failure_code(), "bad_cwd");
    assert!(error.to_string().contains("/no/such/place"), "{error}");
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed_after_the_grace() {
    let bench = Bench::new();
    let mut live = bench.start("trap '' TERM; echo ready; while :; do sleep 1; done");
    live.until(ready).await;
    let term = Duration::from_millis(300);
    let (took, ending) = live.stop_and_end(term).await;
    assert!(took >= term && took < term + MARGIN, "{took:?}");
    assert!(matches!(ending.cause, Cause::Stopped));
    assert_eq!(ending.exit, Some(Exit::Signal(9)));
    assert!(ending.cleared.empty && ending.cleared.killed);
    assert_eq!(live.left(), 0);
}

#[tokio::test]
async fn a_child_that_obeys_term_is_gone_at_once() {
    let bench = Bench::new();
    let mut live = bench.start("echo ready; exec sleep 600");
    live.until(ready).await;
    let (took, ending) = live.stop_and_end(Duration::from_secs(10)).await;
    assert!(took < MARGIN, "{took:?}");
    assert_eq!(ending.exit, Some(Exit::Signal(15)));
    assert!(ending.cleared.empty && ending.cleared.terminated && !ending.cleared.killed);
}

#[tokio::test]
async fn grandchildren_that_left_the_group_are_swept_too() {
    let bench = Bench::new();
    // One leaves by setsid and a double fork, and ignores TERM; one holds stdout open.
    let mut live = bench.start(
        "(setsid sh -c \"trap '' TERM; echo hidden >&2; while :; do sleep 1; done\" &) ; \
         sleep 600 & echo ready; wait",
    );
    live.until(|seen| ready(seen) && !seen.stderr.is_empty())
        .await;
    assert!(live.left() >= 3);
    let term = Duration::from_millis(300);
    let (took, ending) = live.stop_and_end(term).await;
    assert!(took < term + MARGIN, "{took:?}");
    assert!(
        ending.cleared.empty && ending.cleared.swept >= 1,
        "{ending:?}"
    );
    assert_eq!(live.left(), 0);
}

#[tokio::test]
async fn leftovers_of_a_finished_child_do_not_outlive_it() {
    let bench = Bench::new();
    let mut live = bench.start("(setsid sleep 600 &); sleep 600 & echo hi");
    let from = live.clock.now();
    let ending = live.end().await;
    assert!(matches!(ending.cause, Cause::Exited(Exit::Code(0))));
    assert_eq!(live.seen.stdout, b"hi\n");
    assert!(ending.cleared.empty && ending.cleared.terminated);
    assert!(from.until(live.clock.now()) < Duration::from_secs(2) + MARGIN);
    assert_eq!(live.left(), 0);
}

#[tokio::test]
async fn a_megabyte_of_prompt_that_nobody_reads_harms_nothing() {
    let bench = Bench::new();
    let prompt = "p".repeat(1 << 20);
    let term = Duration::from_millis(300);
    let mut idle = bench.start_with("echo ready; sleep 600", &prompt, Deadlines::default(), term);
    idle.until(ready).await;
    assert!(!idle.seen.phases.contains(&OncePhase::PromptWritten));
    let (took, _) = idle.stop_and_end(term).await;
    assert!(took < term + MARGIN, "{took:?}");
    let mut quick = bench.start_with("exit 0", &prompt, Deadlines::default(), term);
    assert!(matches!(
        quick.end().await.cause,
        Cause::Exited(Exit::Code(0))
    ));
    let deadlines = Deadlines {
        prompt_write: Some(term),
        ..Deadlines::default()
    };
    let mut late = bench.start_with("sleep 600", &prompt, deadlines, term);
    let ending = late.end().await;
    assert!(matches!(
        ending.cause,
        Cause::Deadline(DeadlineKind::PromptWrite)
    ));
    assert_eq!(idle.left() + quick.left() + late.left(), 0);
}

#[tokio::test]
async fn ten_megabytes_in_one_line_arrive_whole_in_chunks_of_at_most_64_kib() {
    let bench = Bench::new();
    let mut live = bench.start("head -c 10000000 /dev/zero | tr '\\0' x; printf '\\377\\000'");
    let ending = live.end().await;
    assert!(
        matches!(ending.cause, Cause::Exited(Exit::Code(0))),
        "{ending:?}"
    );
    assert_eq!(live.seen.stdout.len(), 10_000_002);
    assert!(
        live.seen.stdout[..10_000_000]
            .iter()
            .all(|byte| *byte == b'x')
    );
    assert_eq!(live.seen.stdout[10_000_000..], [0xff, 0]);
    assert!(live.seen.largest_chunk <= 64 * 1024);
}

#[tokio::test]
async fn a_held_back_child_waits_and_its_silence_is_no_deadline() {
    let bench = Bench::new();
    let limit = Some(Duration::from_millis(150));
    let deadlines = Deadlines {
        stream_idle: limit,
        ..Deadlines::default()
    };
    let mut live = bench.start_with(
        "echo ready; head -c 300000 /dev/zero",
        "",
        deadlines,
        Duration::from_millis(300),
    );
    live.hold_back.send_replace(true);
    // A second attempt that lives longer than the idle limit is the clock of this test.
    let mut other = bench.start("sleep 0.4");
    other.end().await;
    live.hold_back.send_replace(false);
    let ending = live.end().await;
    assert!(
        matches!(ending.cause, Cause::Exited(Exit::Code(0))),
        "{ending:?}"
    );
    assert_eq!(live.seen.stdout.len(), 300_006);
}

#[tokio::test]
async fn silence_after_output_ends_at_its_limit_with_its_own_cause() {
    let bench = Bench::new();
    let limit = Duration::from_millis(200);
    let deadlines = Deadlines {
        stream_idle: Some(limit),
        ..Deadlines::default()
    };
    let mut live = bench.start_with("echo ready; sleep 600", "", deadlines, limit);
    live.until(ready).await;
    let ending = live.end().await;
    assert!(matches!(
        ending.cause,
        Cause::Deadline(DeadlineKind::StreamIdle)
    ));
    assert_eq!(live.left(), 0);
}

#[tokio::test]
async fn fifty_runs_leave_neither_process_nor_zombie() {
    let bench = Bench::new();
    for _ in 0..10 {
        let mut batch: Vec<Live> = (0..5)
            .map(|_| bench.start("(setsid true &); true & echo x"))
            .collect();
        for live in &mut batch {
            assert!(live.end().await.cleared.empty);
        }
    }
    // Orphans that died unnoticed are the periodic reaper's; it may have to wait for their death.
    let own = std::process::id().to_string();
    let clean = async {
        loop {
            tokio::task::spawn_blocking(reap_orphans).await.unwrap();
            if zombies_of(&own) == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, clean)
        .await
        .expect("zombies stay");
}

fn zombies_of(parent: &str) -> usize {
    let stats = fs::read_dir("/proc").unwrap().flatten();
    stats
        .filter(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let fields: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            fields.first() == Some(&"Z") && fields.get(1) == Some(&parent)
        })
        .count()
}
