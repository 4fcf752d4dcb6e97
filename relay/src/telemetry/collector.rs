//! The OTLP collector that receives spans, resolved once at start from `--otlp` and the
//! standard OTEL_* variables.
//!
//! The export is off unless an endpoint is named. The exporter itself reads headers, timeout
//! and compression from the environment. This module decides whether to export at all, which
//! root certificates to trust, and the service name.

use std::path::PathBuf;

use opentelemetry::KeyValue;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};

use super::span_names;

/// Conventional address of a collector on the same machine.
const LOCAL_COLLECTOR: &str = "http://localhost:4317";

/// A configured OTLP collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtlpCollector {
    pub(super) endpoint: String,
    /// PEM file with root certificates to trust instead of those of the machine.
    certificate: Option<PathBuf>,
}

/// Why spans cannot be exported as configured.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "{named} is {endpoint:?}, which is not the URL of an OTLP collector; \
         give one like http://127.0.0.1:4317 or https://collector.example:4317"
    )]
    Endpoint {
        named: &'static str,
        endpoint: String,
    },
    #[error("cannot read the collector's certificate {path}: {source}; give a PEM file")]
    Certificate {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot set up the trace export: {0}; check the OTEL_EXPORTER_OTLP_* variables")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

impl OtlpCollector {
    pub(super) fn resolve(
        flag: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let Some((named, endpoint)) = flag
            .map(|url| ("--otlp", url.to_owned()))
            .or_else(|| from_environment(&variable))
        else {
            return Ok(None);
        };
        if !is_url(&endpoint) {
            return Err(TelemetryError::Endpoint { named, endpoint });
        }
        let certificate = variable("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_CERTIFICATE"));
        Ok(Some(Self {
            endpoint,
            certificate: certificate.map(PathBuf::from),
        }))
    }

    /// Builds the exporter, which connects when the first span is sent. Must be called in a
    /// tokio runtime.
    pub(super) fn exporter(&self) -> Result<SpanExporter, TelemetryError> {
        let mut builder = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&self.endpoint);
        if self.endpoint.starts_with("https://") {
            builder = builder.with_tls_config(self.tls_config()?);
        }
        let mut exporter = builder.build()?;
        opentelemetry_sdk::trace::SpanExporter::set_resource(&mut exporter, &resource());
        Ok(exporter)
    }

    fn tls_config(&self) -> Result<ClientTlsConfig, TelemetryError> {
        let Some(path) = &self.certificate else {
            return Ok(ClientTlsConfig::new().with_enabled_roots());
        };
        let pem = std::fs::read(path).map_err(|source| TelemetryError::Certificate {
            path: path.clone(),
            source,
        })?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
    }
}

/// The variable that configures OTLP, and its endpoint. `None` if no variable does, or if it
/// requires another protocol than gRPC.
fn from_environment(variable: &impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let exporter = variable("OTEL_TRACES_EXPORTER");
    if exporter.as_deref() == Some("none") {
        return None;
    }
    let named = [
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ];
    let (named, endpoint) = named
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)))
        .or_else(|| {
            let local = exporter.as_deref() == Some("otlp");
            local.then(|| ("OTEL_TRACES_EXPORTER", LOCAL_COLLECTOR.to_owned()))
        })?;
    let protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        .or_else(|| variable("OTEL_EXPORTER_OTLP_PROTOCOL"));
    if let Some(protocol) = protocol.filter(|protocol| !protocol.eq_ignore_ascii_case("grpc")) {
        tracing::warn!(
            protocol,
            "no traces are exported: only OTLP over gRPC is supported; set OTEL_EXPORTER_OTLP_PROTOCOL=grpc or use --otlp"
        );
        return None;
    }
    Some((named, with_scheme(endpoint, variable)))
}

/// Adds the scheme to an endpoint without one. The variables, unlike the flag, may omit it;
/// another variable selects it then.
fn with_scheme(endpoint: String, variable: &impl Fn(&str) -> Option<String>) -> String {
    if endpoint.contains("://") {
        return endpoint;
    }
    let insecure = variable("OTEL_EXPORTER_OTLP_TRACES_INSECURE")
        .or_else(|| variable("OTEL_EXPORTER_OTLP_INSECURE"));
    if insecure.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        format!("http://{endpoint}")
    } else {
        format!("https://{endpoint}")
    }
}

fn is_url(endpoint: &str) -> bool {
    endpoint.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
    })
}

/// The service name and version, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES replace
/// them.
fn resource() -> Resource {
    let own = [
        KeyValue::new("service.name", span_names::SERVICE),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let builder = Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(own)
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => builder.with_service_name(name).build(),
        Ok(_) | Err(_) => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flag: Option<&str>, set: &[(&str, &str)]) -> Result<Option<String>, TelemetryError> {
        let variable = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = OtlpCollector::resolve(flag, variable)?;
        Ok(found.map(|collector| collector.endpoint))
    }

    #[test]
    fn nothing_is_exported_without_a_configured_collector() {
        let off: &[&[(&str, &str)]] = &[
            &[],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[("OTEL_EXPORTER_OTLP_HEADERS", "key=value")],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"),
                ("OTEL_SDK_DISABLED", "TRUE"),
            ],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"),
                ("OTEL_TRACES_EXPORTER", "none"),
            ],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ],
        ];
        for set in off {
            assert_eq!(resolve(None, set).unwrap(), None, "{set:?}");
        }
        let disabled = [("OTEL_SDK_DISABLED", "true")];
        assert_eq!(resolve(Some("http://c:1"), &disabled).unwrap(), None);
    }

    #[test]
    fn the_flag_precedes_the_traces_variable_and_the_general_one() {
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:2");
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "general:3");
        let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
        let found = |flag, set: &[_]| resolve(flag, set).unwrap().unwrap();
        assert_eq!(
            found(Some("http://flag:1"), &[traces, general]),
            "http://flag:1"
        );
        assert_eq!(found(None, &[traces, general]), "https://traces:2");
        assert_eq!(found(None, &[general]), "https://general:3");
        assert_eq!(found(None, &[general, insecure]), "http://general:3");
        assert_eq!(
            found(None, &[("OTEL_TRACES_EXPORTER", "otlp")]),
            LOCAL_COLLECTOR
        );
        for bad in ["127.0.0.1:4317", "ftp://c:1", "http://", "nonsense"] {
            let error = resolve(Some(bad), &[]).unwrap_err().to_string();
            assert!(error.starts_with("--otlp is"), "{error}");
        }
    }
}
