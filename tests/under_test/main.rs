//! The executable under test: the same call as `baton`, but with clocks that a test can change.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_cli::main_with(baton_tests::clocks_under_test())
}
