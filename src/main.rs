//! The proxy-operator binary. Everything is in the library.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(proxy_operator::app::run(proxy_operator::args::Args::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = runtime_kit::chain(error.as_ref()).to_string();
            tracing::error!(error, "proxy-operator ends");
            #[expect(clippy::print_stderr, reason = "logging may not be set up yet")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        },
    }
}
