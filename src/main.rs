//! The proxy-operator binary. Everything is in the library.

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    proxy_operator::app::run(proxy_operator::args::Args::parse()).await
}
