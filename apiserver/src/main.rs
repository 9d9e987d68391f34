//! The lease-apiserver binary.

use std::process::ExitCode;

use clap::Parser;
use lease_apiserver::app;
use lease_apiserver::args::Args;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = runtime_kit::logging::init(&args.log) {
        return fail(&error.into());
    }
    match Box::pin(app::run(args)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the log may not be set up; this is the last word"
)]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("lease-apiserver: {error:#}");
    ExitCode::FAILURE
}
