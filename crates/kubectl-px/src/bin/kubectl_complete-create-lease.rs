//! What kubectl runs to complete `kubectl create lease`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_px::cli::run_create_lease_completion()
}
