//! Progress and speed of a run: a bar on a terminal, otherwise a line from time to time.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

const BAR_WIDTH: usize = 30;

pub(crate) struct SeedProgress {
    started_at: Instant,
    last_shown_at: Instant,
    show_interval: Duration,
    is_bar: bool,
    seeds_done: u64,
    seeds_total: u64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the rate is of real time; the simulation has none"
)]
fn now() -> Instant {
    Instant::now()
}

impl SeedProgress {
    pub(crate) fn new(seeds_total: u64) -> Self {
        let (now, is_bar) = (now(), stderr().is_terminal());
        Self {
            started_at: now,
            last_shown_at: now,
            show_interval: Duration::from_millis(if is_bar { 200 } else { 10_000 }),
            is_bar,
            seeds_done: 0,
            seeds_total,
        }
    }

    pub(crate) fn advance(&mut self, steps: u64, failed: u64) {
        self.seeds_done += 1;
        let now = now();
        if now - self.last_shown_at < self.show_interval {
            return;
        }
        self.last_shown_at = now;
        let (done, of, rate) = (
            self.seeds_done,
            self.seeds_total,
            self.steps_per_second(steps),
        );
        let status = format!("{done} of {of} seeds, {rate} steps/s, {failed} failed");
        if self.is_bar {
            let full = usize::try_from(done * BAR_WIDTH as u64 / of.max(1)).unwrap_or(BAR_WIDTH);
            let (full, empty) = ("#".repeat(full), "-".repeat(BAR_WIDTH.saturating_sub(full)));
            eprint!("\r[{full}{empty}] {status}\x1b[K");
        } else {
            eprintln!("{status}");
        }
    }

    /// Clears the bar before other output.
    pub(crate) fn clear_bar(&self) {
        if self.is_bar {
            eprint!("\r\x1b[K");
        }
    }

    pub(crate) fn summary(&self, steps: u64) -> String {
        let seconds = self.started_at.elapsed().as_secs_f64();
        let rate = self.steps_per_second(steps);
        format!(
            "{} seeds in {seconds:.1} s, {rate} steps/s",
            self.seeds_done
        )
    }

    fn steps_per_second(&self, steps: u64) -> u128 {
        u128::from(steps) * 1_000 / self.started_at.elapsed().as_millis().max(1)
    }
}
