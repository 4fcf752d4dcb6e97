//! An authenticated connection to the relay under measurement. The relay listens on loopback
//! without TLS, so this client needs no certificates.

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::operator_client::OperatorClient;
use baton_proto::v1::tasks_client::TasksClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::error::BenchError;

// The same settings as the client of the command line: windows and keepalive change the figures.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

type BenchChannel = InterceptedService<Channel, BenchCredential>;

/// Adds the token to every request.
#[derive(Clone, Debug)]
pub(crate) struct BenchCredential(MetadataValue<Ascii>);

impl Interceptor for BenchCredential {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BenchClient {
    channel: BenchChannel,
}

macro_rules! bench_clients {
    ($($name:ident: $client:ident),* $(,)?) => {
        impl BenchClient {
            $(
                pub(crate) fn $name(&self) -> $client<BenchChannel> {
                    $client::new(self.channel.clone())
                        .max_decoding_message_size(MAX_MESSAGE_BYTES)
                        .max_encoding_message_size(MAX_MESSAGE_BYTES)
                }
            )*
        }
    };
}

bench_clients! {
    tasks: TasksClient,
    operator: OperatorClient,
    link: DaemonLinkClient,
}

impl BenchClient {
    pub(crate) async fn connect(url: &str, token: &str) -> Result<Self, BenchError> {
        Self::connect_endpoint(build_endpoint(url)?, url, token).await
    }

    /// Connects from a chosen address of this machine.
    pub(crate) async fn connect_from(
        url: &str,
        token: &str,
        from: IpAddr,
    ) -> Result<Self, BenchError> {
        let endpoint = build_endpoint(url)?.local_address(Some(from));
        Self::connect_endpoint(endpoint, url, token).await
    }

    async fn connect_endpoint(
        endpoint: Endpoint,
        url: &str,
        token: &str,
    ) -> Result<Self, BenchError> {
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|error| BenchError::local("the relay's access token is not valid", error))?;
        header.set_sensitive(true);
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| unreachable_error(url, &error))?;
        Ok(Self {
            channel: InterceptedService::new(channel, BenchCredential(header)),
        })
    }
}

fn build_endpoint(url: &str) -> Result<Endpoint, BenchError> {
    let invalid = |error| BenchError::local(format!("{url} is not the address of a relay"), error);
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?;
    let endpoint = endpoint
        .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
        .map_err(invalid)?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT))
}

/// The innermost cause names the failed system call; the outer ones only repeat "transport error".
fn unreachable_error(url: &str, error: &tonic::transport::Error) -> BenchError {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        why = cause.to_string();
        source = cause.source();
    }
    BenchError::Unreachable {
        url: url.to_owned(),
        why,
    }
}
