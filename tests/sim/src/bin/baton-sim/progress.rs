//! How far a run is and how fast it goes: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

const WIDTH: usize = 30;

pub(crate) struct Progress {
    began: Instant,
    shown: Instant,
    every: Duration,
    is_bar: bool,
    done: u64,
    of: u64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the rate is of real time; the simulation has none"
)]
fn now() -> Instant {
    Instant::now()
}

impl Progress {
    pub(crate) fn new(of: u64) -> Self {
        let (now, is_bar) = (now(), stderr().is_terminal());
        Self {
            began: now,
            shown: now,
            every: Duration::from_millis(if is_bar { 200 } else { 10_000 }),
            is_bar,
            done: 0,
            of,
        }
    }

    pub(crate) fn advance(&mut self, steps: u64, failed: u64) {
        self.done += 1;
        let now = now();
        if now - self.shown < self.every {
            return;
        }
        self.shown = now;
        let (done, of, rate) = (self.done, self.of, self.rate(steps));
        let told = format!("{done} of {of} seeds, {rate} steps/s, {failed} failed");
        if self.is_bar {
            let full = usize::try_from(done * WIDTH as u64 / of.max(1)).unwrap_or(WIDTH);
            let (full, empty) = ("#".repeat(full), "-".repeat(WIDTH.saturating_sub(full)));
            eprint!("\r[{full}{empty}] {told}\x1b[K");
        } else {
            eprintln!("{told}");
        }
    }

    /// Something else is going to be printed: the bar makes room.
    pub(crate) fn interrupt(&self) {
        if self.is_bar {
            eprint!("\r\x1b[K");
        }
    }

    pub(crate) fn summary(&self, steps: u64) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = self.rate(steps);
        format!("{} seeds in {seconds:.1} s, {rate} steps/s", self.done)
    }

    fn rate(&self, steps: u64) -> u128 {
        u128::from(steps) * 1_000 / self.began.elapsed().as_millis().max(1)
    }
}
