//! The plugin that kubectl runs for `kubectl create lease`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_px::cli::run_create_lease()
}
