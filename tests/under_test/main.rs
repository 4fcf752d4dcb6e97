//! The executable under test: nothing but the call that `baton` itself makes.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_cli::main()
}
