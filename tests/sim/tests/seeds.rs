//! Many seeds, all promises; and checks that the run was not vacuous and can be repeated.

use baton_history::check_history;
use baton_sim::{Counts, record_history, run_seed, trace_seed};

const SEEDS: u64 = 2_000;

/// With fewer of any of these, the run proves nothing about it.
fn minimum_counts(counts: &Counts) -> [(&'static str, u64, u64); 41] {
    [
        ("submits", counts.submits, 10_000),
        ("resubmits", counts.resubmits, 2_000),
        ("processes", counts.processes, 10_000),
        ("completions", counts.completions, 8_000),
        ("losses", counts.losses, 2_000),
        ("expiries", counts.expiries, 1_000),
        ("deadlines", counts.deadlines, 500),
        ("late terminals", counts.late_terminals, 300),
        ("adopted late", counts.adopted_late, 50),
        ("late arrivals", counts.late_arrivals, 2_000),
        ("retries", counts.retries, 2_000),
        ("cancels", counts.cancels, 1_000),
        ("restarts", counts.restarts, 1_000),
        ("fences", counts.fences, 1_000),
        ("reboots", counts.reboots, 1_000),
        ("holds granted", counts.holds_granted, 100),
        ("stalls of the relay", counts.stalls, 1_000),
        ("stall credits", counts.credits, 500),
        ("stopped daemons", counts.daemon_stalls, 300),
        ("killed shims", counts.shim_kills, 80),
        ("shims without an answer", counts.unreachable, 40),
        (
            "attempts kept without renewal",
            counts.settled_unrenewed,
            30,
        ),
        ("attempts killed by Welcome", counts.settled_kill, 300),
        ("old frames repeated", counts.ghosts, 500),
        ("commits failed by the disk", counts.disk_errors, 100),
        ("streams cut in one direction", counts.one_way_cuts, 300),
        ("keys used for another body", counts.conflicts, 500),
        ("strangers", counts.probes, 500),
        ("imports", counts.imports, 150),
        ("releases by operators", counts.releases, 20),
        ("refused answers", counts.refused_answers, 200),
        ("removals", counts.removals, 500),
        ("machines suspended", counts.suspends, 150),
        ("leases expired during a suspend", counts.muted, 5),
        ("processes that ignored TERM", counts.kills, 1_000),
        ("dials", counts.dials, 20_000),
        ("outboxes rewritten", counts.images, 1_000),
        ("bytes of output", counts.output_bytes, 2_000_000),
        ("cuts of output", counts.output_cuts, 8),
        (
            "attempts and tasks that operators ended",
            counts.forced,
            1_000,
        ),
        ("pauses of tenants and everything", counts.pauses, 500),
    ]
}

/// The same for agents that have leases themselves, and for progress and hand-offs.
fn minimum_goal_counts(counts: &Counts) -> [(&'static str, u64, u64); 17] {
    [
        ("leases granted to agents", counts.grants, 3_000),
        ("renewals of agents", counts.agent_renewals, 3_000),
        ("calls rejected", counts.refused_calls, 1_500),
        ("calls repeated", counts.repeated_calls, 5_000),
        (
            "answers lost on the way to agents",
            counts.lost_answers,
            1_500,
        ),
        ("agents suspended", counts.agents_asleep, 800),
        ("agents that died", counts.agents_dead, 800),
        ("ends reported by agents", counts.agent_ends, 2_500),
        ("pick-ups", counts.pick_ups, 500),
        ("resumes", counts.resumes, 1_000),
        ("hand-offs lost to another caller", counts.losers, 800),
        ("blocks by people", counts.blocks, 600),
        ("parked attempts", counts.parks, 1_500),
        ("progress acknowledged", counts.progress, 1_200),
        ("checkpoints", counts.checkpoints, 2_500),
        ("lists of parked tasks", counts.listings, 400),
        ("progress truncated", counts.truncated, 30),
    ]
}

#[test]
fn every_promise_holds_under_every_seed() {
    let mut total = Counts::default();
    let failure = (0..SEEDS).find_map(|seed| match run_seed(seed) {
        Ok(counts) => {
            total += &counts;
            None
        }
        Err(failure) => Some(failure),
    });
    if let Some(failure) = failure {
        panic!("{failure}");
    }
    println!("{SEEDS} seeds, {} steps", total.steps);
    for (what, seen, wanted) in minimum_counts(&total)
        .into_iter()
        .chain(minimum_goal_counts(&total))
    {
        assert!(
            seen >= wanted,
            "only {seen} {what}: too few for a meaningful run"
        );
    }
}

/// Cargo unifies features: if any package of the workspace enabled mutants, every test binary
/// would have them.
#[test]
fn no_test_build_contains_mutants() {
    assert!(!baton_core::mutants::are_compiled_in());
    assert!(!baton_daemon_core::mutants::are_built_in());
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 14, 159] {
        let first = trace_seed(seed);
        assert!(first.len() > 100, "seed {seed} did nothing");
        assert_eq!(first, trace_seed(seed));
    }
}

/// The history checker for real processes checks these histories as well.
#[test]
fn the_history_checker_finds_no_violation() {
    let goals = [
        "blocks acknowledged",
        "resumes acknowledged",
        "pick-ups acknowledged",
        "hand-offs rejected",
        "progress acknowledged",
        "checkpoints acknowledged",
        "leases granted to agents",
    ];
    let mut seen = [0; 7];
    let (mut judged, mut acks, mut lines) = (0, 0, 0);
    for history in (0..100).filter_map(record_history) {
        let verdict = check_history(&history);
        assert!(verdict.is_clean(), "{verdict}");
        judged += 1;
        lines += history.line_count();
        acks += verdict.count("submits acknowledged") + verdict.count("cancels acknowledged");
        for (sum, name) in seen.iter_mut().zip(goals) {
            *sum += verdict.count(name);
        }
    }
    println!("{judged} histories of {lines} lines, {acks} acknowledgements");
    assert!(judged > 50 && acks > 500, "too few for a meaningful check");
    for (sum, name) in seen.into_iter().zip(goals) {
        assert!(
            sum > 15,
            "only {sum} {name}: too few for a meaningful check"
        );
    }
}
