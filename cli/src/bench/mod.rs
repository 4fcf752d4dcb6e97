//! The load generator: a relay in a process of its own, simulated daemons over real gRPC, and five kinds of load. Every figure
//! counts what the relay has said to be durable; nothing here is faster than a client could be. docs/benchmarks.md says how to use it.

pub(crate) mod compare;
mod latency;
pub(crate) mod load;
mod machine;
pub(crate) mod output;
mod output_writer;
pub(crate) mod recover;
mod relay_process;
pub(crate) mod report;
mod simulated_daemon;
pub(crate) mod site;
pub(crate) mod storm;
pub(crate) mod tasks;
pub(crate) mod watch;
mod witness;

use std::time::Duration;

use crate::render::console::CliConsole;

/// What was acknowledged has to complete within this after the load stops.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// Between two rewritings of the line that shows how far a bench is.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);

/// Drives `work`, and shows how far it is where a person watches.
async fn with_progress<T>(
    console: &CliConsole,
    work: impl Future<Output = T>,
    line: impl Fn() -> String,
) -> T {
    if !console.stderr_is_terminal() {
        return work.await;
    }
    let mut work = std::pin::pin!(work);
    let mut ticks = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        tokio::select! {
            done = &mut work => {
                console.replace_status_line("");
                return done;
            }
            _ = ticks.tick() => console.replace_status_line(&line()),
        }
    }
}
