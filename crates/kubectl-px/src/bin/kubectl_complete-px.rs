//! What kubectl runs to complete `kubectl px`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_px::cli::run_px_completion()
}
