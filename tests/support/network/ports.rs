//! Ports for relays that are killed and started again on the same address.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the kernel's range for outgoing connections. While the relay is down, no other process
/// gets the port, and a daemon that connects to it cannot be connected to itself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 16_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port without a listener.
pub fn unused_port() -> u16 {
    let start: u16 = rand::random_range(0..COUNT);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free between {FIRST} and {}", FIRST + COUNT);
}
