//! What stands between client, daemon and relay: taps, proxies, gateways, raw byte peers, TLS and trace collection.
//! It passes bytes on, records or breaks them; it does not know what a task is.

pub(crate) mod frame_tap;
pub(crate) mod idle_gateway;
pub(crate) mod isolated_network;
pub(crate) mod ports;
pub(crate) mod raw_link;
pub(crate) mod raw_relay;
pub(crate) mod tcp_proxy;
pub(crate) mod tls_authority;
pub(crate) mod trace_collector;
