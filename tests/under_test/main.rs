//! The executable under test: the call that `baton` itself makes, on clocks that a test can move.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_cli::main_with(baton_tests::clocks_under_test())
}
