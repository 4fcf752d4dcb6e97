//! Many seeds, all promises; and the proof that the run was not vacuous and can be repeated.

use baton_sim::{Counts, run, trace};

const SEEDS: u64 = 600;

#[test]
fn every_promise_holds_under_every_seed() {
    let mut total = Counts::default();
    for seed in 0..SEEDS {
        match run(seed) {
            Ok(counts) => total += &counts,
            Err(failure) => panic!("{failure}"),
        }
    }
    for (name, count) in total.each() {
        println!("{name:>16} {count}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 14, 159] {
        assert_eq!(trace(seed), trace(seed));
    }
}
