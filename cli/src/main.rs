//! The `baton` executable: an allocator, and a call into its library.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A fifth of a busy relay's time went into the system's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    baton_cli::main()
}
