//! The programs around the fakes: options, a listener, and an end on SIGTERM.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use runtime_kit::logging::{self, LogArgs};
use runtime_kit::tasks::stop_on_signal;
use runtime_kit::{Clock, SystemClock};
use tokio::net::TcpListener;

use crate::faults::Script;
use crate::proxies::Proxies;
use crate::serve::{self, Fake};

/// The options of every fake.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the API listens; keep it on loopback.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A script of settings and faults to begin with, YAML or JSON.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Let every machine be a real proxy on a loopback address of its own, on this port.
    #[arg(long, value_name = "PORT")]
    proxy_port: Option<u16>,
    #[command(flatten)]
    log: LogArgs,
}

/// Serves a fake until SIGTERM; `build` makes it from a script, the proxies of its machines, and a
/// clock. Prints `listening on http://ADDRESS` once it is ready.
///
/// Why not a Result: its debug form has a stack trace when RUST_BACKTRACE is set.
pub async fn run<F: Fake>(
    options: Options,
    build: impl FnOnce(Script, Option<Proxies>, Arc<dyn Clock>) -> Result<F, serde_json::Error>,
) -> ExitCode {
    match Box::pin(serve_until_stopped(options, build)).await {
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

async fn serve_until_stopped<F: Fake>(
    options: Options,
    build: impl FnOnce(Script, Option<Proxies>, Arc<dyn Clock>) -> Result<F, serde_json::Error>,
) -> anyhow::Result<()> {
    let Options {
        listen,
        script,
        proxy_port,
        log,
    } = options;
    logging::init(&log)?;
    let script = match script {
        Some(path) => {
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Script::read(&text).with_context(|| format!("{} is no script", path.display()))?
        },
        None => Script::default(),
    };
    let clock = SystemClock::shared();
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let at_once = mock_cloud::Config {
        provision_delay: Some(Duration::ZERO),
        delete_delay: Some(Duration::ZERO),
        ..mock_cloud::Config::default()
    };
    let machines = match proxy_port {
        Some(_) => Some(mock_cloud::start(at_once, any_port, Arc::clone(&clock)).await?),
        None => None,
    };
    let proxies = machines.as_ref().zip(proxy_port);
    let proxies = proxies.map(|(machines, port)| Proxies {
        machines: machines.client(),
        port,
    });
    let fake = Arc::new(build(script, proxies, clock)?);
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
    let stop = stop_on_signal()?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{}", listener.local_addr()?)?;
    out.flush()?;
    serve::serve(listener, fake, stop).await;
    Ok(())
}
