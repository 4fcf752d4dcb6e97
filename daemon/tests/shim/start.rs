//! What a child is started with, what it does not inherit, and what happens when it cannot be
//! started.

use std::time::Duration;

use baton_proto::worker::report::How;
use baton_proto::worker::{EndedBy, Launch, from_shim, to_shim};

use crate::shim_fixture::{ATTEMPT, ShimFixture, ShimWire, TOKEN, files, lease, shell};

/// Launches what cannot run and returns the code and the message.
fn refused(launch: Launch) -> (String, String) {
    let mut shim = ShimFixture::start();
    shim.wire.send(to_shim::Message::Launch(launch));
    let report = shim.report();
    assert!(report.empty && report.exited_at_ms == 0 && report.transcript_end == 0);
    assert_eq!(report.attempt_id, ATTEMPT);
    match report.how {
        Some(How::NotStarted(why)) => (why.code, why.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_start_is_reported_with_its_code() {
    let mut launch = shell("");
    launch.program = "/no/such/program".into();
    let (code, message) = refused(launch);
    assert_eq!(code, "provider_missing");
    assert!(message.contains("/no/such/program"), "{message}");
    let mut launch = shell("");
    launch.cwd = "/no/such/directory".into();
    assert_eq!(refused(launch).0, "bad_cwd");
    let mut launch = shell("");
    launch.cwd = "/proc/self/status".into();
    assert_eq!(refused(launch).0, "bad_cwd");
    let mut launch = shell("");
    launch.lease = Some(lease(Duration::ZERO, Duration::from_secs(1)));
    assert_eq!(refused(launch).0, "lease_expired");
    let mut launch = shell("");
    launch.lease = None;
    assert_eq!(refused(launch).0, "spawn_failed");
    let mut launch = shell("");
    launch.args = vec![vec![0].into()];
    assert_eq!(refused(launch).0, "spawn_failed");
}

#[test]
fn a_shim_without_a_launch_starts_nothing_and_reports_it() {
    let mut shim = ShimFixture::start();
    shim.disconnect();
    assert!(shim.wait_for_exit().success());
    let report = shim.report_on_disk().unwrap();
    assert!(matches!(report.how, Some(How::NotStarted(_))) && report.empty);
    assert_eq!(report.ended_by(), EndedBy::Order);
}

#[test]
fn a_child_has_its_environment_its_own_group_and_three_descriptors() {
    let script = "tr '\\0' '\\n' < /proc/$$/environ; echo --; ls /proc/$$/fd; echo --; \
                  cut -d' ' -f5 /proc/$$/stat; cat /proc/$$/oom_score_adj; umask";
    let umask_before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::umask(umask_before);
    // The process that started the daemon may have left a descriptor open.
    let mut shim = ShimFixture::start_through("exec 7</dev/null; exec \"$0\" \"$@\"");
    shim.wire.greet();
    let started = shim.launch(shell(script));
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    let text = shim.whole_text();
    let parts = text.split("--\n").map(|part| part.lines().collect());
    let parts: Vec<Vec<&str>> = parts.collect();
    let mut environment = parts[0].clone();
    environment.sort_unstable();
    let marker = format!("BATON_ATTEMPT_ID={ATTEMPT}");
    let path = "PATH=/usr/local/bin:/usr/bin:/bin";
    assert_eq!(environment, [&marker[..], path]);
    assert_eq!(parts[1], ["0", "1", "2"]);
    let number = |index: usize| parts[2][index].parse::<i32>().unwrap();
    assert_eq!(number(0), started.pid, "it leads its own group");
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let own: i32 = own.trim().parse().unwrap();
    assert!(number(1) > own || own == 1000);
    let umask = u32::from_str_radix(parts[2][2], 8).unwrap();
    assert_eq!(umask, umask_before.as_raw_mode());
}

#[test]
fn a_child_starts_with_no_signal_blocked_ignored_or_caught() {
    // The process that started the daemon may have ignored some, as nohup does.
    let mut shim =
        ShimFixture::start_through("trap '' HUP INT QUIT TERM USR1 CHLD; exec \"$0\" \"$@\"");
    shim.wire.greet();
    let mut launch = shell("");
    launch.program = "/bin/cat".into();
    launch.args = vec!["/proc/self/status".into()];
    shim.launch(launch);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    let text = shim.whole_text();
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let (_, mask) = line.split_once('\t').unwrap();
        // 32 and 33 are reserved by the C library, which does not let them be changed.
        let mask = u64::from_str_radix(mask, 16).unwrap() & !0x1_8000_0000;
        assert_eq!(mask, 0, "{line}");
    }
}

#[test]
fn the_token_is_given_to_the_next_daemon_and_never_stored() {
    let mut shim = ShimFixture::start();
    shim.launch(shell("echo up; cat; read line"));
    let mut second = shim.connect();
    let presence = second.greet();
    assert_eq!(&presence.token.unwrap().value[..], TOKEN);
    assert_eq!(presence.attempt_id, ATTEMPT);
    assert_eq!(presence.shim_pid, shim.pid());
    let child = presence.started.unwrap().pid;
    let has_token = |bytes: &[u8]| bytes.windows(TOKEN.len()).any(|window| window == TOKEN);
    for pid in [shim.pid(), child] {
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!has_token(&bytes), "{file} of {pid}");
        }
    }
    shim.wire = second;
    shim.wire.stdin(1, "", true);
    shim.report();
    let kept = files(&shim.path(""));
    assert!(kept.len() >= 2, "{kept:?}");
    for file in kept {
        assert!(
            !has_token(&std::fs::read(&file).unwrap()),
            "{}",
            file.display()
        );
    }
}

#[test]
fn a_received_lease_is_confirmed() {
    let mut shim = ShimFixture::start();
    let kept = |wire: &mut ShimWire| {
        wire.receive_until(|message| match message {
            from_shim::Message::LeaseKept(kept) => Some(kept.limit_ms),
            _ => None,
        })
    };
    let first = shell("read line");
    let limit = first.lease.as_ref().map(|lease| lease.limit_ms);
    shim.launch(first);
    assert_eq!(Some(kept(&mut shim.wire)), limit);
    let renewed = lease(Duration::from_secs(3_000), Duration::from_secs(3_001));
    let limit = renewed.limit_ms;
    shim.wire.lease(renewed);
    assert_eq!(kept(&mut shim.wire), limit);
}

#[test]
fn only_the_owner_may_access_the_socket_and_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let shim = ShimFixture::run("echo x; read line");
    let mode = |name: &str| {
        let found = std::fs::metadata(shim.path(name)).unwrap();
        found.permissions().mode() & 0o777
    };
    assert_eq!(
        (mode("shim.sock"), mode("report"), mode("spool")),
        (0o600, 0o600, 0o700)
    );
}

#[test]
fn messages_before_a_greeting_are_ignored() {
    let mut shim = ShimFixture::run("read line");
    let mut rude = shim.connect();
    rude.stop(Duration::ZERO);
    assert_eq!(rude.receive(), None);
    shim.wire.stdin(1, "go\n", true);
    let done = shim.wire.stdin_done();
    assert_eq!((done.id, done.refused), (1, false));
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
}
