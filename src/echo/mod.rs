//! `proxy-operator echo`: the probe target that we ship, so that nobody depends on a third party.

/// The flags of `proxy-operator echo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {}

/// Serves until a signal asks it to stop.
///
/// # Errors
/// It cannot listen, or stopped by itself.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    std::future::ready(()).await;
    anyhow::bail!("the echo endpoint is not part of this build")
}
