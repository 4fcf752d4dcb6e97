//! One authenticated connection to a relay and its typed gRPC clients: TLS, the token, and the
//! error text of a failed connection.

use std::error::Error as _;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use crate::client::ca_file;
use crate::client::discovery::ConnectionArgs;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::tls_hints;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Flow-control window of a stream. HTTP/2's default of 64 KiB is one chunk of output, so each
/// chunk would cost a round trip.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
/// The relay limits its responses; this only has to be larger than the largest one.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

pub(crate) type RelayChannel = InterceptedService<Channel, CallCredential>;

/// Adds the token to every request, and the tenant if one was chosen.
#[derive(Clone, Debug)]
pub(crate) struct CallCredential {
    authorization: MetadataValue<Ascii>,
    tenant: Option<MetadataValue<Ascii>>,
}

impl CallCredential {
    pub(crate) fn new(token: &str) -> Result<Self, CliError> {
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| {
            CliError::usage(
                "the access token contains invalid characters",
                "create a new token with `baton token create --role submitter`",
            )
        })?;
        header.set_sensitive(true);
        Ok(Self {
            authorization: header,
            tenant: None,
        })
    }
}

impl CallCredential {
    /// Sends this tenant with every request.
    fn for_tenant(self, tenant: &str) -> Result<Self, CliError> {
        let tenant = tenant.parse().map_err(|_| {
            CliError::usage(
                format!("{tenant:?} is not a valid tenant name"),
                "use 1 to 63 of a-z, 0-9, - and _",
            )
        })?;
        Ok(Self {
            tenant: Some(tenant),
            ..self
        })
    }
}

impl Interceptor for CallCredential {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.authorization.clone());
        if let Some(tenant) = &self.tenant {
            request
                .metadata_mut()
                .insert("baton-tenant", tenant.clone());
        }
        Ok(request)
    }
}

/// A connected relay.
#[derive(Clone, Debug)]
pub(crate) struct RelayClient {
    transport: RelayChannel,
}

macro_rules! clients {
    ($($name:ident: $module:ident :: $client:ident),* $(,)?) => {
        impl RelayClient {
            $(
                pub(crate) fn $name(&self) -> baton_proto::v1::$module::$client<RelayChannel> {
                    baton_proto::v1::$module::$client::new(self.transport.clone())
                        .max_decoding_message_size(MAX_MESSAGE_BYTES)
                        .max_encoding_message_size(MAX_MESSAGE_BYTES)
                }
            )*
        }
    };
}

clients! {
    agents: agents_client::AgentsClient,
    tasks: tasks_client::TasksClient,
    inputs: inputs_client::InputsClient,
    fleet: fleet_client::FleetClient,
    operator: operator_client::OperatorClient,
}

impl RelayClient {
    /// Connects as the flags, the environment and the data directory describe.
    pub(crate) async fn discover(args: &ConnectionArgs) -> Result<Self, CliError> {
        let url = args.relay_url()?;
        let ca = args.ca.as_deref().map(ca_file::read_ca_file).transpose()?;
        let credential = CallCredential::new(&args.token()?)?;
        let credential = match args.in_tenant.as_deref().filter(|name| !name.is_empty()) {
            Some(tenant) => credential.for_tenant(tenant)?,
            None => credential,
        };
        Self::connect_endpoint(build_endpoint(&url, ca.as_deref())?, &url, credential).await
    }

    /// Connects without TLS to an address that a test has chosen.
    #[cfg(test)]
    pub(crate) async fn connect(url: &str, token: &str) -> Result<Self, CliError> {
        Self::connect_endpoint(build_endpoint(url, None)?, url, CallCredential::new(token)?).await
    }

    async fn connect_endpoint(
        endpoint: Endpoint,
        url: &str,
        credential: CallCredential,
    ) -> Result<Self, CliError> {
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| unreachable_error(url, &error))?;
        let transport = InterceptedService::new(channel, credential);
        Ok(Self { transport })
    }
}

fn build_endpoint(url: &str, ca: Option<&[u8]>) -> Result<Endpoint, CliError> {
    let malformed = |why: String| {
        CliError::Usage(ErrorText {
            what: format!("{url} is not the address of a relay"),
            why,
            hint: "write it like http://127.0.0.1:7070".to_owned(),
        })
    };
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(malformed(
            "it does not begin with http:// or https://".to_owned(),
        ));
    }
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| malformed(e.to_string()))?;
    let endpoint = endpoint
        .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
        .map_err(|e| malformed(e.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    if url.starts_with("http://") {
        return Ok(endpoint);
    }
    let tls = match ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint
        .tls_config(tls)
        .map_err(|error| CliError::local("cannot set up TLS", error))
}

fn unreachable_error(url: &str, error: &tonic::transport::Error) -> CliError {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // The innermost cause is the most specific one.
        why = cause.to_string();
        source = cause.source();
    }
    let general = if url.starts_with("https://") {
        "check that the relay is running; if its certificate is signed by your own authority, pass it with --ca FILE"
    } else {
        "start a relay with `baton up`, or choose another one with --relay URL or BATON_RELAY"
    };
    let tls = Some(url).filter(|url| url.starts_with("https://"));
    let hint = tls.and_then(|url| tls_hints::https_hint(url, &why));
    CliError::Unreachable(ErrorText {
        what: format!("cannot connect to the relay at {url}"),
        why,
        hint: hint.unwrap_or_else(|| general.to_owned()),
    })
}
