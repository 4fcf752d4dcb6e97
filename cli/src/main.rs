//! The `baton` executable: nothing but a call into its library.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_cli::main()
}
