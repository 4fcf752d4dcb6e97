//! Simulates power loss: the relay's data is on a file system in an image. At an
//! acknowledgement the relay is killed and the image is copied, which contains only the data
//! that had reached the block layer. A relay on the copy must have all acknowledged data. The
//! same run without syncs must lose data, otherwise the test would prove nothing.

use std::path::Path;
use std::process::Command;

use baton_history::{CallOutcome, Observation};
use baton_proto::v1::Role;
use baton_tests::{MountedDisk, RelayProcess, ScriptedDaemon, TestClient, hello};
use tempfile::TempDir;

use crate::chaos_run::{ChaosRun, now_ms};
use crate::traced_relay::{arm_tracer_process, cancel_open_and_record, single_call_client};
use crate::{BATON, TRACER, configured_amount, host_support};

const AGENT: &str = "scripted";

/// Whether the relay's syncs take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncMode {
    Made,
    /// Disabled after the relay has been set up.
    LeftOut,
}

fn run_command(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("the program exists");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// Work that was acknowledged before the power cut.
struct PowerCut {
    dir: TempDir,
    token: String,
    run: ChaosRun,
    acknowledged: u64,
}

async fn work_until_cut(name: &str, syncs: SyncMode) -> PowerCut {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (image, data) = (dir.path().join("image"), dir.path().join("live/data"));
    run_command("truncate", &["-s", "256M", path_text(&image)]);
    run_command("mkfs.ext4", &["-q", path_text(&image)]);
    let disk = MountedDisk::mount_image(&dir.path().join("live"), &image).await;
    let disk = disk.expect("the host support check succeeded");
    let seen = disk.path_from_host().join("data");
    std::fs::create_dir(&seen).expect("a directory can be created");
    let mut wrapper = disk.command_prefix();
    if syncs == SyncMode::LeftOut {
        std::fs::write(disk.path_from_host().join("wait"), "").expect("a file can be written");
        wrapper.extend([TRACER, path_text(&data), "unsynced"].map(str::to_owned));
    }
    let mut relay = RelayProcess::start_with_prefix(BATON, &wrapper, (&data, &seen), &[]).await;
    let link = relay.admin().client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    if syncs == SyncMode::LeftOut {
        arm_tracer_process(relay.pid(), &disk.path_from_host().join("data.armed")).await;
    }
    let run = ChaosRun::new(name);
    let acknowledged = submit_and_complete(&run, relay.admin(), &mut daemon).await;
    relay.kill().await;
    let copy = dir.path().join("copy.image");
    run_command(
        "cp",
        &["--sparse=always", path_text(&image), path_text(&copy)],
    );
    PowerCut {
        token: relay.admin().token_secret().to_owned(),
        dir,
        run,
        acknowledged,
    }
}

/// Submits, cancels and results, in turn; the last call is acknowledged.
async fn submit_and_complete(
    run: &ChaosRun,
    admin: &TestClient,
    daemon: &mut ScriptedDaemon,
) -> u64 {
    let client = single_call_client(run, admin);
    let view = run
        .recorder
        .participant_log("daemon")
        .expect("a file can be created");
    let record = |observation| {
        view.record(now_ms(), observation)
            .expect("the history can be written")
    };
    let mut acknowledged = 0;
    // sled's file grows by half a mebibyte at a time: without a sync, data after the last
    // growth is lost.
    for turn in 0..rand::random_range(60..120) {
        let agent = if turn % 3 == 0 { AGENT } else { "nobody" };
        let (outcome, task) = client.submit_once(agent, &format!("key {turn}")).await;
        assert_eq!(outcome, CallOutcome::Ok, "the relay works");
        let task = task.expect("an accepted task has an id");
        acknowledged += 1;
        if turn % 3 == 0 {
            let mut attempt = daemon.start_next_attempt().await;
            let id = attempt.id().to_owned();
            let (tenant, attempt_id) = ("*".to_owned(), id.clone());
            record(Observation::Offered {
                tenant,
                task: task.clone(),
                attempt: attempt_id,
            });
            attempt.complete("").await;
            record(Observation::Sent {
                task,
                attempt: id.clone(),
                seq: 1,
                word: "complete".to_owned(),
            });
            daemon.wait_until_acked(&attempt).await;
            daemon.stop_renewing(&attempt);
            record(Observation::Acked {
                attempt: id,
                seq: 1,
            });
            acknowledged += 1;
        } else if turn % 4 == 0 {
            assert_eq!(client.cancel_once(&task).await, CallOutcome::Ok);
            acknowledged += 1;
        }
    }
    acknowledged
}

/// Starts a relay on the copied image. The error explains why it does not start.
async fn check_copied_disk(cut: &PowerCut) -> Result<(), String> {
    let copy = cut.dir.path().join("copy.image");
    let disk = MountedDisk::mount_image(&cut.dir.path().join("copied"), &copy).await?;
    let (data, seen) = (
        disk.mount_point().join("data"),
        disk.path_from_host().join("data"),
    );
    let wrapper = disk.command_prefix();
    let verified = BATON
        .command_with_prefix(&data, &as_str_slice(&wrapper))
        .args(["verify", "--data"])
        .arg(&data)
        .output();
    let verified = verified.await.map_err(|error| error.to_string())?;
    if !verified.status.success() {
        let output = [verified.stdout, verified.stderr].concat();
        return Err(String::from_utf8_lossy(&output).into_owned());
    }
    let relay = RelayProcess::start_with_prefix(BATON, &wrapper, (&data, &seen), &[]).await;
    cancel_open_and_record(&cut.run, &relay.admin().with_token(&cut.token)).await;
    let blobs = std::fs::read_dir(seen.join("store/sled/blobs"));
    let blobs = blobs.map_or(0, Iterator::count);
    assert_eq!(blobs, 0, "sled never syncs these");
    Ok(())
}

fn as_str_slice(wrapper: &[String]) -> Vec<&str> {
    wrapper.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_by_a_power_cut() {
    if !host_support::can_mount_images() {
        return;
    }
    let cuts = configured_amount("BATON_CHAOS_POWER_CUTS", 2);
    let mut acknowledged = 0;
    for number in 0..cuts {
        let cut = work_until_cut(&format!("power-{number}"), SyncMode::Made).await;
        acknowledged += cut.acknowledged;
        let started = check_copied_disk(&cut).await;
        assert_eq!(started, Ok(()), "a relay starts after a power cut");
        cut.run.finish_quietly();
    }
    println!("{cuts} power cuts: {acknowledged} acknowledged, 0 lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_does_not_sync_loses_what_it_acknowledged() {
    if !host_support::can_mount_images() || !host_support::can_trace() {
        return;
    }
    let cuts = configured_amount("BATON_CHAOS_POWER_CUTS", 1);
    let (mut acknowledged, mut lost, mut detected) = (0, 0, 0);
    for number in 0..cuts {
        let cut = work_until_cut(&format!("unsynced-{number}"), SyncMode::LeftOut).await;
        acknowledged += cut.acknowledged;
        match check_copied_disk(&cut).await {
            Ok(()) => {
                let verdict = cut.run.check_history();
                let missing = verdict.violations.iter().filter(|one| one.rule == "S4");
                lost += missing.count();
            }
            // The relay's watermark reached the disk without the data before it, or the store
            // is unreadable.
            Err(why) => {
                println!("the start on the copy failed: {why}");
                assert!(
                    !why.trim().is_empty(),
                    "the failed start has an error message"
                );
                detected += 1;
            }
        }
        cut.run.discard_history();
    }
    println!(
        "{cuts} power cuts without syncs: {acknowledged} acknowledged; {detected} times the relay says that acknowledged \
         changes are missing, else {lost} are"
    );
    assert!(lost + detected > 0, "without syncs some data must be lost");
}
