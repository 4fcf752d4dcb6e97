//! Relay, daemon and command line over TLS, with an authority of the test's own.

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

    /// The command line as a person of the relay's machine uses it.
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

/// What `baton health` says of a daemon that cannot connect, once it says this.
async fn wait_for_health_text(
    baton: BatonExecutable,
    daemon: &DaemonProcess,
    word: &str,
) -> String {
    let data = daemon.data.display().to_string();
    wait_within(&format!("the daemon to say {word:?}"), async {
        loop {
            let said = baton.run(&daemon.data, &["health", "--data", &data]).await;
            let text = format!("{}{}", said.stdout, said.stderr);
            if text.contains(word) {
                assert_eq!(said.code, Some(1), "{said:?}");
                return text;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_daemon_and_command_line_work_over_tls() {
    let scene = TlsFixture::start(HOST).await;
    let ca = scene.authority.ca_file().display().to_string();
    let client = scene.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let mut daemon = scene.start_daemon("over-tls", &secret, &ca).await;
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
    let listed = scene.run_baton(&ca, &["tasks", "--json"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.contains(&task.task_id), "{listed:?}");
    // Nothing speaks in the clear on this port.
    let plain = scene.relay.admin().try_get(&task.task_id).await;
    assert!(plain.is_err(), "{plain:?}");
    wait_until_marked_gone("tls").await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_another_authority_certified_is_refused_with_the_reason() {
    let scene = TlsFixture::start(HOST).await;
    let client = scene.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = CertificateAuthority::new(elsewhere.path());
    let ca = stranger.ca_file().display().to_string();
    let refused = scene.run_baton(&ca, &["tasks"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for word in ["certificate", "--ca", "who signed"] {
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    let mut daemon = scene.start_daemon("misled", &secret, &ca).await;
    let why = wait_for_health_text(BATON, &daemon, "certificate").await;
    assert!(why.contains("--ca"), "{why}");
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_is_refused_with_the_reason() {
    let scene = TlsFixture::start("relay.example").await;
    let ca = scene.authority.ca_file().display().to_string();
    let refused = scene.run_baton(&ca, &["tasks"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for word in ["certificate", "relay.example", "for another name"] {
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_the_wrong_scheme_is_told_the_right_one() {
    let scene = TlsFixture::start(HOST).await;
    let plain = scene.url.replace("https://", "http://");
    let said = BATON
        .run(scene.relay.data(), &["tasks", "--relay", &plain])
        .await;
    assert_eq!(said.code, Some(2), "{said:?}");
    let hint = format!("it speaks TLS: try --relay {}", scene.url);
    assert!(said.stderr.contains(&hint), "{said:?}");

    let relay = RelayProcess::start(BATON).await;
    let plain = relay.admin().url();
    let tls = plain.replace("http://", "https://");
    let ca = scene.authority.ca_file().display().to_string();
    let arguments = ["tasks", "--relay", &tls, "--ca", &ca];
    let said = BATON.run(relay.data(), &arguments).await;
    assert_eq!(said.code, Some(2), "{said:?}");
    let hint = format!("without TLS: try --relay {plain}");
    assert!(said.stderr.contains(&hint), "{said:?}");
}
