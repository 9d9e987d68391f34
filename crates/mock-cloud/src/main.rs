//! `mock-cloud serve`: the mock cloud as a process of its own.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Parser, Subcommand};
use mock_cloud::{Cloud, Config};
use runtime_kit::{
    SystemClock,
    logging::{self, LogArgs},
    tasks::stop_on_signal,
};
use tokio::net::TcpListener;

/// A cloud for trying things out: its instances are real proxies on loopback addresses.
#[derive(Debug, Parser)]
#[command(name = "mock-cloud", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the cloud's API and run its instances until told to stop.
    ///
    /// Prints `listening on http://ADDRESS` to standard output once it is ready.
    Serve {
        /// Where the API listens; it has no authentication, so keep it on loopback.
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
        listen: SocketAddr,
        /// The directory the state is kept in; created when missing.
        #[arg(long, value_name = "DIR")]
        state: PathBuf,
        /// From an accepted create to a running instance; kept in the state [at first: 1s].
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        provision_delay: Option<Duration>,
        /// From an accepted delete to an instance that is not found; kept in the state
        /// [at first: 1s].
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        delete_delay: Option<Duration>,
        /// The address the first instance of a new state gets; the next ones follow
        /// [default: derived from the directory's name].
        #[arg(long, value_name = "127.X.Y.Z", value_parser = loopback)]
        first_address: Option<Ipv4Addr>,
        #[command(flatten)]
        log: LogArgs,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text
        .parse()
        .map_err(|error| format!("{error}; write it like 500ms or 2s"))?;
    Duration::try_from(signed).map_err(|_| "it must not be negative".to_owned())
}

fn loopback(text: &str) -> Result<Ipv4Addr, String> {
    let address: Ipv4Addr = text
        .parse()
        .map_err(|error| format!("{error}; write it like 127.20.0.1"))?;
    address.is_loopback().then_some(address).ok_or_else(|| {
        "instances have loopback addresses only; write it like 127.20.0.1".to_owned()
    })
}

/// Why not a Result: its debug form has a stack trace when RUST_BACKTRACE is set.
#[tokio::main]
async fn main() -> ExitCode {
    let Args { command } = Args::parse();
    match Box::pin(run(command)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = runtime_kit::chain(error.as_ref());
            #[expect(clippy::print_stderr, reason = "what the user reads, logging or not")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        },
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    let Command::Serve {
        listen,
        state,
        provision_delay,
        delete_delay,
        first_address,
        log,
    } = command;
    logging::init(&log)?;
    let cloud = Cloud::open(
        Config {
            directory: Some(state),
            provision_delay,
            delete_delay,
            first_address,
            faults: Vec::new(),
        },
        SystemClock::shared(),
    )?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let stop = stop_on_signal()?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{}", listener.local_addr()?)?;
    out.flush()?;
    mock_cloud::serve(listener, cloud, stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_is_one_of_loopback() {
        let parse = |address: &str| {
            let flags = ["mock-cloud", "serve", "--state", "s", "--first-address"];
            Args::try_parse_from([&flags[..], &[address]].concat())
        };
        assert!(parse("127.20.0.1").is_ok());
        for other in ["10.0.0.1", "::1", "here"] {
            let message = parse(other).expect_err(other).to_string();
            assert!(message.contains("127.20.0.1"), "{message}");
        }
    }
}
