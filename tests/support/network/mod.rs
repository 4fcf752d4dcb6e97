//! Parts between client, daemon and relay: taps, proxies, gateways, raw byte peers, TLS and
//! trace collection. They forward, record or break connections and contain no task logic.

pub(crate) mod frame_tap;
pub(crate) mod idle_gateway;
pub(crate) mod isolated_network;
pub(crate) mod ports;
pub(crate) mod raw_link;
pub(crate) mod raw_relay;
pub(crate) mod tcp_proxy;
pub(crate) mod tls_authority;
pub(crate) mod trace_collector;
