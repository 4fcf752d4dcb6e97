//! Relay, daemon and command line over TLS, with a certificate authority of the test.

use baton_proto::v1::{Role, TaskState};
use baton_tests::{
    BatonExecutable, CertificateAuthority, CommandOutput, DaemonProcess, RelayProcess,
    ServerCertificate, TestClient, command_task, wait_until_marked_gone, wait_within,
};
use tempfile::TempDir;

use crate::BATON;

const HOST: &str = "127.0.0.1";

struct TlsFixture {
    dir: TempDir,
    authority: CertificateAuthority,
    relay: RelayProcess,
    url: String,
}

impl TlsFixture {
    async fn start(host: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let authority = CertificateAuthority::new(dir.path());
        let ServerCertificate { cert, key } = authority.issue_certificate(host);
        let [cert, key] = [cert, key].map(|path| path.display().to_string());
        let relay =
            RelayProcess::start_with(BATON, &["--tls-cert", &cert, "--tls-key", &key]).await;
        let url = relay.admin().url().replace("http://", "https://");
        Self {
            dir,
            authority,
            relay,
            url,
        }
    }

    fn admin(&self) -> TestClient {
        TestClient::over_tls(
            &self.url,
            self.relay.admin().token_secret(),
            &self.authority.ca_pem(),
        )
    }

    /// Runs a command against the relay's TLS address.
    async fn run_baton(&self, ca: &str, arguments: &[&str]) -> CommandOutput {
        let mut all = arguments.to_vec();
        all.extend(["--relay", &self.url, "--ca", ca]);
        BATON.run(self.relay.data(), &all).await
    }

    async fn start_daemon(&self, name: &str, secret: &str, ca: &str) -> DaemonProcess {
        DaemonProcess::start_with(
            BATON,
            self.dir.path(),
            name,
            (&self.url, secret),
            &["--ca", ca],
        )
        .await
    }
}

/// Waits until `baton health` of a daemon that cannot connect prints this text, and returns its
/// output.
async fn wait_for_health_text(
    baton: BatonExecutable,
    daemon: &DaemonProcess,
    expected: &str,
) -> String {
    let data = daemon.data.display().to_string();
    wait_within(&format!("baton health to print {expected:?}"), async {
        loop {
            let output = baton.run(&daemon.data, &["health", "--data", &data]).await;
            let text = format!("{}{}", output.stdout, output.stderr);
            if text.contains(expected) {
                assert_eq!(output.code, Some(1), "{output:?}");
                return text;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_daemon_and_command_line_work_over_tls() {
    let fixture = TlsFixture::start(HOST).await;
    let ca = fixture.authority.ca_file().display().to_string();
    let client = fixture.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let mut daemon = fixture.start_daemon("over-tls", &secret, &ca).await;
    let task = client
        .submit(command_task("sh", &["-c", "echo over tls"], "tls"))
        .await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.read_output_to_end(&task.task_id).await,
        b"over tls\n"
    );
    let listed = fixture.run_baton(&ca, &["tasks", "--json"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.contains(&task.task_id), "{listed:?}");
    // The port accepts no plain-text connection.
    let plain = fixture.relay.admin().try_get(&task.task_id).await;
    assert!(plain.is_err(), "{plain:?}");
    wait_until_marked_gone("tls").await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_certified_by_another_authority_is_refused_with_the_reason() {
    let fixture = TlsFixture::start(HOST).await;
    let client = fixture.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let other_dir = tempfile::tempdir().unwrap();
    let other_authority = CertificateAuthority::new(other_dir.path());
    let ca = other_authority.ca_file().display().to_string();
    let refused = fixture.run_baton(&ca, &["tasks"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for expected in ["certificate", "--ca", "does not trust the authority"] {
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
    let mut daemon = fixture.start_daemon("misled", &secret, &ca).await;
    let health = wait_for_health_text(BATON, &daemon, "certificate").await;
    assert!(health.contains("--ca"), "{health}");
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_is_refused_with_the_reason() {
    let fixture = TlsFixture::start("relay.example").await;
    let ca = fixture.authority.ca_file().display().to_string();
    let refused = fixture.run_baton(&ca, &["tasks"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for expected in ["certificate", "relay.example", "for another name"] {
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_the_wrong_scheme_gets_a_hint() {
    let fixture = TlsFixture::start(HOST).await;
    let plain = fixture.url.replace("https://", "http://");
    let output = BATON
        .run(fixture.relay.data(), &["tasks", "--relay", &plain])
        .await;
    assert_eq!(output.code, Some(2), "{output:?}");
    let hint = format!("the relay uses TLS: try --relay {}", fixture.url);
    assert!(output.stderr.contains(&hint), "{output:?}");

    let relay = RelayProcess::start(BATON).await;
    let plain = relay.admin().url();
    let tls = plain.replace("http://", "https://");
    let ca = fixture.authority.ca_file().display().to_string();
    let arguments = ["tasks", "--relay", &tls, "--ca", &ca];
    let output = BATON.run(relay.data(), &arguments).await;
    assert_eq!(output.code, Some(2), "{output:?}");
    let hint = format!("use no TLS: try --relay {plain}");
    assert!(output.stderr.contains(&hint), "{output:?}");
}
