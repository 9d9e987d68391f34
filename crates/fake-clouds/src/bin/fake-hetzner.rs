//! `fake-hetzner`: a Hetzner Cloud as a process of its own.

use std::process::ExitCode;

use clap::Parser;
use fake_clouds::hetzner::Hetzner;
use fake_clouds::program::{self, Options};

/// A fake of Hetzner Cloud for tests: its state is kept in memory.
///
/// Prints `listening on http://ADDRESS` to standard output once it is ready.
#[derive(Debug, Parser)]
#[command(name = "fake-hetzner", version)]
struct Args {
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { options } = Args::parse();
    program::run(options, Hetzner::new).await
}
