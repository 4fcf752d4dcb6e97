//! kill -9: a child process writes under load and is killed, during its work or while it opens.
//! Afterwards everything it reported as durable must exist, as a prefix of what it wrote.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use super::*;

const DIR: &str = "BATON_TEST_STORE_CRASH_DIR";
const SLOW_MACHINE: Duration = Duration::from_secs(60);

/// The child: does nothing unless the parent test below started it.
#[test]
fn killed_writer_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    print_line("opening 0");
    let mut config = StoreConfig::new(dir, Uuid::now_v7());
    // Small, so that applying and truncating are always in progress.
    (config.apply_bytes, config.apply_after) = (40_000, Duration::from_millis(5));
    let mut opened = Store::open(config).unwrap();
    let start = next_number(&opened.store);
    for number in start.. {
        let pair = vec![
            put(2 * number, &patterned_bytes(900, 8)),
            put(2 * number + 1, &patterned_bytes(6_000, 8)),
        ];
        let seq = opened.journal.append(pair).unwrap();
        if number % 16 == 0 {
            wait(&opened.store, seq).unwrap();
            print_line(&format!("durable {number}"));
        }
    }
}

fn print_line(line: &str) {
    let mut out = io::stdout();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// The first number without a record.
fn next_number(store: &Store) -> u128 {
    (0..)
        .find(|number| body(store, 2 * number).is_none())
        .unwrap()
}

struct WriterProcess {
    child: Child,
    lines: mpsc::Receiver<(String, u128)>,
}

impl WriterProcess {
    fn start(dir: &std::path::Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::crash::killed_writer_process",
                "--nocapture",
            ])
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        // Bounded by what the child prints in a test; the reader ends with the child.
        let (sender, lines) = mpsc::sync_channel(1 << 16);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let words = line.split_once(' ');
                let parsed = words.and_then(|(word, number)| Some((word, number.parse().ok()?)));
                if let Some((word, number)) = parsed
                    && sender.send((word.to_owned(), number)).is_err()
                {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Kills the child once it has printed `word` for the `times`th time; returns the last
    /// durable number.
    fn kill_after_lines(mut self, word: &str, times: usize) -> Option<u128> {
        let (mut durable, mut seen) = (None, 0);
        while seen < times {
            let (printed, number) = self
                .lines
                .recv_timeout(SLOW_MACHINE)
                .expect("the child prints progress");
            seen += usize::from(printed == word);
            durable = if printed == "durable" {
                Some(number)
            } else {
                durable
            };
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let rest = self
            .lines
            .iter()
            .filter(|(printed, _)| printed == "durable")
            .map(|(_, number)| number);
        rest.last().or(durable)
    }
}

#[test]
fn everything_durable_survives_kill_nine_as_a_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    let mut durable = None;
    for (word, times) in [
        ("durable", 3),
        ("opening", 1),
        ("durable", 12),
        ("opening", 1),
        ("opening", 1),
        ("durable", 25),
    ] {
        durable = durable.max(WriterProcess::start(&dir).kill_after_lines(word, times));
        let opened = Store::open(StoreConfig::new(&dir, Uuid::now_v7())).unwrap();
        let next = next_number(&opened.store);
        assert!(
            durable.is_none_or(|durable| next > durable),
            "{next} must be above {durable:?}"
        );
        for number in 0..next {
            let pair = (
                body(&opened.store, 2 * number),
                body(&opened.store, 2 * number + 1),
            );
            assert_eq!(
                pair,
                (
                    Some(patterned_bytes(900, 8)),
                    Some(patterned_bytes(6_000, 8))
                ),
                "pair {number}"
            );
        }
        let beyond =
            (2 * next + 1..2 * next + 600).filter(|number| body(&opened.store, *number).is_some());
        assert_eq!(beyond.count(), 0, "nothing after the prefix");
        let verified = opened.store.verify().unwrap();
        assert_eq!((verified.unreadable, verified.too_long), (0, 0));
        assert_eq!(opened.recovery.blob_files, 0);
    }
    assert!(
        durable.is_some_and(|durable| durable >= 16 * 24),
        "the runs must write enough"
    );
}
