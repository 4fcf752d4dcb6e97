//! A disk whose sync fails: the relay acknowledges nothing from then on and exits, and a start
//! on a working disk finds all acknowledged data.

use baton_history::CallOutcome;

use crate::chaos_run::ChaosRun;
use crate::traced_relay::{
    RelayStart, cancel_open_and_record, single_call_client, start_traced_relay,
    start_untraced_relay,
};
use crate::{configured_amount, host_support};

/// Number of requests after which the relay must have hit the error; background work syncs too.
const REQUESTS_MAX: u64 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_disk_cannot_sync_acknowledges_nothing_and_ends() {
    if !host_support::can_trace() {
        return;
    }
    let rounds = configured_amount("BATON_CHAOS_SYNC_ERRORS", 3);
    let mut acknowledged = 0;
    for round in 1..=rounds {
        acknowledged += run_with_failing_sync(round).await;
    }
    println!(
        "{rounds} disks that failed a sync: {acknowledged} acknowledged before, none after, all of them found"
    );
}

/// The sync with this number and all later ones fail. Returns the number of acknowledgements
/// before.
async fn run_with_failing_sync(number: u64) -> u64 {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::create_dir(dir.path().join("data")).expect("a directory can be created");
    let tracer_action = ["eio", &number.to_string()];
    let RelayStart::Listening(mut relay) = start_traced_relay(dir, "", &tracer_action, true).await
    else {
        panic!("the relay must not end before the tracer is armed");
    };
    let token = std::fs::read_to_string(relay.dir.path().join("data/admin.token"));
    let token = token
        .expect("the first start creates a token")
        .trim()
        .to_owned();
    let run = ChaosRun::new(&format!("eio-{number}"));
    let asker = single_call_client(&run, &relay.client.with_token(&token));
    relay.arm_tracer().await;
    let mut acknowledged = 0;
    for turn in 0..REQUESTS_MAX {
        let (outcome, _) = asker.submit_once("nobody", &format!("key {turn}")).await;
        if outcome != CallOutcome::Ok {
            break;
        }
        acknowledged += 1;
    }
    // Each acknowledgement needs its own sync: the calls are sequential, so they cannot share
    // one.
    assert!(
        acknowledged < number,
        "{acknowledged} acknowledgements with {} good syncs",
        number - 1
    );
    let dir = relay.wait_for_exit().await;
    let relay = start_untraced_relay(dir, &token).await;
    cancel_open_and_record(&run, &relay.client).await;
    relay.kill().await;
    let verdict = run.finish_quietly();
    assert_eq!(verdict.count("submits acknowledged"), acknowledged);
    acknowledged
}
