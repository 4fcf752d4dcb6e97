//! The two limits of a shim: started in under 5 ms, and under 3 MiB of its own memory.

use std::time::{Duration, Instant};

use crate::shim_fixture::{ShimFixture, shell};

const STARTS: usize = 100;
const START: Duration = Duration::from_millis(5);
const OWN_KIB: u64 = 3 * 1024;

/// Additional time for busy machines.
fn slack() -> Duration {
    let widened = std::env::var("BATON_TIMING_SLACK_MS").ok();
    let ms = widened.map_or(0, |ms| {
        ms.parse().expect("BATON_TIMING_SLACK_MS is a number")
    });
    Duration::from_millis(ms)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a measurement from outside the program"
)]
fn start_time() -> Duration {
    let start = Instant::now();
    let _shim = ShimFixture::start();
    start.elapsed()
}

/// Other load can only delay a start, so the quickest of many shows what the shim itself needs.
#[test]
fn a_shim_answers_within_five_milliseconds() {
    let quickest = (0..STARTS).map(|_| start_time()).min().expect("starts");
    println!("from the start to its presence: {quickest:?}");
    assert!(quickest < START + slack(), "{quickest:?}");
}

#[test]
fn a_shim_needs_less_than_three_mebibytes() {
    let mut shim = ShimFixture::start();
    shim.launch(shell("seq 200000; echo up >&2; read line"));
    while !shim.whole_text().ends_with("up\n") {
        shim.wire.grown();
    }
    let own = own_kib(shim.pid());
    println!("memory of its own: {own} KiB");
    assert!(own < OWN_KIB, "{own} KiB");
}

/// Pages that are neither shared with another process nor backed by a file.
fn own_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the shim is there");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let text = line.and_then(|line| line.trim().strip_suffix(" kB"));
    text.and_then(|text| text.trim().parse().ok())
        .expect("RssAnon in kB")
}
