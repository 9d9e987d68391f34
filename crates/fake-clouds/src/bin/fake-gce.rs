//! `fake-gce`: a Compute Engine as a process of its own.

use std::process::ExitCode;

use clap::Parser;
use fake_clouds::gce::Gce;
use fake_clouds::program::{self, Options};

/// A fake of Compute Engine for tests: its state is kept in memory.
///
/// Prints `listening on http://ADDRESS` to standard output once it is ready.
#[derive(Debug, Parser)]
#[command(name = "fake-gce", version)]
struct Args {
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { options } = Args::parse();
    program::run(options, Gce::new).await
}
