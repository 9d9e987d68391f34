//! The proxy-operator binary. Everything is in the library.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(proxy_operator::app::run(proxy_operator::args::Args::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = runtime_kit::chain(error.as_ref()).to_string();
            if tracing::dispatcher::has_been_set() {
                tracing::error!(error, "proxy-operator ends");
            } else {
                #[expect(clippy::print_stderr, reason = "logging is not set up")]
                {
                    eprintln!("error: {error}");
                }
            }
            ExitCode::FAILURE
        },
    }
}
