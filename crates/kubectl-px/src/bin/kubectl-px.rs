//! The plugin that kubectl runs for `kubectl px`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_px::cli::run_px()
}
